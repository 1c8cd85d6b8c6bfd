/** The cursor in the charts: which step it is on, and the card with the values of that step. */

import { CursorCard } from "./cursorcard.ts";
import { eventsAt } from "./events.ts";
import { formatCount, formatNumber } from "./format.ts";
import { indexOfStep, lowerBound } from "./sorted.ts";
import { TimeAxis } from "./xaxis.ts";

import type { Series } from "./api.ts";
import type { StepValues } from "./answers.ts";
import type { Charts, Model } from "./charts.ts";
import type { Overlay } from "./overlay.ts";
import type { Loaded, RunData } from "./rundata.ts";
import type { Alignment } from "./xaxis.ts";

/** What the cursor moves over. */
export type CursorScene = {
  data: RunData;
  charts: Charts;
  overlay: Overlay | null;
  loaded: Loaded;
  pin: number | null;
  axis: Alignment;
  prefix: string;
  series: Series;
  tensors: Model["tensors"];
};

const FETCH_AFTER_MS = 30; // on a step

export class Cursor {
  scene: () => CursorScene | null;
  moved: (step: number | null) => void;
  card = new CursorCard();
  step: number | null = null;
  /** Where the pointer is, or the chart that keys are for, in pixels of the window; 0: nowhere. */
  y = 0;
  timer = 0;

  /** @param scene what it moves over; null: nothing is loaded */
  constructor(scene: () => CursorScene | null, moved: (step: number | null) => void) {
    this.scene = scene;
    this.moved = moved;
  }

  /** Puts it on a step, by pointer or key. */
  hover(step: number | null) {
    this.step = step;
    clearTimeout(this.timer);
    this.moved(step);
    const scene = this.scene();
    if (step === null || !scene) {
      scene?.charts.setCursor(null);
      this.card.hide();
      return;
    }
    this.show();
    if (!scene.data.steps.has(step)) this.timer = setTimeout(() => this.fetch(step), FETCH_AFTER_MS);
  }

  /** Puts it on a step by key. @param chart that the card is to be over @param below pixels from the chart's top */
  put(step: number, chart: Element, below: number) {
    this.y = chart.getBoundingClientRect().top + below;
    this.scene()?.charts.setCursor(step);
    this.hover(step);
  }

  /** Fetches the values of a step, and shows them if it is on it. */
  async fetch(step: number): Promise<StepValues | null> {
    const values = await this.scene()?.data.valuesOf(step) ?? null;
    if (values && this.step === step) this.show();
    return values;
  }

  /** Takes the card away; another place shows a cursor of its own. */
  leave() {
    this.step = null;
    this.card.hide();
  }

  /** Keeps the card beside the pointer. @param y of the window */
  follow(y: number) {
    this.y = y;
    if (this.step !== null) this.#place();
  }

  show() {
    const { step } = this;
    const scene = this.scene();
    if (step === null || !scene) return;
    const { charts, data, pin, axis, prefix, series, loaded: { overview, lanes } } = scene;
    const beyond = step > (overview.header.last_step ?? 0); // where only others go on
    const known = beyond ? { run: "", version: "", step, values: {}, events: [] }
      : data.steps.get(step) ?? seriesValues(series, step);
    const text = this.card.show(step, known, { beside: this.#valuesBeside(scene, step, known),
      title: beyond && axis !== "step" ? "After this run's end" : "", prefix,
      elapsed: new TimeAxis(series.exact ? series : overview).xOf(step)
        + (series.exact ? series.wallTime[0] - overview.wallTime[0] : 0), events: eventsAt(lanes, step),
      bucket: bucketText(series, step), pinned: pin === null ? null : data.steps.get(pin) ?? null });
    charts.setCursorText(text);
    this.#place();
  }

  #place() {
    const scene = this.scene();
    if (this.step === null || !scene) return;
    const { charts } = scene;
    this.card.place(charts.clientX(this.step), this.y || charts.root.getBoundingClientRect().top + 120);
  }

  /** What the other runs have at the cursor, in the view that it is over. */
  #valuesBeside({ overlay, charts, loaded, prefix, series: drawn, tensors }: CursorScene, step: number,
    known: StepValues | null) {
    if (!overlay?.active) return null;
    const focused = charts.panes.find(({ holder }) =>
      holder === document.activeElement && holder.matches(":focus-visible")
    );
    const spec = focused?.spec ?? charts.specAt(this.y);
    const name = (spec.ofOptimizer ? prefix : "") + spec.lines[0].column;
    const series = spec.ofTensors ? tensors[spec.ofTensors] : drawn;
    const line = series?.line(name)?.last;
    let at = series ? lowerBound(series.step, step + 1) - 1 : -1;
    if (spec.lines[0].sparse) { while (line && at > 0 && !Number.isFinite(line[at])) at -= 1; // the sample before
     }
    const own = known?.values[name] ?? (line && step <= (loaded.overview.header.last_step ?? 0) ? line[at] : null);
    return overlay.valuesAt(charts.xAxis.xOf(step), spec, typeof own === "number" ? own : null);
  }
}

/** What a series tells of a step, until the server's answer is there. */
function seriesValues(series: Series, step: number): StepValues | null {
  if (!series.exact) return null;
  const at = lowerBound(series.step, step);
  if (series.step[at] !== step) return null;
  const values: Record<string, any> = {};
  for (const [name, array] of series.arrays) values[name] = array[at];
  for (const name of ["lr", "micro_batches", "clip_coef", "skipped"]) values[name] ??= undefined;
  return { run: "", version: "", step, values, events: [] };
}

/** What of the loss the drawn point at a step stands for, where it stands for several. */
function bucketText(series: Series, step: number) {
  const at = series.exact ? -1 : indexOfStep(series, step);
  const loss = series.line("loss");
  if (at < 0 || !loss) return null;
  const steps = `Drawn here: steps ${formatCount(series.step[at])} to ${formatCount(series.stepLast[at])}`;
  if (!Number.isFinite(loss.min[at])) return `${steps}, no finite loss`;
  const [low, high] = [loss.min[at], loss.max[at]].map((value) => formatNumber(Number(value.toPrecision(4))));
  return `${steps}, loss ${low} to ${high}`;
}
