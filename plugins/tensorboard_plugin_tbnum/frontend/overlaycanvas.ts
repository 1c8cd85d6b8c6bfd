/**
 * What is drawn on the canvases of runs beside the current one: lines and bands, the numbers at their ends, and their
 * skips.
 */

import { FONT, styled } from "./elements.ts";
import { formatCount } from "./format.ts";
import { lowerBound } from "./sorted.ts";

import type { Values } from "./answers.ts";
import type { Relative } from "./baseline.ts";
import type { Plot } from "./plot.ts";
import type { ChartSpec } from "./views.ts";

/** One line: a run, or runs of one setting. */
export type OverlayLine = {
  runs: string[];
  /** whether any of them skipped a step */
  skips: boolean;
  /** of a bucket, in the server's unit of x; 1: each x for itself */
  size: number;
  colors: string[];
  dash: number[];
  /** x of the ends; null without steps */
  first: number | null;
  last: number | null;
  /** x where each of its runs ends, in order */
  ends: number[];
  /** x where each bucket begins, and of its middle */
  start: Values;
  x: Values;
  of: (column: string, kind: string) => Values | null;
  /** points after which steps are missing */
  missing: Set<number>;
  /** by chart and axis */
  made: Map<string, OverlayPoints>;
};

/** A line's points on a chart's axis, and as they came. */
export type OverlayPoints = {
  values: (number | null)[] | null;
  bands: { low: any; high: any; alpha: number }[];
  raw: Values | null;
  /** what they are held against */
  relative: Relative | null;
};

/** Where a line ends, in pixels of its canvas. */
export type LineEnd = { x: number; y: number; text: string; color: string };

/** How many of a line's runs go as far as an x. */
export function aliveAt({ ends }: Pick<OverlayLine, "ends">, x: number) {
  return ends.length - lowerBound(ends, x);
}

const MOST_NUMBERED = 10; // lines in a chart; of more the numbers would not stand where their lines end
const LEAD_FROM = 3; // pixels that a number may stand from its line's end without being led to
const NUMBER_GAP = 11; // pixels from a line's end, so that a mark there leaves the number free

/** From values to pixels of a plot's canvas. */
type Places = { px: (x: number) => number; py: (y: number) => number; from: number; to: number };

function placesIn({ bbox, scales: { x, y } }: Plot): Places {
  const [x0, x1, y0, y1] = [x.min ?? 0, x.max ?? 1, y.min ?? 0, y.max ?? 1];
  return { px: (at) => bbox.left + ((at - x0) / (x1 - x0)) * bbox.width,
    py: (at) => bbox.top + (1 - (at - y0) / (y1 - y0)) * bbox.height, from: x0, to: x1 };
}

/**
 * @param points of each
 * @param dark 0 or 1 @param looked the line that a person looks at: the others are faint
 * @returns where lines end, for their numbers
 */
export function drawRuns(plot: Plot, spec: ChartSpec, lines: OverlayLine[], points: OverlayPoints[], dark: number,
  looked: number | null): LineEnd[] {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const places = placesIn(plot);
  const ends = [] as LineEnd[];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineJoin = "round";
  // many bands would hide each other
  const lightness = Math.min(1, 3 / Math.max(1, lines.filter(({ runs }) => runs.length > 1).length));
  const order = lines.map((_, at) => at).sort((a, b) => Number(a === looked) - Number(b === looked));
  for (const at of order) {
    const line = lines[at];
    const { values, bands } = points[at];
    if (!values) continue;
    const color = line.colors[dark];
    const faded = looked !== null && looked !== at;
    const within: [number, number] = [Math.max(0, lowerBound(line.x, places.from) - 1),
      Math.min(line.x.length - 1, lowerBound(line.x, places.to))];
    ctx.fillStyle = color;
    for (const { low, high, alpha } of bands) {
      ctx.globalAlpha = faded ? alpha / 5 : at === looked ? alpha : alpha * lightness;
      fillBetween(ctx, line, low, high, ...within, places.px, places.py);
    }
    ctx.globalAlpha = faded ? 0.22 : 1;
    ctx.strokeStyle = color;
    // of a pixel: wider ones that zigzag take fifty times as long
    ctx.lineWidth = (at === looked ? 2.5 : line.runs.length > 1 ? 1.75 : 1) * ratio;
    let last = strokeRun(ctx, spec, line, values, within, places);
    if (last < 0 || faded) continue;
    while (last > within[0] && (values[last] === null || line.x[last] > places.to)) last -= 1;
    const value = values[last];
    if (value !== null)
      ends.push({ x: Math.min(places.px(line.x[last]), bbox.left + bbox.width), y: places.py(value),
        text: String(at + 2), color });
  }
  ctx.restore();
  return ends;
}

