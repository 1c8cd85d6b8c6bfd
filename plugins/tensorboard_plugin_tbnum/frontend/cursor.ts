/** The cursor in the charts: which step it is on, and the card with the values of that step. */

import { CursorCard } from "./cursorcard.ts";
import { eventsAt } from "./events.ts";
import { formatClock, formatCount, formatNumber } from "./format.ts";
import { indexOfStep, lowerBound } from "./sorted.ts";
import { axisOf, prefixOf, seriesOf } from "./state.ts";
import { TimeAxis } from "./xaxis.ts";

import type { StepValues } from "./answers.ts";
import type { Series } from "./api.ts";
import type { Charts } from "./charts.ts";
import type { RunData } from "./rundata.ts";
import type { RunsInCharts } from "./runsincharts.ts";
import type { PanelStore } from "./state.ts";

const FETCH_AFTER_MS = 30; // on a step

export class Cursor {
  card = new CursorCard();
  timer = 0;

  constructor(readonly store: PanelStore, readonly charts: Charts, readonly data: RunData,
    readonly runs: RunsInCharts) {
    store.watch(["cursor", "inCharts", "known"], () => {
      const { cursor: step, known } = store.state;
      clearTimeout(this.timer);
      if (step !== null && !known.steps.has(step)) this.timer = setTimeout(() => data.valuesOf(step), FETCH_AFTER_MS);
    });
    store.watch(["cursor", "inCharts", "known", "pin"], () => this.#show());
    store.watch(["cursorY"], () => {
      if (!this.card.element.hidden) this.#place();
    });
    charts.root.addEventListener("pointermove", ({ clientY }) => store.set({ cursorY: clientY }));
  }

  #show() {
    const { state } = this.store;
    const { cursor: step, loaded, pin, axis, known: { steps } } = state;
    if (step === null || !loaded || !state.inCharts) return this.card.hide();
    const { overview, lanes } = loaded;
    const series = seriesOf(state);
    const beyond = step > (overview.header.last_step ?? 0); // where only others go on
    const known = beyond ? { run: "", version: "", step, values: {}, events: [] }
      : steps.get(step) ?? seriesValues(series, step);
    const text = this.card.show(step, known, { beside: this.#valuesBeside(step, known),
      title: beyond && axis !== "step" ? "After this run's end" : "", prefix: prefixOf(state),
      elapsed: new TimeAxis(series.exact ? series : overview).xOf(step)
        + (series.exact ? series.wallTime[0] - overview.wallTime[0] : 0), events: eventsAt(lanes, step),
      clock: formatClock(beyond ? null : wallTimeOf(series, known, step)), bucket: bucketText(series, step),
      pinned: pin === null ? null : steps.get(pin) ?? null });
    this.charts.setCursorText(text);
    this.#place();
  }

  #place() {
    const { charts, store: { state: { cursor, cursorY } } } = this;
    if (cursor === null) return;
    this.card.place(charts.clientX(cursor), cursorY || charts.root.getBoundingClientRect().top + 120);
  }

  /** What the other runs have at the cursor, in the view that it is over. */
  #valuesBeside(step: number, known: StepValues | null) {
    const { charts, runs: { overlay }, store: { state } } = this;
    if (!overlay?.data.active) return null;
    const focused = charts.panes.find(({ holder }) =>
      holder === document.activeElement && holder.matches(":focus-visible")
    );
    const spec = focused?.spec ?? charts.specAt(state.cursorY);
    const name = (spec.ofOptimizer ? prefixOf(state) : "") + spec.lines[0].column;
    const series = spec.ofTensors ? state.tensors[spec.ofTensors] : seriesOf(state);
    const line = series?.line(name)?.last;
    let at = series ? lowerBound(series.step, step + 1) - 1 : -1;
    // of what is measured now and then, the sample before
    while (spec.lines[0].sparse && line && at > 0 && !Number.isFinite(line[at])) at -= 1;
    const last = state.loaded?.overview.header.last_step ?? 0;
    const own = known?.values[name] ?? (line && step <= last ? line[at] : null);
    return overlay.valuesAt(axisOf(state).xOf(step), spec, typeof own === "number" ? own : null);
  }
}

/** When a step closed, in seconds since the epoch; of a bucket, its first step. */
function wallTimeOf(series: Series, known: StepValues | null, step: number): number | null {
  const recorded = known?.values.wall_time;
  const at = indexOfStep(series, step);
  return typeof recorded === "number" ? recorded : at >= 0 ? series.wallTime[at] : null;
}

/** What a series has of a step, until the server's answer is there. */
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
