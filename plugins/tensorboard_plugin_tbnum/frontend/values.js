/** What the charts draw, as a table: the points in view, by the views that are shown. Loaded when it is opened. */

import { dock, element, iconButton, scroller, table } from "./elements.js";
import { formatCount, formatNumber, formatScale } from "./format.js";

/** @import { ChartSpec, Line, SeriesLike, ValuesSource } from "./types.js" */

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
    /** @type {ValuesSource[]} */
    this.sources = [];
    /** Its name. */
    this.chosen = "";
    /** @type {unknown[]} */
    this.made = [];
    this.select = element("select", { class: "small", "aria-label": "Run whose values are listed", onchange: () => this.#choose(this.select.value) });
    this.count = element("p", { class: "dock-message", role: "status" });
    this.scroller = scroller("Table of the charts' values");
    const close = iconButton("✕", "Close the values", callbacks.close);
    this.element = dock("Values of the charts", [element("h2", {}, "Values of the charts"), this.select, this.count], close, this.scroller);
  }

  /** @param {ValuesSource[]} sources the current run first, then what is drawn beside it */
  show(sources) {
    const names = sources.map(({ name }) => name);
    if (names.join("\n") !== this.sources.map(({ name }) => name).join("\n")) {
      this.select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
      if (!names.includes(this.chosen)) this.chosen = names[0];
      this.select.value = this.chosen;
    }
    this.select.hidden = names.length < 2;
    this.sources = sources;
    this.#draw();
  }

  /** @param {string} name */
  #choose(name) {
    this.chosen = name;
    this.#draw();
  }

  #draw() {
    const source = this.sources.find(({ name }) => name === this.chosen) ?? this.sources[0];
    const { series, lines, view, places, several } = source;
    const made = [source.of, source.name, ...view, lines.map(({ spec, line }) => spec.id + line.column).join()];
    if (made.every((part, at) => part === this.made[at])) return;
    this.made = made;
    const points = pointsInView(series, view);
    const every = pointsInView(series, view, Infinity).length;
    const chosen = points.length < every ? ` of ${formatCount(every)}, evenly chosen: zoom in for the rest` : "";
    const what = `${several ? "mean of all runs" : "last value"} (lowest to highest)`;
    this.count.textContent = `${formatCount(points.length)}${chosen}${series.exact ? (several ? `; ${what}` : "") : `; each stands for ${places.span(series.bucketSteps)}: ${what}`}`;
    const heads = [places.head, ...lines.map(({ spec, line }) => (spec.lines.length > 1 ? `${spec.title} ${line.label}` : spec.title))];
    this.scroller.replaceChildren(table("data-table values-table", heads, points.map((at) => [
      places.write(series.step[at], series.stepLast[at]), ...lines.map(({ spec, column }) => valueText(spec, column, at)),
    ])));
  }
}

/** @param {ChartSpec} spec @param {Line} column @param {number} at */
function valueText(spec, { last, min, max, nan, inf }, at) {
  const write = (/** @type {number} */ value) => (spec.scale === "log2" ? formatScale(value) : formatNumber(Number(value.toPrecision(6))));
  if (Number.isNaN(last[at])) return inf?.[at] ? "∞" : nan?.[at] ? "NaN" : "–";
  return write(last[at]) + (min[at] === max[at] ? "" : ` (${write(min[at])} to ${write(max[at])})`);
}
