/** The x axis that all charts share: steps, seconds since the first step, or updates done. */

import { counted, formatCount, formatElapsed, linearTicks, stepLabels, timeLabels, timeTicks } from "./format.ts";
import { lowerBound } from "./sorted.ts";

import type { Series } from "./api.ts";
import type { Values } from "./answers.ts";

/** Steps onto the x axis and back. */
export type XAxis = { xOf: (step: number) => number; stepOf: (x: number) => number };

/** How points on the x axis are written. */
export type Places = {
  head: string;
  /** the ends of what a point stands for */
  write: (from: number, to: number) => string;
  /** how much a point stands for */
  span: (size: number) => string;
};

/** What the x axis counts. */
export type Alignment = "step" | "time" | "updates";

/** Steps to seconds since the start and back, by what is known of when steps closed. A clock set back stands still. */
export class TimeAxis {
  steps: Float64Array<ArrayBuffer>;
  seconds: Float64Array<ArrayBuffer>;

  /**
   * @param series of the whole run @param updates to these in place of seconds: updates done by the end of each entry
   * @param pauses the step before each, and the seconds that are left out
   */
  constructor(series: Series, updates?: Values, pauses: [number, number][] = []) {
    this.steps = Float64Array.from(updates ? series.stepLast : series.step);
    this.seconds = new Float64Array(series.length);
    const origin = updates ? 0 : series.wallTime[0] ?? 0;
    const known = updates ?? series.wallTime;
    let [latest, left, passed] = [0, 0, 0];
    for (let index = 0; index < series.length; index++) {
      while (passed < pauses.length && pauses[passed][0] < this.steps[index]) left += pauses[passed++][1];
      latest = Math.max(latest, known[index] - origin - left);
      this.seconds[index] = latest;
    }
  }

  xOf(step: number) {
    return interpolated(this.steps, this.seconds, step);
  }

  stepOf(x: number) {
    return interpolated(this.seconds, this.steps, x);
  }
}

/** Linear between known points; beyond them as from the first to the last. */
function interpolated(from: Float64Array, to: Float64Array, at: number) {
  if (!from.length) return at;
  if (from.length === 1) return to[0];
  const last = from.length - 1;
  if ((at < from[0] || at > from[last]) && from[last] > from[0]) {
    const end = at > from[last] ? last : 0;
    return to[end] + ((at - from[end]) / (from[last] - from[0])) * (to[last] - to[0]);
  }
  const right = Math.max(1, Math.min(last, lowerBound(from, at)));
  const span = from[right] - from[right - 1];
  if (span <= 0) return to[right];
  return to[right - 1] + ((at - from[right - 1]) / span) * (to[right] - to[right - 1]);
}

export const STEPS_AXIS = { xOf: (step: number) => step, stepOf: (x: number) => x };

/** @param overview of the whole run @param pauses that a time axis leaves out */
export function xAxisOf(axis: Alignment, overview: Series, pauses: [number, number][] = []): XAxis {
  const updates = axis === "updates" ? overview.line("updates") : null;
  return axis === "time" ? new TimeAxis(overview, undefined, pauses)
    : updates ? new TimeAxis(overview, updates.max) : STEPS_AXIS;
}

const [TICK_WIDTH, DIGIT_WIDTH] = [100, 8]; // pixels

/** @param time whether it shows seconds @param width pixels */
export function xTicks(time: boolean, min: number, max: number, width: number) {
  const each = time ? TICK_WIDTH : Math.max(TICK_WIDTH, DIGIT_WIDTH * formatCount(max).length);
  const count = Math.max(2, Math.floor(width / each));
  return time ? timeTicks(min, max, count) : linearTicks(min, max, count, 1);
}

export function xTickLabels(time: boolean, ticks: number[]) {
  return time ? timeLabels(ticks) : stepLabels(ticks);
}

/** How points on it are written, in words. @param single whether each stands for one step */
export function placesOf(axis: Alignment, single: boolean): Places {
  if (axis === "time")
    return { head: "Time since the first step", write: (from) => formatElapsed(from),
      span: (size) => formatElapsed(size) };
  const [head, unit] = axis === "step" ? ["Step", "step"] : ["Updates done", "update"];
  return { head: axis === "step" && !single ? "Steps" : head, span: (size) => counted(size, unit),
    write: (from, to) => (from === to ? formatCount(from) : `${formatCount(from)} to ${formatCount(to)}`) };
}
