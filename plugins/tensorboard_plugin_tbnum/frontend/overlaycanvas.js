/** What is drawn on the canvases of runs beside the current one: lines and bands, the numbers at their ends, and their skips. */

import { FONT, styled } from "./elements.js";
import { lowerBound } from "./sorted.js";

/** @import { ChartSpec, LineEnd, OverlayLine, OverlayPoints, Plot } from "./types.js" */

const MOST_NUMBERED = 10; // lines in a chart; of more the numbers would not stand where their lines end
const NUMBER_GAP = 11; // pixels from a line's end, so that a mark there leaves the number free

/**
 * @param {Plot} plot @param {ChartSpec} spec @param {OverlayLine[]} lines @param {OverlayPoints[]} points of each
 * @param {number} dark 0 or 1 @param {number | null} looked the line that a person looks at: the others are faint
 * @returns {LineEnd[]} where lines end, for their numbers
 */
export function drawRuns(plot, spec, lines, points, dark, looked) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const { min: x0 = 0, max: x1 = 1 } = plot.scales.x;
  const { min: y0 = 0, max: y1 = 1 } = plot.scales.y;
  const px = (/** @type {number} */ x) => bbox.left + ((x - /** @type {number} */ (x0)) / (Number(x1) - Number(x0))) * bbox.width;
  const py = (/** @type {number} */ y) => bbox.top + (1 - (y - Number(y0)) / (Number(y1) - Number(y0))) * bbox.height;
  const ends = /** @type {LineEnd[]} */ ([]);
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.lineJoin = "round";
  const lightness = Math.min(1, 3 / Math.max(1, lines.filter(({ runs }) => runs.length > 1).length)); // many bands would hide each other
  const order = lines.map((_, at) => at).sort((a, b) => Number(a === looked) - Number(b === looked));
  for (const at of order) {
    const line = lines[at];
    const { values, bands } = points[at];
    if (!values) continue;
    const color = line.colors[dark];
    const faded = looked !== null && looked !== at;
    const from = Math.max(0, lowerBound(line.x, Number(x0)) - 1);
    const to = Math.min(line.x.length - 1, lowerBound(line.x, Number(x1)));
    ctx.fillStyle = color;
    for (const { low, high, alpha } of bands) {
      ctx.globalAlpha = faded ? alpha / 5 : at === looked ? alpha : alpha * lightness;
      for (const path of areas(line, low, high, from, to, px, py)) ctx.fill(path);
    }
    ctx.globalAlpha = faded ? 0.22 : 1;
    ctx.strokeStyle = color;
    ctx.lineWidth = (at === looked ? 2.5 : line.runs.length > 1 ? 1.75 : 1) * ratio; // of a pixel: wider ones that zigzag take fifty times as long
    ctx.setLineDash(line.dash.map((length) => length * ratio));
    const sparse = !!spec.lines[0].sparse;
    ctx.beginPath();
    let open = false;
    let last = -1;
    for (let index = from; index <= to; index++) {
      const value = values[index];
      if (line.missing.has(index - 1)) open = false;
      if (value === null) {
        if (!sparse) open = false;
        continue;
      }
      const [x, y] = [px(line.x[index]), py(value)];
      if (open && spec.lines[0].stepped && line.runs.length === 1) ctx.lineTo(x, py(/** @type {number} */ (values[last])));
      if (open) ctx.lineTo(x, y);
      else {
        ctx.moveTo(x, y);
        if (values[index + 1] == null || line.missing.has(index)) ctx.lineTo(x + ratio, y); // one alone is a dot
      }
      open = true;
      last = index;
    }
    ctx.stroke();
    if (last >= 0 && (looked === null || looked === at)) {
      while (last > from && (values[last] === null || line.x[last] > Number(x1))) last -= 1;
      const value = values[last];
      if (value !== null) ends.push({ x: Math.min(px(line.x[last]), bbox.left + bbox.width), y: py(value), text: String(at + 2) });
    }
  }
  ctx.restore();
  return ends;
}

/** Numbers at the ends of lines, as in the legend: colour is not needed to tell them apart. @param {Plot} plot @param {LineEnd[]} ends */
export function drawEndNumbers({ ctx, bbox }, ends) {
  if (ends.length > MOST_NUMBERED) return;
  const ratio = devicePixelRatio || 1;
  const gap = 10.5 * ratio;
  ctx.save();
  ctx.font = `600 ${10 * ratio}px ${FONT}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  const { backgroundColor: ground, color } = getComputedStyle(document.body);
  for (const { x, y, text } of apart(ends, 13 * ratio, gap, bbox.top + gap / 2, bbox.top + bbox.height - gap / 2)) {
    ctx.lineWidth = 3 * ratio;
    ctx.strokeStyle = ground;
    ctx.strokeText(text, x + NUMBER_GAP * ratio, y);
    ctx.fillStyle = color;
    ctx.fillText(text, x + NUMBER_GAP * ratio, y);
  }
  ctx.restore();
}

/**
 * Skips of runs, a lane each.
 * @param {CanvasRenderingContext2D} context @param {OverlayLine[]} lines @param {(at: number) => boolean} faint
 * @param {{left: number, width: number, full: number, height: number, lane: number, range: [number, number], dark: number}} room pixels; `range`: x in view
 * @returns {number[]} how many are in view, of each
 */
export function drawSkips(context, lines, faint, { left, width, full, height, lane, range: [from, to], dark }) {
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
  context.fillText("Others", 18, height / 2 + 0.5);
  if (!counts.some((count) => count > 0)) context.fillText("no skips in view", left + 8, height / 2 + 0.5);
  return counts;
}

/** Above 0 where a line skipped. @param {Pick<OverlayLine, "of">} line */
export function skipsOf({ of }) {
  return of("skipped", "max") ?? of("skipped", "mean");
}

/**
 * Where labels stand that would like to be at their `y`, without touching those beside them: each as near to it as it can.
 * @param {T[]} ends @param {number} width @param {number} height of a label @param {number} low @param {number} high
 * @template {{x: number, y: number}} T
 * @returns {T[]} in order of the wished y
 */
export function apart(ends, width, height, low, high) {
  /** @type {T[]} */
  const placed = [];
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

/** What lies between two rows of values, in pieces where there are gaps. @param {OverlayLine} line @param {any} low @param {any} high @param {number} from @param {number} to @param {(x: number) => number} px @param {(y: number) => number} py */
function areas({ x: xs, missing }, low, high, from, to, px, py) {
  const paths = [];
  for (let at = from; at <= to; ) {
    if (low[at] === null || high[at] === null) {
      at += 1;
      continue;
    }
    const path = new Path2D();
    const start = at;
    path.moveTo(px(xs[at]), py(high[at]));
    for (at += 1; at <= to && low[at] !== null && high[at] !== null && !missing.has(at - 1); at++) path.lineTo(px(xs[at]), py(high[at]));
    for (let back = at - 1; back >= start; back--) path.lineTo(px(xs[back]), py(low[back]));
    path.closePath();
    paths.push(path);
  }
  return paths;
}
