/** The y axis of a chart: range, ticks and labels, linear or logarithmic. */

import { linearLabels, linearTicks, log10Labels, log10Ticks, log2Labels, log2Ticks } from "./format.ts";

import type { Scale } from "./views.ts";

/**
 * From the least to the greatest value on the axis, with some room.
 * @param min null: there is no value @param own what the chart has when nobody chose another
 */
export function yRange(scale: Scale, min: number | null, max: number | null, own: Scale): [number, number] {
  if (min === null || max === null) return own === "log2" ? [0, 4] : [0, 1];
  switch (scale) {
    case "log2":
      return [Math.floor(min) - 0.7, Math.ceil(max) + 0.7];
    case "log10": {
      const pad = Math.max(0.08, (max - min) * 0.08);
      return [min - pad, max + pad];
    }
    default: {
      const span = max - min || Math.abs(max) * 0.2 || 1;
      return [min - span * 0.07, max + span * 0.1];
    }
  }
}

const FLATTENED = 8; // times the height that nearly all of the values need
const LEAST_VALUES = 40;

/** Whether nearly all of some values have less than an eighth of a height. */
export function isFlattened(values: number[], height: number) {
  const sorted = Float64Array.from(values).sort();
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))];
  return sorted.length > 0 && height >= FLATTENED * (at(0.95) - at(0.05));
}

/**
 * The range without the outliers that flatten the rest, null where there are none: nearly all of the values then have
 * less than an eighth of the height. What a curve begins with is no outlier. On a linear axis only.
 * @param curves points in view, each with its values on the axis
 */
export function withoutOutliers(...curves: number[][][]): [number, number] | null {
  const sorted = Float64Array.from(curves.flat(2)).sort();
  if (sorted.length < LEAST_VALUES) return null;
  const at = (share: number) => sorted[Math.round(share * (sorted.length - 1))];
  const [low, high] = [at(0.05), at(0.95)];
  const inner = high - low;
  const [least, greatest] = [sorted[0], sorted[sorted.length - 1]];
  if (!(inner > 0) || greatest - least < FLATTENED * inner) return null;
  let [from, to] = [Math.max(least, low - inner / 2), Math.min(greatest, high + inner / 2)];
  for (const points of curves) {
    for (const values of points) {
      if (values.length && values.every((value) => value >= from && value <= to)) break;
      [from, to] = [Math.min(from, ...values), Math.max(to, ...values)];
    }
  }
  return greatest - least < FLATTENED * (to - from) / 2 ? null : [from, to];
}

/** @param height pixels */
export function yTicks(scale: Scale, min: number, max: number, height: number) {
  const count = Math.max(3, Math.floor(height / 28));
  switch (scale) {
    case "log2":
      return log2Ticks(min, max, count);
    case "log10":
      return log10Ticks(min, max, count);
    case "symlog":
      return symlogTicks(min, max, count);
    default:
      return someTicks(min, max, count);
  }
}

/** One alone gives no measure: then twice as many may stand there. */
function someTicks(min: number, max: number, count: number) {
  const ticks = linearTicks(min, max, count);
  return ticks.length > 1 ? ticks : linearTicks(min, max, 2 * count);
}

function fromSymlog(tick: number) {
  return Math.sign(tick) * (10 ** Math.abs(tick) - 1);
}

/** 0 and powers of ten on both sides; where they are too few, what a linear axis has. */
function symlogTicks(min: number, max: number, count: number) {
  const onto = (value: number) => Math.sign(value) * Math.log10(1 + Math.abs(value));
  const [low, high] = [fromSymlog(min), fromSymlog(max)];
  const powers = Array.from({ length: 40 }, (_, exponent) => 10 ** exponent);
  const every = [...powers.map((power) => -power).reverse(), 0, ...powers].filter((value) =>
    value >= low && value <= high
  );
  const stride = Math.ceil(every.length / count);
  const zero = every.indexOf(0);
  const ticks = every.filter((_, at) => (at - zero) % stride === 0);
  return (ticks.length < 3 ? someTicks(low, high, count) : ticks).map(onto);
}

export function yLabels(scale: Scale, ticks: number[]) {
  switch (scale) {
    case "log2":
      return log2Labels(ticks);
    case "log10":
      return log10Labels(ticks);
    case "symlog":
      return log10Labels(ticks.map((tick) => Math.log10(Math.abs(fromSymlog(tick))))).map((label, at) =>
        ticks[at] === 0 ? "0" : (ticks[at] < 0 ? "−" : "") + label
      );
    default:
      return linearLabels(ticks);
  }
}
