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

/** @param height pixels */
export function yTicks(scale: Scale, min: number, max: number, height: number) {
  const count = Math.max(3, Math.floor(height / 28));
  switch (scale) {
    case "log2":
      return log2Ticks(min, max, count);
    case "log10":
      return log10Ticks(min, max, count);
    default:
      return linearTicks(min, max, count);
  }
}

export function yLabels(scale: Scale, ticks: number[]) {
  switch (scale) {
    case "log2":
      return log2Labels(ticks);
    case "log10":
      return log10Labels(ticks);
    default:
      return linearLabels(ticks);
  }
}
