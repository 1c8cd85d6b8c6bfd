/**
 * Other runs beside the current one, in the same charts: thinner lines in TensorBoard's colours, runs of one setting as
 * their mean with its range, their skips as lanes of ticks, and a legend. Loaded when a second run is chosen.
 *
 * The current run is drawn by `charts.ts`, and its steps are the x axis; the server reduces the others by the same x.
 */

import { chooseRun, say } from "./actions.ts";
import { element, iconButton } from "./elements.ts";
import { counted, formatAligned, formatCount, formatScale } from "./format.ts";
import { drawEndNumbers, drawRuns, drawSkips, skipsOf } from "./overlaycanvas.ts";
import { PADDING_RIGHT } from "./plot.ts";
import { ONTO_AXIS, missingAfter, smoothed } from "./plotdata.ts";
import { DASHES, RunColors, groupName, linesOf, shortNames, swatch } from "./runlines.ts";
import { bucketAt, lowerBound } from "./sorted.ts";
import { bucketsOf, letsThrough, prefixOf } from "./state.ts";
import { placesOf } from "./xaxis.ts";

import type { Api } from "./api.ts";
import type { Charts } from "./charts.ts";
import type { PanelStore } from "./state.ts";
import type { RunRow, Values } from "./answers.ts";
import type { LineEnd, OverlayLine } from "./overlaycanvas.ts";
import type { Plot } from "./plot.ts";
import type { ValuesSource } from "./values.ts";
import type { ChartSpec, Scale } from "./views.ts";
import type { Alignment } from "./xaxis.ts";

/** What is to be in the charts beside the current run. */
export type OverlayScene = {
  current: string;
  others: string[];
  grouped: boolean;
  axis: Alignment;
  rows: RunRow[];
  /** what TensorBoard's filter lets through */
  lets: (run: string) => boolean;
  prefix: string;
  columns: string[];
  smoothing: number;
  buckets: number;
  zoomed: boolean;
  /** the x in view */
  range: () => [number, number];
};

export class Overlay {
  colors = new RunColors();
  scene: OverlayScene | null = null;
  /** those whose data is there */
  whole: OverlayLine[] = [];
  /** of the view and its surroundings */
  near: OverlayLine[] = [];
  nearRange = [0, 0];
  drawn = "";
  asked = "";
  askedNear = "";
  request: AbortController | null = null;
  answer: { header: any; arrays: Map<string, Values> } | null = null;
  others: string[] = [];
  lines: string[][] = [];
  nearSpan = 0;
  /** The legend, for a picture of it. */
  named: { text: string; color: string; dash: number[] }[] = [];
  /** Where lines end in each chart, in pixels of its canvas. */
  ends: Map<string, LineEnd[]> = new Map();
  /** the one that a person looks at */
  looked: number | null = null;
  list = element("ul", { class: "overlay-runs", "aria-label": "Runs in the charts" });
  group: HTMLButtonElement;
  bar: HTMLElement;
  strip = element("canvas", { class: "overlay-skips", role: "img", height: 0 });

