/**
 * What of a series is drawn in a chart, as numbers on its axis.
 *
 * uPlot draws nothing where a series starts with NaN or holds an infinity, and bridges other NaNs. So it gets
 * finite numbers and `null` only; what was not finite is drawn as a tick at the upper edge.
 */

import { lowerBound } from "./sorted.ts";

import type { Line, NonfiniteAnswer, SeriesLike } from "./answers.ts";
import type { Relative } from "./baseline.ts";
import type { ChartSpec, LineSpec, Scale } from "./views.ts";

/** Where a line was not finite. */
export type Edge = { step: number[]; infinite: boolean[] };

/** A line's values in a series. */
export function lineOf(spec: ChartSpec, line: LineSpec, series: SeriesLike, prefix: string) {
  return series.line((spec.ofOptimizer ? prefix : "") + line.column);
}

/** A view of tensors before they have arrived. */
export const NOTHING: SeriesLike = { exact: true, bucketSteps: 1, length: 0, step: new Float64Array(),
  stepLast: new Float64Array(), line: () => null };

/**
 * Exponential moving average that starts without a bias, as TensorBoard's scalars: `weight` in [0, 1).
 * What is `null` stays `null` and leaves the average as it is.
 */
export function smoothed(values: (number | null)[], weight: number) {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

const LEAST_MISSING = 10; // usual distances between points
const LEAST_ALIKE = 4; // so many distances of one size are how a loop logs, not what was lost

/**
 * Points of a run's steps after which steps are missing, as where a log was damaged: no line leads over them. @param
 * irregular whether its loop logs at will: what is usual has several sizes then
 */
export function missingAfter(series: SeriesLike, irregular = false): Set<number> {
  const found = irregular ? missingAtWill : missing;
  const known = found.get(series) ?? findMissing(series, irregular);
  found.set(series, known);
  return known;
}

const [missing, missingAtWill] = [new WeakMap<SeriesLike, Set<number>>(), new WeakMap<SeriesLike, Set<number>>()];

function findMissing({ step, stepLast, length, bucketSteps }: SeriesLike, irregular: boolean): Set<number> {
  const distance = (at: number) => step[at + 1] - stepLast[at];
  const distances = Float64Array.from({ length: Math.max(0, length - 1) }, (_, at) => distance(at)).sort();
  const most = Math.max(LEAST_MISSING * distances[distances.length >> 1], bucketSteps);
  const alike = (size: number) => lowerBound(distances, 2 * size) - lowerBound(distances, size / 2);
  const missing: Set<number> = new Set();
  for (let at = 0; at + 1 < length; at++) {
    const size = distance(at);
    if (size > most && !(irregular && alike(size) >= LEAST_ALIKE)) missing.add(at);
  }
  return missing;
}

/**
 * Samples after which the run's own steps are missing: how far samples are apart says nothing, as recent history is
 * kept around what went wrong. @param missing points of `steps`, the run's own
 */
export function missingBetween(samples: SeriesLike, steps: SeriesLike, missing: Set<number>): Set<number> {
  const after = [...missing].map((at) => lowerBound(samples.step, steps.stepLast[at] + 1) - 1);
  return new Set(after.filter((at) => at >= 0 && at + 1 < samples.length));
}

/**
 * The points between which a line that was measured now and then has no values around a gap. @param index after which
 * steps are missing
 */
export function aroundGap(values: ArrayLike<number | null | undefined>, index: number): [number, number] {
  let [left, right] = [index, index + 1];
  while (left > 0 && values[left] == null) left -= 1;
  while (right < values.length - 1 && values[right] == null) right += 1;
  return [left, right];
}

export const ONTO_AXIS: Record<Scale, (value: number) => number | null> = {
  linear: (value) => (Number.isFinite(value) ? value : null),
  log2: (value) => (value > 0 && Number.isFinite(value) ? Math.log2(value) : null),
  log10: (value) => (value > 0 && Number.isFinite(value) ? Math.log10(value) : null),
  symlog: (value) => (Number.isFinite(value) ? Math.sign(value) * Math.log10(1 + Math.abs(value)) : null),
};

export type PlotDataOptions = {
  scale: Scale;
  prefix: string;
  /** weight of what came before, in [0, 1) */
  smoothing: number;
  /** whether plain lines other than the loss are smoothed too */
  smoothed?: boolean;
  xOf: (step: number) => number;
  /** what values are held against */
  relative?: Relative | null;
  /** points after which steps are missing, where the series' own distances do not show it */
  missing?: Set<number>;
};

/** Whether a line is smoothed: the loss always, other plain ones where that was asked for. */
export function isSmoothed({ smooth, stepped, dash, sparse, average }: LineSpec, smoothing: number, asked: boolean) {
  return smoothing > 0 && (smooth || (asked && !stepped && !dash && !sparse && !average));
}

/** Values smoothed as they are, on whatever axis they are drawn; what is not finite leaves the average as it is. */
export function smoothedOnto(values: ArrayLike<number>, smoothing: number, scale: Scale): (number | null)[] {
  const averages = smoothed(Array.from(values, ONTO_AXIS.linear), smoothing);
  return averages.map((value) => (value === null ? null : ONTO_AXIS[scale](value)));
}

/**
 * What uPlot gets for one chart: x, then for each line its maxima, minima and values (and the smoothed ones).
 *
 * @returns `edge`: where the first line was not finite
 */
export function plotData(spec: ChartSpec, series: SeriesLike, options: PlotDataOptions): {
  data: (number | null)[][];
  edge: Edge;
  missing: Set<number>;
} {
  const { scale, prefix, smoothing, xOf } = options;
  const { length } = series;
  const nothing = () => new Array(length).fill(null);
  const x = new Array<number>(length);
  const { relative } = options;
  const held = (values: ArrayLike<number>) =>
    relative ? Float64Array.from(values, (value, at) => relative(value, x[at])) : values;
  const convert = (values: ArrayLike<number>) => Array.from(held(values), ONTO_AXIS[scale]);
  for (let index = 0; index < length; index++) {
    x[index] = xOf(series.exact ? series.step[index] : (series.step[index] + series.stepLast[index]) / 2);
  }
  const data: (number | null)[][] = [x];
  for (const line of spec.lines) {
    const drawn = !relative || line === spec.lines[0]; // the baseline has the first line's values alone
    const column = drawn ? lineOf(spec, line, series, prefix) : null;
    const source = column && ((line.average && column.mean) || column.last);
    const values = source ? convert(source) : nothing();
    const reduced = column !== null && !series.exact && line.only !== "last";
    const averaged = isSmoothed(line, smoothing, !!options.smoothed);
    const raw = averaged && !reduced && !line.smooth ? values : nothing();
    const [least, greatest] = (line.spread ?? []).map((name) => series.line(name));
    // of all ranks
    if (least && greatest) data.push(convert(greatest.max ?? greatest.last), convert(least.min ?? least.last));
    else data.push(reduced ? convert(column.max) : raw,
        reduced && line.only !== "max" ? convert(column.min) : nothing());
    if (line.smooth) data.push(averaged && !reduced ? values : nothing()); // raw, behind; reduced, the band is that
    data.push(averaged && source ? smoothedOnto(held(source), smoothing, scale) : values);
  }
  return { data, edge: nonfiniteEdge(spec, series, prefix), missing: options.missing ?? missingAfter(series) };
}

function nonfiniteEdge(spec: ChartSpec, series: SeriesLike, prefix: string) {
  const edge: Edge = { step: [], infinite: [] };
  const [{ column: name }] = spec.lines;
  const column = spec.ofOptimizer ? series.line(prefix + name) : null;
  if (!column) return edge;
  const measured = series.exact ? measuredNan(name, series, prefix, null) : null;
  for (let index = 0; index < series.length; index++) {
    const value = column.last[index];
    const infinite = column.inf ? column.inf[index] > 0 : value === Infinity || value === -Infinity;
    const nan = column.nan ? column.nan[index] > 0 : Number.isNaN(value) && measured?.[index] === 1;
    if (!infinite && !nan) continue;
    edge.step.push((series.step[index] + series.stepLast[index]) / 2);
    edge.infinite.push(infinite);
  }
  return edge;
}

/**
 * Where a NaN among exact values was measured: elsewhere it says that nothing is known. The norm of gradients that are
 * finite, all of them, is no NaN.
 *
 * @returns 1 where it was; null: unknown
 */
export function measuredNan(column: string, series: SeriesLike, prefix: string, nonfiniteLoss: NonfiniteAnswer | null):
  | Uint32Array
  | null {
  if (column === "loss" && nonfiniteLoss) {
    const nan = new Uint32Array(series.length);
    nonfiniteLoss.step.forEach((step, index) => {
      const at = lowerBound(series.step, step);
      if (Number.isNaN(nonfiniteLoss.value[index]) && series.step[at] === step) nan[at] = 1;
    });
    return nan;
  }
  const measured = column === "grad_norm" ? series.line(`${prefix}nonfinite_tensors`)?.last : null;
  return measured ? Uint32Array.from(measured, (count) => Number(count > 0)) : null;
}

/** A line that was measured every so many steps, at the points of another series. */
export function sampledLine(samples: SeriesLike, column: string, series: SeriesLike): Line | null {
  const values = samples.line(column)?.last;
  if (!values) return null;
  const nothing = () => new Float64Array(series.length).fill(NaN);
  const [last, min, max, inf] = [nothing(), nothing(), nothing(), new Uint32Array(series.length)];
  for (let point = 0; point < series.length; point++) {
    for (let at = lowerBound(samples.step, series.step[point]);
      at < samples.length && samples.step[at] <= series.stepLast[point]; at++) {
      const value = values[at];
      if (Math.abs(value) === Infinity) inf[point] += 1;
      if (!Number.isFinite(value)) continue;
      last[point] = value;
      if (!(min[point] <= value)) min[point] = value;
      if (!(max[point] >= value)) max[point] = value;
    }
  }
  return { last, min, max, inf, mean: null, nan: null, known: null };
}
