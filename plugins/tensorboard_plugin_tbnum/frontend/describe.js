/** What a chart says of itself: the key of its lines, and its summary for screen readers. */

import { element } from "./elements.js";
import { counted, formatCount, formatNumber, formatScale, formatShare } from "./format.js";
import { lineOf } from "./plotdata.js";
import { lowerBound } from "./sorted.js";

/** @import { ChartSpec, LineSpec, Model, SeriesLike } from "./types.js" */

/**
 * The key of a chart's lines.
 * @param {ChartSpec} spec @param {LineSpec[]} lines those that are drawn @param {SeriesLike} series @param {Model} model
 * @param {(line: LineSpec) => string} colorOf as CSS takes it @param {boolean} edge whether anything in view was not finite
 */
export function keyItems(spec, lines, series, model, colorOf, edge) {
  const [from, to] = stepsInView(model);
  const own = colorOf(spec.lines[0]);
  const items = lines.length > 1 || spec.optional ? lines.map((line) => keyItem(line.label, `line${line.dash ? " dashed" : ""}`, colorOf(line))) : [];
  if (spec.id === "loss" && model.smoothing > 0) {
    items.push(keyItem("smoothed", "line", own));
    if (model.series.exact) items.push(keyItem("raw", "line faint", own));
  }
  if (spec.id === "clip" && lines.length) items.push(keyItem(clippedText(model.series, model.prefix, from, to), "", ""));
  const spread = spec.lines.some((line) => line.spread?.every((name) => series.line(name)));
  if (spread) items.push(keyItem("min to max of the ranks", "band", own));
  else if (!series.exact && lines.length) items.push(keyItem(`min to max of ${formatCount(series.bucketSteps)} steps`, "band", own));
  if (edge) items.push(keyItem("▲ ∞  ✕ NaN", "", "", "nonfinite-key"));
  return items;
}

/** @param {ChartSpec} spec @param {SeriesLike} series @param {Model} model @param {string} empty why nothing is drawn, if so */
export function summaryOf(spec, series, model, empty) {
  const [from, to] = stepsInView(model);
  const format = spec.scale === "log2" ? formatScale : formatNumber;
  const where = `${spec.title}, steps ${formatCount(from)} to ${formatCount(to)}`;
  const line = lineOf(spec, spec.lines[0], series, model.prefix);
  if (!line || !series.length) return `${where}: ${empty}.`;
  let [first, last, low, high] = [NaN, NaN, Infinity, -Infinity];
  for (let index = 0; index < series.length; index++) {
    if (series.stepLast[index] < from || series.step[index] > to) continue;
    const value = line.last[index];
    if (Number.isFinite(value)) {
      if (Number.isNaN(first)) first = value;
      last = value;
    }
    if (Number.isFinite(line.min[index])) low = Math.min(low, line.min[index]);
    if (Number.isFinite(line.max[index])) high = Math.max(high, line.max[index]);
  }
  if (low > high) return `${where}: ${empty}.`;
  const skips = model.lanes.find((lane) => lane.kind.id === "skip")?.steps ?? [];
  const inView = lowerBound(skips, to + 1) - lowerBound(skips, from);
  return `${where}: from ${format(first)} to ${format(last)}, lowest ${format(low)}, highest ${format(high)}; ${counted(inView, "skip")}.`;
}

/** Whole steps. @param {Model} model @returns {[number, number]} */
export function stepsInView({ view }) {
  return [Math.ceil(view[0]), Math.floor(view[1])];
}

/**
 * In how many of the steps in view that were not skipped gradients were clipped; buckets at the edges count whole.
 * @param {SeriesLike} series @param {string} prefix @param {number} from @param {number} to
 */
export function clippedText(series, prefix, from, to) {
  const line = series.line(`${prefix}clipped`);
  let [known, clipped] = [0, 0];
  for (let index = 0; line && index < series.length; index++) {
    if (series.stepLast[index] < from || series.step[index] > to || Number.isNaN(line.last[index])) continue;
    const steps = line.known ? line.known[index] : 1;
    known += steps;
    clipped += line.mean ? Math.round(line.mean[index] * steps) : line.last[index];
  }
  return known ? `clipped in ${formatShare(clipped, known)} of ${counted(known, "update")}` : "";
}

/** @param {string} label @param {string} shape @param {string} color @param {string} [more] class */
function keyItem(label, shape, color, more = "") {
  return element("li", more, ...(shape ? [element("span", { class: `swatch ${shape}`, style: `--color: ${color}` })] : []), label);
}
