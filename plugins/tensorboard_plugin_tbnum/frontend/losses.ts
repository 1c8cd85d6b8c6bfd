/**
 * What a tensor's histogram by exponents says of number formats: how much of it one would flush to zero or let
 * overflow, at a loss scale. Pure, but for the table at the end.
 */

import { element } from "./elements.ts";
import { formatCount, formatNumber, formatPower, formatScale } from "./format.ts";

import type { FormatLimits, HistogramAnswer } from "./answers.ts";

const LABELS = { float16: "float16", bfloat16: "bfloat16", float8_e4m3fn: "float8 e4m3", float8_e5m2: "float8 e5m2" };
/**
 * What of a histogram a format at a scale turns to zero, and what overflows: shares of all elements, infinities among
 * those that overflow. Exact where the scale is a power of two; else the bin that a limit cuts counts in proportion.
 */
export function lost(histogram: HistogramAnswer, format: FormatLimits, scale: number) {
  const { counts, inf, edges } = histogram;
  const total = totalOf(histogram);
  if (!total) return { zero: 0, overflow: 0 };
  const [low, high] = [Math.log2(format.flushes_to / scale), Math.log2(format.overflows_from / scale)];
  let [flushed, over] = [0, 0];
  for (const [bin, count] of counts) {
    const upper = bin + edges.upper_exponent;
    flushed += count * Math.max(0, Math.min(1, low - (upper - 1)));
    // The least that overflows lies just above the bin's edge, or a rounding below a power of two.
    over += count * Math.max(0, Math.min(1, upper - high > 0.999 ? 1 : upper - high < 0.001 ? 0 : upper - high));
  }
  return { zero: flushed / total, overflow: (over + inf) / total };
}

/** The exponents worth showing: all that are counted, and where formats give up, with room. @param upper of bin 0 */
export function exponentRange(bins: number[], upper: number): [number, number] {
  const [low, high] = [Math.min(...bins) + upper - 1, Math.max(...bins) + upper];
  return [Math.min(low, -34) - 2, Math.max(high, 4) + 2];
}

/** Even exponents where ticks stand, some 44 pixels apart or more. */
export function exponentTicks(from: number, to: number, width: number) {
  const stride = [2, 4, 8, 16].find((step) => (to - from) / step < width / 44) ?? 32;
  const first = Math.ceil(from / stride) * stride;
  return Array.from({ length: Math.floor((to - first) / stride) + 1 }, (_, at) => first + at * stride);
}

/** A share in percent as exact as it is worth. */
export function percent(share: number) {
  if (share === 0) return "0 %";
  if (share < 1e-6) return "< 0.0001 %";
  return `${formatNumber(Number((100 * share).toPrecision(3)))} %`;
}

/** From the least to the greatest that was counted: as measured, else by the edges of their bins. */
export function magnitudes({ counts, edges, low, high }: HistogramAnswer) {
  if (!counts.length) return "";
  const bins = counts.map(([bin]) => bin);
  const text = (value: number | null,
    exponent: number) => (value === null ? formatPower(2, exponent + edges.upper_exponent)
      : formatNumber(Number(value.toPrecision(3))));
  return `; magnitudes ${text(low, Math.min(...bins) - 1)} to ${text(high, Math.max(...bins))}`;
}

/** Why there is nothing to draw a histogram of. */
export function nothingFinite({ inf, nan }: HistogramAnswer) {
  return inf || nan ? `No finite value but zero: ∞ ${formatCount(inf)}, NaN ${formatCount(nan)}`
    : "Every value is zero";
}

/** How a format is called. */
export function labelOf({ name }: FormatLimits) {
  return LABELS[name as keyof typeof LABELS] ?? name;
}

/** How many elements there are, finite or not. */
function totalOf({ counts, zero, inf, nan }: HistogramAnswer) {
  return counts.reduce((sum, [, count]) => sum + count, zero + inf + nan);
}

/** What each format loses at the step's scale and at another one, null: at the step's alone. */
export function lossesTable(histogram: HistogramAnswer, now: number, other: number | null): HTMLElement[] {
  const { zero, inf, nan, formats } = histogram;
  const scales = other === null ? [now] : [now, other];
  const total = totalOf(histogram);
  const cell = (share: number) => element("td", share > 0.01 ? "much" : "", percent(share));
  const rows = formats.map((format) =>
    element("tr", { "data-format": format.name }, element("th", { scope: "row" }, labelOf(format)),
      ...scales.map((scale) => lost(histogram, format, scale)).flatMap(({ zero: flushed, overflow }) =>
        [cell(flushed), cell(overflow)]
      ))
  );
  const head = (kind: string, scale: number) =>
    element("th", { colspan: 2, scope: "colgroup" }, element("span", `range-key range-key-${kind}`),
      `at ${formatScale(scale)}`);
  const column = (text: string) => element("th", { scope: "col" }, text);
  return [
    element("table", "small-table losses-table",
      element("thead", {},
        element("tr", {}, element("td"), ...scales.map((scale, at) => head(at ? "other" : "now", scale))),
        element("tr", {}, element("td"), ...scales.flatMap(() => [column("to zero"), column("overflow")]))),
      element("tbody", {}, ...rows)),
    element("p", "histogram-more",
      `${formatCount(total)} elements; zero already ${percent(total ? zero / total : 0)}; ∞ ${formatCount(inf)}, NaN ${
        formatCount(nan)
      }${magnitudes(histogram)}`),
  ];
}

/** The same in a sentence. */
export function lossesText(histogram: HistogramAnswer, now: number) {
  const words = histogram.formats.map((format) => {
    const { zero, overflow } = lost(histogram, format, now);
    return `${labelOf(format)}: ${percent(zero)} to zero, ${percent(overflow)} overflow`;
  });
  return `At the loss scale ${formatScale(now)}: ${words.join("; ")}.`;
}
