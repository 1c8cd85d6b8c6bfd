/**
 * The data of runs beside the current one: asked for as the charts need it, the whole and what is near the view. The
 * server reduces it by the x of the charts.
 */

import { relativeTo } from "./baseline.ts";
import { skipsOf } from "./overlaycanvas.ts";
import { missingAfter } from "./plotdata.ts";
import { DASHES, RunColors } from "./runlines.ts";
import { axisOf, seriesOf } from "./state.ts";

import type { RunRow, Values } from "./answers.ts";
import type { Api } from "./api.ts";
import type { Relative } from "./baseline.ts";
import type { OverlayLine } from "./overlaycanvas.ts";
import type { PanelStore } from "./state.ts";
import type { ChartSpec } from "./views.ts";
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

export class OverlayData {
  colors = new RunColors();
  scene: OverlayScene | null = null;
  /** runs of each line */
  lines: string[][] = [];
  /** those whose data is there */
  whole: OverlayLine[] = [];
  /** of the view and its surroundings */
  near: OverlayLine[] = [];
  nearRange = [0, 0];
  nearSpan = 0;
  asked = "";
  askedNear = "";
  request: AbortController | null = null;
  answer: { header: any; arrays: Map<string, Values> } | null = null;
  /** by view and axis, what they follow from */
  relatives: Map<string, { of: unknown; against: string; relative: Relative }> = new Map();

  constructor(readonly api: Api, readonly store: PanelStore) {}

  /** What others are held against: one run, or all seeds of its setting where they are drawn as one. */
  get held(): string[] {
    const { baseline } = this.store.state;
    if (baseline === null) return [];
    return this.lines.find((runs) => runs.length > 1 && runs.includes(baseline)) ?? [baseline];
  }

  /** Runs that are drawn one by one, the current one first, but for what they are held against. */
  get singles(): string[] {
    const { held } = this;
    const every = [[this.scene?.current ?? ""], ...this.lines].filter((runs) => runs.length === 1).flat();
    return every.filter((run) => !held.includes(run));
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

  /** @param runs all that TensorBoard knows, in its order */
  know(runs: string[]) {
    this.colors.know(runs);
    if (this.answer) this.whole = this.#decoded(this.answer);
    this.near = [];
    this.askedNear = "";
    this.redraw();
  }

  /** What is there has changed: the charts are drawn with it. */
  redraw() {
    this.store.set({ beside: { extent: this.extent } });
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
      const question = this.question;
      if (question !== this.asked || fresh) await this.#askWhole(question);
      if (question === this.asked) await this.#askNear(question);
    } catch (error) {
      if (error instanceof Error && error.name === "AbortError") return;
      this.asked = this.askedNear = "";
      this.store.set({ error });
    }
  }

  /** What the lines that are drawn must be an answer to. */
  get question() {
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
    return header.lines.map((line: any, at: number) => {
      const color = this.colorOf(line.runs[0] ?? line.missing[0]);
      const repeat = seen.get(color) ?? 0;
      seen.set(color, repeat + 1);
      const start = arrays.get(`${at}/x`) as Values;
      const size = line.size / unit;
      const of = (column: string, kind: string) => arrays.get(`${at}/${column}/${kind}`) ?? null;
      return { runs: line.runs, skips: skipsOf({ of })?.some((count) => count > 0) ?? false, size: line.size,
        colors: this.colors.of(line.runs[0] ?? line.missing[0]), dash: DASHES[repeat % DASHES.length],
        ends: [...(line.ends ?? [])].map((end: number) => end / unit).sort((a, b) => a - b),
        first: line.first === null ? null : line.first / unit, last: line.last === null ? null : line.last / unit,
        start: unit === 1 ? start : Float64Array.from(start, (x) => x / unit),
        x: Float64Array.from(start, (x) => (line.size === 1 ? x / unit : x / unit + size / 2)), of,
        missing: missingOf(of, line.size > 1), made: new Map() };
    });
  }

  /** The x between which there are steps, of all lines; null while that is not known. */
  get extent(): [number, number] | null {
    if (this.asked !== this.question) return null;
    const ends = this.whole.flatMap(({ first, last }) => (first === null || last === null ? [] : [first, last]));
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
  }

  /** Whether what was asked for did not come. */
  get isStale() {
    return this.active && this.asked === "" && this.lines.length > 0;
  }

  /** What is drawn of the view: the finer of what is there. */
  get shown() {
    const { scene } = this;
    if (!scene || !this.active) return [];
    const [from, to] = scene.range();
    return scene.zoomed && this.near.length === this.whole.length && this.nearRange[0] <= from
        && this.nearRange[1] >= to ? this.near : this.whole;
  }

  /** What a chart shows of another run: its first line. */
  columnOf({ ofOptimizer, lines: [first] }: ChartSpec) {
    return (ofOptimizer ? this.scene?.prefix ?? "" : "") + first.column;
  }

  /** What a chart's values are held against; null: they are as they are, or what is held against is not there yet. */
  relativeFor(spec: ChartSpec): Relative | null {
    const { state } = this.store;
    const { baseline, against, axis } = state;
    if (!this.active || baseline === null || against === "off" || spec.id === "tensor") return null;
    const name = this.columnOf(spec);
    const { held } = this;
    const own = held.length === 1 && baseline === state.loaded?.run;
    const series = !own ? null : spec.ofTensors ? state.tensors[spec.ofTensors] : seriesOf(state);
    const line = own ? null : this.shown.find(({ runs }) => runs.length === held.length && runs.includes(baseline))
      ?? null;
    const values = series?.line(name)?.last ?? line?.of(name, "last") ?? line?.of(name, "mean") ?? null;
    if (!values) return null;
    const key = `${spec.id} ${axis}`;
    const known = this.relatives.get(key);
    if (known && known.of === values && known.against === against) return known.relative;
    const xOf = (step: number) => axisOf(state).xOf(step);
    const base = series
      ? { start: Array.from(series.step, xOf), values, end: xOf(series.stepLast[series.length - 1]) }
      : { start: line?.start ?? [], values, end: line?.last ?? -Infinity };
    const relative = relativeTo(base, against);
    this.relatives.set(key, { of: values, against, relative });
    return relative;
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