/** A run's line, or the mean of several. @returns its last point, -1 where there is none */
function strokeRun(ctx: CanvasRenderingContext2D, spec: ChartSpec, line: OverlayLine, values: (number | null)[],
  [from, to]: [number, number], { px, py }: Places) {
  const ratio = devicePixelRatio || 1;
  const [{ sparse, stepped }] = spec.lines;
  ctx.setLineDash(line.dash.map((length) => length * ratio));
  ctx.beginPath();
  let [open, last, whole] = [false, -1, true];
  for (let index = from; index <= to; index++) {
    const value = values[index];
    if (whole && line.runs.length > 1 && aliveAt(line, line.x[index]) < line.runs.length) {
      whole = false; // from here on a mean of those that are left: dotted
      ctx.stroke();
      ctx.beginPath();
      ctx.setLineDash([1.5 * ratio, 3 * ratio]);
      const before = last < 0 ? null : values[last];
      if (open && before !== null) ctx.moveTo(px(line.x[last]), py(before));
    }
    if (line.missing.has(index - 1)) open = false;
    if (value === null) {
      if (!sparse) open = false;
      continue;
    }
    const [x, y] = [px(line.x[index]), py(value)];
    if (open && stepped && line.runs.length === 1) ctx.lineTo(x, py(values[last] as number));
    if (open) ctx.lineTo(x, y);
    else {
      ctx.moveTo(x, y);
      if (values[index + 1] == null || line.missing.has(index)) ctx.lineTo(x + ratio, y); // one alone is a dot
    }
    [open, last] = [true, index];
  }
  ctx.stroke();
  return last;
}

/**
 * Numbers at the ends of lines, as in the legend: colour is not needed to distinguish them. One that had to move is led
 * to from the end of its line.
 */
export function drawEndNumbers({ ctx, bbox }: Plot, ends: LineEnd[]) {
  if (ends.length > MOST_NUMBERED) return;
  const ratio = devicePixelRatio || 1;
  const gap = 10.5 * ratio;
  ctx.save();
  ctx.font = `600 ${10 * ratio}px ${FONT}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const { backgroundColor: ground, color } = getComputedStyle(document.body);
  const wished = ends.map((end) => ({ ...end, from: end.y }));
  const room: [number, number] = [bbox.top + gap / 2, bbox.top + bbox.height - gap / 2];
  for (const { x, y, from, text, color: own } of apart(wished, 13 * ratio, gap, ...room)) {
    if (Math.abs(y - from) > LEAD_FROM * ratio) {
      ctx.strokeStyle = own;
      ctx.lineWidth = ratio;
      ctx.beginPath();
      ctx.moveTo(x + ratio, from);
      ctx.lineTo(x + (NUMBER_GAP - 2) * ratio, y);
      ctx.stroke();
    }
    ctx.lineWidth = 3 * ratio;
    ctx.strokeStyle = ground;
    ctx.strokeText(text, x + NUMBER_GAP * ratio, y);
    ctx.fillStyle = color;
    ctx.fillText(text, x + NUMBER_GAP * ratio, y);
  }
  ctx.restore();
}

/** Where runs part from the baseline: a line in the colour of each. @param partings `x`: on the axis */
export function drawPartings({ ctx, bbox, scales }: Plot, partings: { x: number; color: string; text: string }[]) {
  const ratio = devicePixelRatio || 1;
  const { min = 0, max = 1 } = scales.x;
  ctx.save();
  ctx.font = `${10 * ratio}px ${FONT}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash([5 * ratio, 3 * ratio]);
  partings.forEach(({ x, color, text }, row) => {
    const at = bbox.left + ((x - Number(min)) / (Number(max) - Number(min))) * bbox.width;
    if (at < bbox.left || at > bbox.left + bbox.width) return;
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(text, at + 4 * ratio, bbox.top + (2 + 12 * row) * ratio);
  });
  ctx.restore();
}

/** Up to so many lanes of skips have their names beside them. */
export const MOST_NAMED_LANES = 5;

