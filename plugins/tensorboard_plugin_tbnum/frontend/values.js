/** What the charts draw, as a table: the points in view, by the views that are shown. Loaded when it is opened. */

import { formatCount, formatNumber, formatScale } from "./format.js";
import { dock, element, iconButton, scroller, table } from "./host.js";

/** @import { ChartSpec, LineSpec, SeriesLike } from "./types.js" */

const MOST_ROWS = 400;

/**
 * The drawn points in view, at most `most` of them, evenly chosen with the first and the last.
 * @param {SeriesLike} series @param {[number, number]} view @param {number} [most]
 */
export function pointsInView(series, [from, to], most = MOST_ROWS) {
  const inside = Array.from({ length: series.length }, (_, at) => at).filter((at) => series.stepLast[at] >= from && series.step[at] <= to);
  if (inside.length <= most) return inside;
  return Array.from({ length: most }, (_, row) => inside[Math.round((row * (inside.length - 1)) / (most - 1))]);
}

export class ValuesTable {
  /** @param {{close: () => void}} callbacks */
  constructor(callbacks) {
    /** @type {unknown[]} */
    this.made = [];
    this.count = element("p", { class: "dock-message", role: "status" });
    this.scroller = scroller("Table of the charts' values");
    const close = iconButton("✕", "Close the values", callbacks.close);
    this.element = dock("Values of the charts", [element("h2", {}, "Values of the charts"), this.count], close, this.scroller);
  }

  /**
   * @param {{spec: ChartSpec, line: LineSpec, column: import("./types.js").Line}[]} lines of the shown views
   * @param {SeriesLike} series @param {[number, number]} view
   */
  show(lines, series, view) {
    const made = [series, ...view, lines.map(({ spec, line }) => spec.id + line.column).join()];
    if (made.every((part, at) => part === this.made[at])) return;
    this.made = made;
    const points = pointsInView(series, view);
    const every = pointsInView(series, view, Infinity).length;
    this.count.textContent = `${formatCount(points.length)}${points.length < every ? ` of ${formatCount(every)}, evenly chosen: zoom in for the rest` : ""}${series.exact ? "" : `; each stands for ${formatCount(series.bucketSteps)} steps: last value (lowest to highest)`}`;
    const heads = [series.exact ? "Step" : "Steps", ...lines.map(({ spec, line }) => (spec.lines.length > 1 ? `${spec.title} ${line.label}` : spec.title))];
    this.scroller.replaceChildren(table("data-table values-table", heads, points.map((at) => [
      series.step[at] === series.stepLast[at] ? formatCount(series.step[at]) : `${formatCount(series.step[at])} to ${formatCount(series.stepLast[at])}`,
      ...lines.map(({ spec, column }) => {
        const write = (/** @type {number} */ value) => (spec.scale === "log2" ? formatScale(value) : formatNumber(Number(value.toPrecision(6))));
        if (Number.isNaN(column.last[at])) return "–";
        const bounds = series.exact || column.min[at] === column.max[at] ? "" : ` (${write(column.min[at])} to ${write(column.max[at])})`;
        return write(column.last[at]) + bounds;
      }),
    ])));
  }
}