  constructor(readonly api: Api, readonly store: PanelStore, readonly charts: Charts) {
    this.group = element("button", { class: "small", type: "button",
      title: "Runs that differ in the seed alone become their mean and its range", onclick: () => this.#regroup() },
      "Group seeds");
    this.bar = element("section", { class: "overlay-bar", "aria-label": "Runs beside each other" }, this.list,
      this.group);
    store.watch(["table"], () => {
      this.prepare();
      this.ask(true);
    });
    store.watch(["now"], () => {
      if (this.#isStale) this.ask(true);
    });
  }

  #regroup() {
    this.store.set({ grouped: !this.store.state.grouped });
    say(this.store, this.charts.summaries[0] ?? "");
  }

  /** What is there has changed: the charts are drawn with it. */
  redraw() {
    this.store.set({ beside: { extent: this.#extent } });
  }

  /** Whether other runs are in the charts. */
  get active() {
    return (this.scene?.others.length ?? 0) > 0;
  }

  get dark() {
    return document.documentElement.classList.contains("dark") ? 1 : 0;
  }

  colorOf(run: string) {
    return this.colors.of(run)[this.dark];
  }

  get currentColor() {
    return this.colorOf(this.scene?.current ?? "");
  }

  #remove(runs: string[]) {
    this.store.set({ over: this.store.state.over.filter((run) => !runs.includes(run)) });
  }

  /** @param runs all that TensorBoard knows, in its order */
  know(runs: string[]) {
    this.colors.know(runs);
    if (this.answer) this.whole = this.#decoded(this.answer);
    this.near = [];
    this.askedNear = this.drawn = "";
    this.redraw();
  }

  /** What is to be in the charts, before they are drawn. */
  prepare() {
    const { state } = this.store;
    const prefix = prefixOf(state);
    const current = state.loaded?.run ?? "";
    const columns = this.charts.panes.filter(({ spec }) => spec.id !== "tensor").map(({ spec }) =>
      (spec.ofOptimizer ? prefix : "") + spec.lines[0].column
    );
    const scene: OverlayScene = this.scene = { current, prefix, rows: state.table?.runs ?? [],
      others: state.over.filter((run) => run !== current), grouped: state.grouped, axis: state.axis,
      smoothing: state.smoothing, buckets: bucketsOf(state), zoomed: state.zoom !== null,
      columns: [...columns, "skipped", "step"], lets: (run) => letsThrough(state, run),
      range: () => [this.charts.geometry.min, this.charts.geometry.max] };
    this.bar.hidden = this.strip.hidden = !this.active;
    const settings = new Map(scene.rows.map((row) => [row.run, row.setting]));
    const known = new Set(settings.keys());
    this.others = scene.others.filter((run) => known.has(run) && scene.lets(run));
    this.lines = linesOf(scene.current, this.others, (run) => settings.get(run), scene.grouped);
    const groups = linesOf(scene.current, this.others, (run) => settings.get(run), true);
    this.group.hidden = groups.every((runs) => runs.length < 2);
    this.group.setAttribute("aria-pressed", String(scene.grouped));
    this.#legend();
  }

  /** Fetches what the charts lack, after they were drawn. @param fresh whether the runs may have gone on */
  async ask(fresh: boolean = false) {
    if (!this.active) return;
    if (!this.lines.length) {
      this.whole = this.near = [];
      this.asked = "";
      return;
    }
    try {
      const question = this.#question;
      if (question !== this.asked || fresh) await this.#askWhole(question);
      if (question === this.asked) await this.#askNear(question);
    } catch (error) {
      if (error instanceof Error && error.name === "AbortError") return;
      this.asked = this.askedNear = "";
      this.store.set({ error });
    }
  }

  /** What the lines that are drawn must be an answer to. */
  get #question() {
    return JSON.stringify([this.lines, this.scene?.axis, this.scene?.columns]);
  }

  /** As many buckets as the current run has, so that smoothing does the same to all. */
  #query(interval: [string, string][] = []): [string, string][] {
    const { axis, columns, buckets } = this.scene as OverlayScene;
    const points = interval.length ? 2 * buckets : buckets;
    return [...columns.map((column) => (["column", column] as [string, string])), ["x", axis], ["buckets",
      String(points)], ...interval];
  }

  async #askWhole(question: string) {
    const changed = question !== this.asked;
    this.asked = question;
    if (changed) this.near = [];
    const answer = await this.api.overlay(this.lines, this.#query());
    if (this.asked !== question || (!changed && answer === this.answer)) return;
    this.answer = answer;
    this.whole = this.#decoded(answer);
    this.askedNear = "";
    this.nearSpan = Infinity; // what is near may have gone on too
    this.redraw();
  }

  /** The view with half of it on either side, where the whole is too coarse for it. */
  async #askNear(question: string) {
    const { scene } = this;
    if (!scene?.zoomed || !this.whole.some((line) => line.size > 1)) return;
    const [from, to] = scene.range();
    if (this.near.length && this.nearRange[0] <= from && this.nearRange[1] >= to && this.nearSpan <= 4 * (to - from))
      return;
    const unit = scene.axis === "time" ? 1000 : 1;
    const margin = (to - from) / 2;
    const near = [Math.max(0, Math.floor((from - margin) * unit)), Math.ceil((to + margin) * unit)];
    const detail = JSON.stringify([question, near]);
    if (detail === this.askedNear) return;
    this.askedNear = detail;
    this.request?.abort();
    const request = (this.request = new AbortController());
    const answer = await this.api.overlay(this.lines, this.#query([["from", String(near[0])], ["to", String(near[1])]]),
      request.signal);
    if (this.askedNear !== detail) return;
    this.near = this.#decoded(answer);
    this.nearSpan = (near[1] - near[0]) / unit;
    this.nearRange = [near[0] === 0 ? -Infinity : near[0] / unit, near[1] / unit]; // there is nothing before 0
    this.redraw();
  }

