/** A histogram as a picture: bars by exponents, and below them what each format can represent. */

import { svg } from "./elements.ts";
import { formatCount, formatNumber, formatPower, formatScale } from "./format.ts";
import { exponentRange, exponentTicks, labelOf, nothingFinite } from "./losses.ts";

import type { FormatLimits, HistogramAnswer } from "./answers.ts";

const ROW = 24; // of a format
const [LEFT, RIGHT, FOOT] = [92, 12, 20];

type Frame = {
  /** of an exponent */
  x: (exponent: number) => number;
  width: number;
  /** of the bars and their axis */
  height: number;
};

/** Draws into `picture`, which fills its box. @param other scale, null: the step's alone */
export function drawBars(picture: SVGSVGElement, box: HTMLElement, histogram: HistogramAnswer, now: number,
  other: number | null) {
  const { counts, edges, formats } = histogram;
  const rows = formats.length * ROW;
  const width = Math.max(280, box.clientWidth);
  const height = Math.max(96, box.clientHeight - rows - 4);
  const [from, to] = exponentRange(counts.length ? counts.map(([bin]) => bin) : [100], edges.upper_exponent);
  const x = (exponent: number) =>
    LEFT + ((Math.max(from, Math.min(to, exponent)) - from) / (to - from)) * (width - LEFT - RIGHT);
  const frame = { x, width, height };
  const parts: SVGElement[] = exponentTicks(from, to, width - LEFT).flatMap((tick) => [
    svg("line", { class: "grid-line", x1: x(tick), x2: x(tick), y1: 6, y2: height + rows }),
    svg("text", { class: "tick", x: x(tick), y: height - 5, "text-anchor": "middle" }, formatPower(2, tick)),
  ]);
  parts.push(...countBars(histogram, frame));
  formats.forEach((format, row) => parts.push(...ranges(format, height + 2 + row * ROW, frame, now, other)));
  const float16 = formats.find(({ name }) => name === "float16");
  for (const limit of float16 ? [float16.flushes_to, float16.overflows_from] : []) {
    const at = x(Math.log2(limit / now));
    parts.push(svg("line", { class: "limit", x1: at, x2: at, y1: 6, y2: height + 4 }));
  }
  picture.setAttribute("width", String(width));
  picture.setAttribute("height", String(height + rows + 2));
  picture.replaceChildren(...parts);
}

function countBars(histogram: HistogramAnswer, { x, width, height }: Frame) {
  const { counts, edges } = histogram;
  const most = Math.max(1, ...counts.map(([, count]) => count));
  const floor = height - FOOT;
  const bars = counts.map(([bin, count]) => {
    const upper = bin + edges.upper_exponent;
    const tall = Math.max(1, (count / most) * (floor - 8));
    return svg("rect", { class: "bar-count", x: x(upper - 1) + 0.5, y: floor - tall,
      width: Math.max(1, x(upper) - x(upper - 1) - 1), height: tall },
      svg("title", {}, `${formatPower(2, upper - 1)} to ${formatPower(2, upper)}: ${formatCount(count)} elements`));
  });
  const empty = svg("text", { class: "nothing-finite", x: (LEFT + width) / 2, y: floor / 2, "text-anchor": "middle" },
    nothingFinite(histogram));
  const unit = svg("text", { class: "tick", x: LEFT - 8, y: floor - 2, "text-anchor": "end" }, "elements");
  return [...bars, unit, ...(counts.length ? [] : [empty])];
}

/** What a format can represent at the scales, in its row. */
function ranges(format: FormatLimits, top: number, { x }: Frame, now: number, other: number | null) {
  const label = labelOf(format);
  const range = (scale: number, kind: string, y: number) => {
    const limits = [format.flushes_to, format.smallest_normal, format.overflows_from].map((limit) => limit / scale);
    const [low, normal, high] = limits.map((limit) => x(Math.log2(limit)));
    const [zero, precise, over] = limits.map((limit) => formatNumber(limit));
    const say = `${label} at a scale of ${formatScale(scale)}: flushes to zero up to ${zero}, loses precision up to ${
      precise
    }, overflows from ${over}`;
    return svg("g", { class: `range range-${kind}` },
      svg("rect", { class: "range-faint", x: low, y, width: Math.max(0, normal - low), height: 7 }),
      svg("rect", { class: "range-full", x: normal, y, width: Math.max(0, high - normal), height: 7 }),
      svg("title", {}, say));
  };
  return [
    svg("text", { class: "format-label", x: LEFT - 8, y: top + 14, "text-anchor": "end" }, label),
    range(now, "now", top + 3),
    ...(other === null || other === now ? [] : [range(other, "other", top + 13)]),
  ];
}
