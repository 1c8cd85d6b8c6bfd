/**
 * Other runs beside the current one, in the same charts: thinner lines in TensorBoard's colours, runs of one setting as
 * their mean with its range, their skips as lanes of ticks, and a legend. Loaded when a second run is chosen.
 *
 * The current run is drawn by `charts.ts`, and its steps are the x axis; the server reduces the others by the same x.
 */

import { BaselineCard } from "./baselinecard.ts";
import { element } from "./elements.ts";
import { formatAligned, formatScale } from "./format.ts";
import { Judged } from "./judged.ts";
import { aliveAt, drawEndNumbers, drawPartings, drawRuns } from "./overlaycanvas.ts";
import { OverlayData } from "./overlaydata.ts";
import { OverlayLegend, lineName } from "./overlaylegend.ts";
import { ONTO_AXIS, isSmoothed, smoothedOnto } from "./plotdata.ts";
import { DASHES, linesOf, shortNames, swatch } from "./runlines.ts";
import { SkipStrip } from "./skipstrip.ts";
import { bucketAt, lowerBound } from "./sorted.ts";
import { axisOf, bucketsOf, letsThrough, prefixOf } from "./state.ts";
import { placesOf } from "./xaxis.ts";

import type { Api } from "./api.ts";
import type { Charts } from "./charts.ts";
import type { PanelStore } from "./state.ts";
import type { Values } from "./answers.ts";
import type { LineEnd, OverlayLine } from "./overlaycanvas.ts";
import type { OverlayScene } from "./overlaydata.ts";
import type { Plot } from "./plot.ts";
import type { ValuesSource } from "./values.ts";
import type { ChartSpec, Scale } from "./views.ts";

export class Overlay {
  data: OverlayData;
  legend: OverlayLegend;
  /** Where lines end in each chart, in pixels of its canvas. */
  ends: Map<string, LineEnd[]> = new Map();
  /** the one that a person looks at */
  looked: number | null = null;
  judged: Judged;
  baseline: BaselineCard;
  skips: SkipStrip;

  constructor(readonly api: Api, readonly store: PanelStore, readonly charts: Charts) {
    this.data = new OverlayData(api, store);
    this.skips = new SkipStrip(this.data);
    this.judged = new Judged(api, this.data, () => this.data.redraw());
    this.baseline = new BaselineCard(store, this.data, this.judged);
    this.legend = new OverlayLegend(store, charts, this.data, (at) => this.look(at));
    store.watch(["table"], () => {
      this.prepare();
      this.data.ask(true);
    });
    store.watch(["now"], () => {
      if (this.data.isStale) this.data.ask(true);
    });
  }

  get currentColor() {
    return this.data.colorOf(this.data.scene?.current ?? "");
  }

  /** @param runs all that TensorBoard knows, in its order */
  know(runs: string[]) {
    this.legend.drawn = "";
    this.data.know(runs);
  }

  /** What is to be in the charts, before they are drawn. */
  prepare() {
    const { state } = this.store;
    const prefix = prefixOf(state);
    const current = state.loaded?.run ?? "";
    const columns = this.charts.panes.filter(({ spec }) => spec.id !== "tensor").map(({ spec }) =>
      (spec.ofOptimizer ? prefix : "") + spec.lines[0].column
    );
    const scene: OverlayScene = this.data.scene = { current, prefix, rows: state.table?.runs ?? [],
      others: state.over.filter((run) => run !== current), grouped: state.grouped, axis: state.axis,
      smoothing: state.smoothing, buckets: bucketsOf(state), zoomed: state.zoom !== null,
      columns: [...columns, "skipped", "step"], lets: (run) => letsThrough(state, run),
      range: () => [this.charts.geometry.min, this.charts.geometry.max] };
    this.skips.element.hidden = !this.data.active;
    const settings = new Map(scene.rows.map((row) => [row.run, row.setting]));
    const known = new Set(settings.keys());
    const others = scene.others.filter((run) => known.has(run) && scene.lets(run));
    this.data.lines = linesOf(scene.current, others, (run) => settings.get(run), scene.grouped);
    this.legend.show(others, settings);
    this.baseline.show();
  }