  #decoded({ header, arrays }: { header: any; arrays: Map<string, Values> }): OverlayLine[] {
    const unit = header.x === "time" ? 1000 : 1;
    const seen: Map<string, number> = new Map([[this.colorOf((this.scene as OverlayScene).current), 1]]);
    return header.lines.map((told: any, at: number) => {
      const color = this.colorOf(told.runs[0] ?? told.missing[0]);
      const repeat = seen.get(color) ?? 0;
      seen.set(color, repeat + 1);
      const start = arrays.get(`${at}/x`) as Values;
      const size = told.size / unit;
      const of = (column: string, kind: string) => arrays.get(`${at}/${column}/${kind}`) ?? null;
      return { runs: told.runs, skips: skipsOf({ of })?.some((count) => count > 0) ?? false, size: told.size,
        colors: this.colors.of(told.runs[0] ?? told.missing[0]), dash: DASHES[repeat % DASHES.length],
        first: told.first === null ? null : told.first / unit, last: told.last === null ? null : told.last / unit,
        start: unit === 1 ? start : Float64Array.from(start, (x) => x / unit),
        x: Float64Array.from(start, (x) => (told.size === 1 ? x / unit : x / unit + size / 2)), of,
        missing: missingOf(of, told.size > 1), made: new Map() };
    });
  }

  /** The x between which there are steps, of all lines; null while that is not known. */
  get #extent(): [number, number] | null {
    if (this.asked !== this.#question) return null;
    const ends = this.whole.flatMap(({ first, last }) => (first === null || last === null ? [] : [first, last]));
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
  }

  /** Whether what was asked for did not come. */
  get #isStale() {
    return this.active && this.asked === "" && this.lines.length > 0;
  }

  /** What is drawn of the view: the finer of what is there. */
  get #shown() {
    const { scene } = this;
    if (!scene || !this.active) return [];
    const [from, to] = scene.range();
    return scene.zoomed && this.near.length === this.whole.length && this.nearRange[0] <= from
        && this.nearRange[1] >= to ? this.near : this.whole;
  }

  /** What a chart shows of another run: its first line. */
  #columnOf({ ofOptimizer, lines: [first] }: ChartSpec) {
    return (ofOptimizer ? this.scene?.prefix ?? "" : "") + first.column;
  }

  /** A line's points on a chart's axis, made once. */
  #points(line: OverlayLine, spec: ChartSpec, scale: Scale) {
    const { prefix, smoothing } = this.scene as OverlayScene;
    const [first] = spec.lines;
    const name = this.#columnOf(spec);
    const key = `${spec.id} ${scale} ${prefix} ${smoothing}`;
    let made = line.made.get(key);
    if (made) return made;
    const raw = line.of(name, first.average ? "mean" : "last") ?? line.of(name, "mean");
    const onto = (values: Values | null) => values && Array.from(values, ONTO_AXIS[scale]);
    let values = onto(raw);
    const averaged = smoothing > 0 && !first.stepped && !first.sparse && !first.average;
    if (values && averaged) values = smoothed(values, smoothing);
    const group = line.runs.length > 1;
    const bands = values && group
      ? [["min", "max", 0.1], ["low", "high", 0.2]].map(([low, high, alpha]) => ({
        low: onto(line.of(name, String(low))),
        high: onto(line.of(name, String(high))),
        alpha: Number(alpha),
      })).filter(({ low }) => low) : [];
    if (bands.length === 1) bands[0].alpha = 0.22;
    made = { values, bands, raw };
    line.made.set(key, made);
    return made;
  }

  /** The least and the greatest in view, on a chart's axis. */
  range(spec: ChartSpec, scale: Scale): [number, number] | null {
    if (spec.id === "tensor") return null;
    const [from, to] = this.scene?.range() ?? [0, 0];
    let [low, high] = [Infinity, -Infinity];
    for (const line of this.#shown) {
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

  drawLines(plot: Plot, spec: ChartSpec, scale: Scale) {
    const lines = this.#shown;
    this.ends.delete(spec.id);
    if (!lines.length || spec.id === "tensor") return;
    const points = lines.map((line) => this.#points(line, spec, scale));
    this.ends.set(spec.id, drawRuns(plot, spec, lines, points, this.dark, this.looked));
  }

  drawNumbers(plot: Plot, spec: ChartSpec) {
    if (this.active) drawEndNumbers(plot, this.ends.get(spec.id) ?? []);
  }

  /** Which lines have a lane of skips: those that skipped at all. */
  get #skipping() {
    return this.active ? this.whole.flatMap((line, at) => (line.skips ? [at] : [])) : [];
  }

  get #lane() {
    return Math.max(3, Math.min(8, Math.floor(60 / Math.max(1, this.#skipping.length))));
  }

  get stripHeight() {
    const { length } = this.#skipping;
    return length ? Math.max(14, length * this.#lane + 6) : 0;
  }

  /** Makes room for the skips. @param width pixels of the plots @returns whether its height changed */
  layStrip(left: number, width: number): boolean {
    const { strip, stripHeight } = this;
    const ratio = devicePixelRatio || 1;
    const [across, high] = [Math.round((left + width + PADDING_RIGHT) * ratio), Math.round(stripHeight * ratio)];
    const changed = strip.height !== high;
    if (!changed && strip.width === across) return false;
    [strip.width, strip.height] = [across, high];
    strip.style.width = `${left + width + PADDING_RIGHT}px`;
    strip.style.height = `${stripHeight}px`;
    return changed;
  }

  /** Skips of the others, a lane each, below the marks of the current run. @param width pixels of the plots */
  drawStrip(left: number, width: number) {
    const { strip, scene, stripHeight: height, looked } = this;
    const context = strip.getContext("2d");
    if (!context || !scene || !height) return;
    const ratio = devicePixelRatio || 1;
    const skipping = this.#skipping;
    const lines = skipping.map((at) => this.#shown[at]);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const counts = drawSkips(context, lines, (row) => looked !== null && looked !== skipping[row], { left, width,
      full: left + width + PADDING_RIGHT, height, lane: this.#lane, range: scene.range(), dark: this.dark });
    const said = lines.map((line, row) =>
      `${this.#nameOf(line.runs)} ${line.size > 1 ? "in " : ""}${formatCount(counts[row])}${
        line.size > 1 ? " places" : ""
      }`
    );
    strip.setAttribute("aria-label", `Skipped steps of the other runs in view: ${said.join(", ")}`);
  }

  #nameOf(runs: string[]) {
    return runs.length > 1 ? groupName(runs) : runs[0] === "." ? "(logdir)" : runs[0] ?? "a run that is gone";
  }

  /** What each run has at x, as part of the card at the cursor. @param own the current run's value */
  valuesAt(x: number, spec: ChartSpec, own: number | null) {
    const format = spec.scale === "log2" ? formatScale : formatAligned;
    const { current } = this.scene as OverlayScene;
    const rows = [{ number: 1, name: this.#nameOf([current]), color: this.colorOf(current), dash: DASHES[0],
      text: own === null ? "–" : format(own) }];
    this.#shown.forEach((line, at) => {
      const { raw } = this.#points(line, spec, spec.scale);
      let index = bucketAt(line.start, x, line.last ?? -Infinity);
      if (spec.lines[0].sparse) { while (raw && index > 0 && Number.isNaN(raw[index])) index -= 1; }
      const value = raw && index >= 0 ? raw[index] : undefined;
      const name = this.#columnOf(spec);
      const broken = (kind: string) => (line.of(name, kind)?.[index] ?? 0) > 0;
      const missing = value === undefined ? "–" : broken("inf") ? "∞" : broken("nan") ? "NaN" : "–";
      rows.push({ number: at + 2, name: this.#nameOf(line.runs), color: line.colors[this.dark], dash: line.dash,
        text: value === undefined || Number.isNaN(value) ? missing : format(value) });
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
    const { current, axis, range } = this.scene as OverlayScene;
    const lines = this.#shown;
    const [name, ...names] = shortNames([[current], ...lines.map(({ runs }) => runs)].map((runs) => this.#nameOf(runs)))
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
    const of = (kind: string) => line.of(this.#columnOf(spec), kind);
    const counts = (kind: string) => (of(kind) as Uint32Array | null);
    return raw
      ? [{ spec, line: spec.lines[0],
        column: { last: raw, min: of("min") ?? raw, max: of("max") ?? raw, mean: null, nan: counts("nan"),
          inf: counts("inf"), known: null } }] : [];
  }

  /** The runs beside the current one in words, with where they end in view. */
  summary(spec: ChartSpec, scale: Scale) {
    if (!this.active || spec.id === "tensor") return "";
    const format = spec.scale === "log2" ? formatScale : formatAligned;
    const to = this.scene?.range()[1] ?? 0;
    const parts = this.#shown.flatMap((line) => {
      const { raw } = this.#points(line, spec, scale);
      let at = Math.min(line.x.length, lowerBound(line.x, to + 1e-9)) - 1;
      while (raw && at > 0 && !Number.isFinite(raw[at])) at -= 1;
      return raw && at >= 0 ? [`${this.#nameOf(line.runs)} ${format(raw[at])}`] : [];
    });
    return parts.length ? ` Beside it, at the end: ${parts.join(", ")}.` : "";
  }

  #legend() {
    const { scene, lines } = this;
    if (!scene) return;
    const items = [[scene.current], ...lines];
    const key = JSON.stringify([items, this.dark, items.map(([run]) => this.colorOf(run)),
      scene.others.length - this.others.length]);
    if (key === this.drawn) return;
    this.drawn = key;
    const names = shortNames(items.map((runs) => this.#nameOf(runs)));
    const seen = new Map() as Map<string, number>;
    this.named = [];
    const focused = this.list.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.run
      : undefined;
    this.list.replaceChildren(...items.map((runs, at) => {
      const color = this.colorOf(runs[0]);
      const repeat = seen.get(color) ?? 0;
      seen.set(color, repeat + 1);
      const dash = DASHES[repeat % DASHES.length];
      this.named.push({ text: `${at + 1}  ${names[at]}`, color, dash });
      const title = runs.length > 1 ? runs.join("\n") : this.#nameOf(runs);
      const look = (on: boolean) => this.look(on && at > 0 ? at - 1 : null);
      const open = runs.length > 1 || at === 0
        ? element("span", { class: "overlay-name", title: at === 0 ? `${title} (current)` : title }, names[at])
        : element("button", { class: "overlay-name", type: "button", title: `${title}: make it the current run`,
          "data-run": runs[0], onclick: () => chooseRun(this.store, runs[0]) }, names[at]);
      return element(
        "li",
        { class: at === 0 ? "overlay-run current" : "overlay-run", onmouseenter: () => look(true),
          onmouseleave: () => look(false), onfocusin: () => look(true), onfocusout: () => look(false) },
        element("span", "run-number", String(at + 1)),
        swatch(color, dash),
        open,
        ...(at > 0
          ? [iconButton("✕", `Take ${this.#nameOf(runs)} out of the charts`, () => this.#remove(runs))] : []),
      );
    }));
    const left = scene.others.length - this.others.length;
    if (left > 0)
      this.list.append(
        element("li", "overlay-more", `${counted(left, "run")} not shown: gone, or left out by TensorBoard's filter`),
      );
    if (focused) this.list.querySelector<HTMLElement>(`[data-run="${CSS.escape(focused)}"]`)?.focus();
  }

  /** Brings a line out among the others. */
  look(at: number | null) {
    if (at === this.looked) return;
    this.looked = at;
    this.charts.recolor();
  }
}

/** Points of a line after which steps are missing, by the steps that each stands for, whatever x is. */
function missingOf(of: OverlayLine["of"], reduced: boolean) {
  const step = Float64Array.from(of("step", "min") ?? of("step", "mean") ?? []);
  const stepLast = Float64Array.from(of("step", "max") ?? step);
  const { length } = step;
  const bucketSteps = reduced ? (stepLast[length - 1] + 1 - step[0]) / length : 1;
  return missingAfter({ exact: !reduced, bucketSteps, length, step, stepLast, line: () => null });
}
