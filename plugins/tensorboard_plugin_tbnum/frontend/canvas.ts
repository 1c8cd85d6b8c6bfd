/**
 * What is drawn on the charts' canvases beside uPlot's lines: bands of skipped steps, least to greatest of a bucket,
 * and what
 * was not finite.
 */

import { FONT } from "./elements.ts";
import { formatAge } from "./format.ts";
import { lowerBound } from "./sorted.ts";

import type { Drawing } from "./model.ts";
import type { Pane } from "./pane.ts";
import type { Plot } from "./plot.ts";
import type { Edge } from "./plotdata.ts";
import type { LineSpec } from "./views.ts";

const CROWDED_SHARE = 0.07; // of the width that bands of skipped steps may cover

/**
 * Where a plot draws its lines, in pixels of the page, as uPlot knows it: the page's own measures wait for its layout.
 */
export function areaOf({ bbox }: Plot) {
  const ratio = devicePixelRatio || 1;
  return { left: bbox.left / ratio, width: bbox.width / ratio, height: bbox.height / ratio };
}

/**
 * Grey bands at skipped steps, or ticks at the lower edge where bands would flood the chart, and the selected event's
 * line, below everything else.
 */
export function drawBands(plot: Plot, { model, xAxis, range: [min, max], colors }: Drawing) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const perPixel = (max - min) / bbox.width;
  const at = (step: number) => bbox.left + (xAxis.xOf(step) - min) / perPixel;
  const skips = model.lanes.find((lane) => lane.kind.id === "skip")?.steps ?? [];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.fillStyle = colors["--skip-band"];
  const { view } = model;
  const inView = lowerBound(skips, view[1] + 1) - lowerBound(skips, view[0]);
  const crowded = inView * 1.5 * ratio > bbox.width * CROWDED_SHARE && inView > 20;
  const top = crowded ? bbox.top + bbox.height - 6 * ratio : bbox.top;
  const thinnest = (crowded ? 1 : 1.5) * ratio;
  if (crowded) ctx.fillStyle = colors["--skip-tick"];
  let drawnTo = -Infinity;
  for (let index = lowerBound(skips, view[0] - 1); index < skips.length && skips[index] <= view[1] + 1;) {
    const step = skips[index];
    const [left, right] = [at(step - 0.5), at(step + 0.5)];
    const width = Math.min(Math.max(right - left, thinnest), 14 * ratio);
    const start = Math.max(drawnTo, (left + right - width) / 2);
    const end = (left + right + width) / 2;
    if (end > start) ctx.fillRect(start, top, end - start, bbox.top + bbox.height - top);
    drawnTo = end;
    const next = lowerBound(skips, Math.max(step + 1, xAxis.stepOf(min + (end - width / 2 - bbox.left) * perPixel)));
    index = Math.max(index + 1, next);
  }
  if (model.axis === "time") drawPauses(plot, model.pauses, at, ratio, colors["--text-2"]);
  ctx.fillStyle = colors["--selected"];
  if (model.selected)
    ctx.fillRect(Math.round(at(model.selected.step)) - ratio / 2, bbox.top, Math.max(1, ratio), bbox.height);
  if (model.pinned !== null) {
    ctx.strokeStyle = colors["--text-2"];
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.beginPath();
    ctx.moveTo(at(model.pinned), bbox.top);
    ctx.lineTo(at(model.pinned), bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

/**
 * From the least to the greatest of each bucket, as bars that touch: an outline that is filled takes ten times as long.
 */
export function drawRanges(plot: Plot, { ranges, missing }: Pane, color: (line: LineSpec, alpha: number) => string) {
  const { ctx, bbox, data } = plot;
  const [first, last] = plot.series[0].idxs ?? [0, -1];
  const px = (x: number) => Math.round(plot.valToPos(x, "x", true));
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { line, at } of ranges) {
    const [highs, lows] = [data[at], data[at + 1]];
    ctx.fillStyle = color(line, 0.2);
    let [left, high, low] = [NaN, -Infinity, Infinity];
    for (let index = first; index <= last; index++) {
      high = Math.max(high, highs[index] ?? -Infinity);
      low = Math.min(low, lows[index] ?? Infinity);
      const next = Math.min(index + 1, data[0].length - 1);
      const ends = missing.has(index);
      const right = ends ? px(data[0][index]) + 1 : px((data[0][index] + data[0][next]) / 2);
      if (right === left) continue; // buckets in one pixel are one bar
      if (high >= low) {
        const top = plot.valToPos(high, "y", true);
        ctx.fillRect(left || right - 1, top, right - (left || right - 1),
          Math.max(1, plot.valToPos(low, "y", true) - top));
      }
      [left, high, low] = [ends ? px(data[0][next]) : right, -Infinity, Infinity];
    }
  }
  ctx.restore();
}

/** Ticks at the upper edge where the first line was not finite: a triangle for infinity, a cross for NaN. */
export function drawEdge(plot: Plot, edge: Edge, { model, xAxis, range: [min, max], colors }: Drawing) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const size = 4 * ratio;
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = colors["--nonfinite"];
  ctx.lineWidth = 1.5 * ratio;
  ctx.setLineDash([]); // uPlot leaves that of its last line
  let drawnTo = -Infinity;
  for (let index = lowerBound(edge.step, model.view[0]); index < edge.step.length; index++) {
    const x = bbox.left + ((xAxis.xOf(edge.step[index]) - min) / (max - min)) * bbox.width;
    if (x > bbox.left + bbox.width + 1) break;
    if (x < drawnTo + 2 * size) continue; // crosses that overlap are none
    drawnTo = x;
    const top = bbox.top + 1 * ratio;
    ctx.beginPath();
    if (edge.infinite[index]) {
      ctx.moveTo(x, top);
      ctx.lineTo(x + size, top + 1.7 * size);
      ctx.lineTo(x - size, top + 1.7 * size);
      ctx.closePath();
      ctx.fill();
    } else {
      ctx.moveTo(x - size, top);
      ctx.lineTo(x + size, top + 2 * size);
      ctx.moveTo(x + size, top);
      ctx.lineTo(x - size, top + 2 * size);
      ctx.stroke();
    }
  }
  ctx.restore();
}

/** Why a chart is empty, in its middle. */
export function drawInstead({ ctx, bbox }: Plot, text: string, { colors }: Drawing) {
  ctx.save();
  ctx.fillStyle = colors["--text-2"];
  ctx.font = `${12 * (devicePixelRatio || 1)}px ${FONT}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(text, bbox.left + bbox.width / 2, bbox.top + bbox.height / 2);
  ctx.restore();
}

/** Where time is left out: a dotted line, and how much. */
function drawPauses({ ctx, bbox }: Plot, pauses: [number, number][], at: (step: number) => number, ratio: number,
  color: string) {
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = ratio;
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  ctx.font = `${10 * ratio}px ${FONT}`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left"; // uPlot leaves that of its labels
  let written = -Infinity;
  for (const [step, seconds] of pauses) {
    const x = at(step);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    if (x - written < 90 * ratio) continue;
    written = x;
    ctx.fillText(`paused ${formatAge(seconds)}`, x + 4 * ratio, bbox.top + 2 * ratio);
  }
  ctx.setLineDash([]);
}