  /** Whether a view is smoothed though it is not of the loss. */
  #isSmooth({ id }: ChartSpec) {
    return this.store.state.views.smooth.has(id);
  }

  /** Numbers and names of the lines that lack what a chart shows. */
  lacking(spec: ChartSpec): string[] {
    if (spec.id === "tensor" || this.data.asked !== this.data.question) return [];
    return this.data.whole.flatMap((line, at) => {
      const name = this.data.columnOf(spec);
      const lacks = line.start.length > 0 && !line.of(name, "mean") && !line.of(name, "last");
      return lacks ? [`${at + 2} ${lineName(line.runs)}`] : [];
    });
  }

  /** A line's points on a chart's axis, made once. */
  #points(line: OverlayLine, spec: ChartSpec, scale: Scale) {
    const { prefix, smoothing } = this.data.scene as OverlayScene;
    const [first] = spec.lines;
    const name = this.data.columnOf(spec);
    const key = `${spec.id} ${scale} ${prefix} ${smoothing} ${this.#isSmooth(spec)}`;
    let made = line.made.get(key);
    const relative = this.data.relativeFor(spec);
    if (made && made.relative === relative) return made;
    const raw = line.of(name, first.average ? "mean" : "last") ?? line.of(name, "mean");
    const held = (
      values: Values,
    ) => (relative ? Float64Array.from(values, (value, at) => relative(value, line.x[at])) : values);
    const onto = (values: Values | null) => values && Array.from(held(values), ONTO_AXIS[scale]);
    const averaged = raw && isSmoothed(first, smoothing, this.#isSmooth(spec));
    const values = averaged ? smoothedOnto(held(raw), smoothing, scale) : onto(raw);
    const group = line.runs.length > 1;
    const bands = values && group
      ? [["min", "max", 0.1], ["low", "high", 0.2]].map(([low, high, alpha]) => ({
        low: onto(line.of(name, String(low))),
        high: onto(line.of(name, String(high))),
        alpha: Number(alpha),
      })).filter(({ low }) => low) : [];
    if (bands.length === 1) bands[0].alpha = 0.22;
    made = { values, bands, raw, relative };
    line.made.set(key, made);
    return made;
  }

  /** The least and the greatest in view, on a chart's axis. */
  range(spec: ChartSpec, scale: Scale): [number, number] | null {
    if (spec.id === "tensor") return null;
    const [from, to] = this.data.scene?.range() ?? [0, 0];
    let [low, high] = [Infinity, -Infinity];
    for (const line of this.data.shown) {
      const { values, bands } = this.#points(line, spec, scale);
      for (const row of values ? [values, ...bands.flatMap((band) => [band.low, band.high])] : []) {
        for (let at = Math.max(0, lowerBound(line.x, from) - 1); row && at < row.length && line.x[at] <= to; at++) {
          const value = row[at];
          if (value === null || line.x[at] < from) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    return low <= high ? [low, high] : null;
  }

  /** The points of each line in view, with its value on a chart's axis. */
  inView(spec: ChartSpec, scale: Scale): number[][][] {
    if (spec.id === "tensor") return [];
    const [from, to] = this.data.scene?.range() ?? [0, 0];
    return this.data.shown.map((line) => {
      const { values } = this.#points(line, spec, scale);
      return (values ?? []).flatMap((value, at) =>
        value === null || line.x[at] < from || line.x[at] > to ? [] : [[value]]
      );
    });
  }

  drawLines(plot: Plot, spec: ChartSpec, scale: Scale) {
    const lines = this.data.shown;
    this.ends.delete(spec.id);
    if (!lines.length || spec.id === "tensor") return;
    const points = lines.map((line) => this.#points(line, spec, scale));
    this.ends.set(spec.id, drawRuns(plot, spec, lines, points, this.data.dark, this.looked));
    drawPartings(plot, this.#partings(spec));
  }

  /** Where single runs part from what they are held against, or leave its band. */
  #partings(spec: ChartSpec) {
    const { state } = this.store;
    if (state.baseline === null) return [];
    const { held: [base, ...seeds] } = this.data;
    const named = seeds.length > 0 || spec === this.charts.panes[0]?.spec; // bits part in all charts at once
    return this.judged.partings(this.data.columnOf(spec)).map(({ run, step, words }) => ({
      x: axisOf(state).xOf(step),
      color: this.data.colorOf(run),
      text: named ? `${shortNames([run, base])[0]} ${words}` : "",
    }));
  }

  drawNumbers(plot: Plot, spec: ChartSpec) {
    if (this.data.active) drawEndNumbers(plot, this.ends.get(spec.id) ?? []);
  }

  /** What each run has at x, as part of the card at the cursor. @param own the current run's value */
  valuesAt(x: number, spec: ChartSpec, own: number | null) {
    const format = spec.scale === "log2" ? formatScale : formatAligned;
    const { current } = this.data.scene as OverlayScene;
    const rows = [{ number: 1, name: lineName([current]), color: this.data.colorOf(current), dash: DASHES[0],
      text: own === null ? "–" : format(own) }];
    this.data.shown.forEach((line, at) => {
      const { raw } = this.#points(line, spec, spec.scale);
      let index = bucketAt(line.start, x, line.last ?? -Infinity);
      if (spec.lines[0].sparse) { while (raw && index > 0 && Number.isNaN(raw[index])) index -= 1; }
      const value = raw && index >= 0 ? raw[index] : undefined;
      const name = this.data.columnOf(spec);
      const broken = (kind: string) => (line.of(name, kind)?.[index] ?? 0) > 0;
      const missing = value === undefined ? "–" : broken("inf") ? "∞" : broken("nan") ? "NaN" : "–";
      const alive = aliveAt(line, x);
      // the others ended before
      const of = alive && alive < line.runs.length ? ` (${alive} of ${line.runs.length})` : "";
      rows.push({ number: at + 2, name: lineName(line.runs), color: line.colors[this.data.dark], dash: line.dash,
        text: (value === undefined || Number.isNaN(value) ? missing : format(value)) + of });
    });
    const names = shortNames(rows.map(({ name }) => name));
    return {
      element: element("table", { class: "cursor-runs" }, element("caption", {}, spec.title),
        element("tbody", {}, ...rows.map(({ number, color, dash, text }, at) =>
          element(
            "tr",
            at === 0 ? "current" : "",
            element("td", "run-number", String(number)),
            element("td", {}, swatch(color, dash)),
            element("th", { scope: "row" }, names[at]),
            element("td", "number", text),
          )
        ))),
      text: `${spec.title}: ${rows.map(({ name, text }) => `${name} ${text}`).join(", ")}`,
      many: rows.length > 5,
    };
  }

  /** What is drawn, for the table of values. @returns `name`: of the current run */
  sources(specs: ChartSpec[]): { name: string; others: ValuesSource[] } {
    const { current, axis, range } = this.data.scene as OverlayScene;
    const lines = this.data.shown;
    const [name, ...names] = shortNames([[current], ...lines.map(({ runs }) => runs)].map((runs) => lineName(runs)))
      .map((text, at) => `${at + 1}  ${text}`);
    const others = lines.map((line, at) => {
      const size = axis === "time" ? line.size / 1000 : line.size;
      const ends = line.start.map((x) => Math.min(axis === "time" ? x : x + size - 1, line.last ?? x));
      const exact = line.size === 1;
      return { name: names[at], of: line, view: range(), places: placesOf(axis, exact), several: line.runs.length > 1,
        series: { exact, bucketSteps: size, length: line.start.length, step: line.start as Float64Array,
          stepLast: ends as Float64Array, line: () => null },
        lines: specs.filter(({ id }) => id !== "tensor").flatMap((spec) => this.#column(line, spec)) };
    });
    return { name, others };
  }

  #column(line: OverlayLine, spec: ChartSpec): ValuesSource["lines"] {
    const { raw } = this.#points(line, spec, spec.scale);
    const of = (kind: string) => line.of(this.data.columnOf(spec), kind);
    const counts = (kind: string) => (of(kind) as Uint32Array | null);
    return raw
      ? [{ spec, line: spec.lines[0],
        column: { last: raw, min: of("min") ?? raw, max: of("max") ?? raw, mean: null, nan: counts("nan"),
          inf: counts("inf"), known: null } }] : [];
  }

  /** The runs beside the current one in words, with where they end in view. */
  summary(spec: ChartSpec, scale: Scale) {
    if (!this.data.active || spec.id === "tensor") return "";
    const format = spec.scale === "log2" ? formatScale : formatAligned;
    const to = this.data.scene?.range()[1] ?? 0;
    const parts = this.data.shown.flatMap((line) => {
      const { raw } = this.#points(line, spec, scale);
      let at = Math.min(line.x.length, lowerBound(line.x, to + 1e-9)) - 1;
      while (raw && at > 0 && !Number.isFinite(raw[at])) at -= 1;
      return raw && at >= 0 ? [`${lineName(line.runs)} ${format(raw[at])}`] : [];
    });
    return parts.length ? ` Beside it, at the end: ${parts.join(", ")}.` : "";
  }

  /** What a chart shows in place of values, in words; "" where it shows them. */
  againstText(spec: ChartSpec) {
    const { baseline, against } = this.store.state;
    if (!this.data.relativeFor(spec) || baseline === null) return "";
    return `${against === "difference" ? "difference from" : "ratio to"} ${lineName(this.data.held)}`;
  }

  /** Brings a line out among the others. */
  look(at: number | null) {
    if (at === this.looked) return;
    this.looked = this.skips.looked = at;
    this.charts.recolor();
  }
}
