/**
 * What of a series is drawn in a chart, as numbers on its axis.
 *
 * uPlot draws nothing where a series starts with NaN or holds an infinity, and bridges other NaNs. So it gets
 * finite numbers and `null` only; what was not finite is drawn as a tick at the upper edge.
 */

import { lowerBound } from "./sorted.ts";

import type { Line, NonfiniteAnswer, SeriesLike } from "./answers.ts";
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

const LEAST_MISSING = 10; // usual distances between points: loops that log at will have longer ones too

/** Points after which steps are missing, as where a log was damaged: no line leads over them. */
export function missingAfter({ step, stepLast, length, bucketSteps }: SeriesLike): Set<number> {
  const distance = (at: number) => step[at + 1] - stepLast[at];
  const distances = Float64Array.from({ length: Math.max(0, length - 1) }, (_, at) => distance(at)).sort();
  const most = Math.max(LEAST_MISSING * distances[distances.length >> 1], bucketSteps);
  const missing: Set<number> = new Set();
  for (let at = 0; at + 1 < length; at++) if (distance(at) > most) missing.add(at);
  return missing;
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
};

/**
 * What uPlot gets for one chart: x, then for each line its maxima, minima and values (and the smoothed ones).
 *
 * @param options
 * `beside`: other runs are drawn too, so that single steps would cover them: plain lines are smoothed, what they were
 * is faint
 * @returns
 * `edge`: where the first line was not finite
 */
export function plotData(spec: ChartSpec, series: SeriesLike,
  { scale, prefix, smoothing, xOf, beside = false }: { scale: Scale; prefix: string; smoothing: number;
    xOf: (step: number) => number; beside?: boolean }): { data: (number | null)[][]; edge: Edge;
  missing: Set<number> } {
  const { length } = series;
  const map = ONTO_AXIS[scale];
  const convert = (values: ArrayLike<number>) => Array.from(values, map);
  const nothing = () => new Array(length).fill(null);
  const x = new Array(length);
  for (let index = 0; index < length; index++) {
    x[index] = xOf(series.exact ? series.step[index] : (series.step[index] + series.stepLast[index]) / 2);
  }
  const data = [x];
  for (const line of spec.lines) {
    const column = lineOf(spec, line, series, prefix);
    const values = column ? convert((line.average && column.mean) || column.last) : nothing();
    const reduced = column !== null && !series.exact && line.only !== "last";
    const averaged = smoothing > 0
      && (line.smooth || ((reduced || beside) && !line.stepped && !line.dash && !line.sparse && !line.average));
    const raw = averaged && !reduced && !line.smooth ? values : nothing();
    const [least, greatest] = (line.spread ?? []).map((name) => series.line(name));
    // of all ranks
    if (least && greatest) data.push(convert(greatest.max ?? greatest.last), convert(least.min ?? least.last));
    else data.push(reduced ? convert(column.max) : raw,
        reduced && line.only !== "max" ? convert(column.min) : nothing());
    if (line.smooth) data.push(averaged && !reduced ? values : nothing()); // raw, behind; reduced, the band is that
    data.push(averaged ? smoothed(values, smoothing) : values);
  }
  return { data, edge: nonfiniteEdge(spec, series, prefix), missing: missingAfter(series) };
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
 * Where a NaN among exact values was measured: elsewhere it says that nothing is known.
 *
 * @returns 1 where it was; null: not told
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
  return measured ? Uint32Array.from(measured, (count) => Number(!Number.isNaN(count))) : null;
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