/**
 * Skips of runs, a lane each.
 *
 * @param names of the runs, with their numbers @param room pixels; `range`: x in view
 * @returns how many are in view, of each
 */
export function drawSkips(context: CanvasRenderingContext2D, lines: OverlayLine[], names: string[],
  faint: (at: number) => boolean,
  { left, width, full, height, lane, range: [from, to], dark }: { left: number; width: number; full: number;
    height: number; lane: number; range: [number, number]; dark: number }): number[] {
  const colour = styled();
  context.clearRect(0, 0, full, height);
  const counts = lines.map((line, row) => {
    const broken = skipsOf(line);
    const top = (height - lines.length * lane) / 2 + row * lane;
    context.globalAlpha = faint(row) ? 0.25 : 1;
    context.fillStyle = colour("--grid");
    if (lane > 5) context.fillRect(left, top + lane / 2 - 0.5, width, 1);
    context.fillStyle = line.colors[dark];
    let count = 0;
    for (let at = Math.max(0, lowerBound(line.x, from) - 1); broken && at < line.x.length && line.x[at] <= to; at++) {
      if (!(broken[at] > 0) || line.x[at] < from) continue;
      count += 1;
      context.fillRect(left + ((line.x[at] - from) / (to - from)) * width - 1, top, 2, lane - 1);
    }
    return count;
  });
  context.globalAlpha = 1;
  context.fillStyle = colour("--text-2");
  context.font = `11px ${FONT}`;
  context.textBaseline = "middle";
  if (lines.length <= MOST_NAMED_LANES) {
    names.forEach((name, row) => {
      const middle = (height - lines.length * lane) / 2 + (row + 0.5) * lane;
      context.fillText(fitting(context, name, left - 26), 18, middle + 0.5);
    });
  } else context.fillText(`${formatCount(lines.length)} other runs`, 18, height / 2 + 0.5);
  if (!counts.some((count) => count > 0)) context.fillText("no skips in view", left + 8, height / 2 + 0.5);
  return counts;
}

/** A name that is cut in its middle, where it says least, to fit. */
function fitting(context: CanvasRenderingContext2D, text: string, room: number) {
  const middle = (cut: number) => {
    const kept = text.length - cut;
    return `${text.slice(0, Math.ceil(kept * 0.35))}…${text.slice(text.length - Math.floor(kept * 0.65))}`;
  };
  if (context.measureText(text).width <= room) return text;
  let cut = 1;
  while (cut < text.length - 2 && context.measureText(middle(cut)).width > room) cut += 1;
  return middle(cut);
}

/** Above 0 where a line skipped. */
export function skipsOf({ of }: Pick<OverlayLine, "of">) {
  return of("skipped", "max") ?? of("skipped", "mean");
}

/**
 * Where labels stand that would like to be at their `y`, without touching those beside them: each as near to it as it
 * can.
 * @param height of a label
 * @returns in order of the wished y
 */
export function apart<T extends { x: number; y: number }>(ends: T[], width: number, height: number, low: number,
  high: number): T[] {
  const placed: T[] = [];
  for (const end of [...ends].sort((a, b) => a.y - b.y)) {
    const beside = placed.filter(({ x }) => Math.abs(x - end.x) < width).sort((a, b) => a.y - b.y);
    let y = Math.max(low, end.y);
    for (const other of beside) if (Math.abs(y - other.y) < height) y = other.y + height;
    if (y > high) {
      y = high;
      for (const other of beside.reverse()) if (Math.abs(y - other.y) < height) y = other.y - height;
    }
    placed.push({ ...end, y });
  }
  return placed;
}

/** Fills what lies between two rows of values, in pieces where there are gaps. */
function fillBetween(ctx: CanvasRenderingContext2D, { x: xs, missing }: OverlayLine, low: any, high: any, from: number,
  to: number, px: (x: number) => number, py: (y: number) => number) {
  for (let at = from; at <= to;) {
    if (low[at] === null || high[at] === null) {
      at += 1;
      continue;
    }
    const start = at;
    ctx.beginPath();
    ctx.moveTo(px(xs[at]), py(high[at]));
    for (at += 1; at <= to && low[at] !== null && high[at] !== null && !missing.has(at - 1); at++)
      ctx.lineTo(px(xs[at]), py(high[at]));
    for (let back = at - 1; back >= start; back--) ctx.lineTo(px(xs[back]), py(low[back]));
    ctx.closePath();
    ctx.fill();
  }
}
