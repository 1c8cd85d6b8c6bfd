/** What the charts draw, as a table: the points in view, by the views that are shown. Loaded when it is opened. */

import { dock, element, iconButton, scroller, table } from "./elements.ts";
import { formatCount, formatNumber, formatScale } from "./format.ts";

import type { Line, SeriesLike } from "./answers.ts";
import type { PanelStore } from "./state.ts";
import type { ChartSpec, LineSpec } from "./views.ts";
import type { Places } from "./xaxis.ts";

/** What a table of values lists: the points of a run, or of runs of one setting, as the charts draw them. */
export type ValuesSource = {
  /** as the legend has it */
  name: string;
  /** what it was made from: another is another table */
  of: unknown;
  series: SeriesLike;
  lines: { spec: ChartSpec; line: LineSpec; column: Line }[];
  /** in the unit of the series */
  view: [number, number];
  places: Places;
  /** whether values are means of several runs */
  several: boolean;
};

const MOST_ROWS = 400;

/** The drawn points in view, at most `most` of them, evenly chosen with the first and the last. */
export function pointsInView(series: SeriesLike, [from, to]: [number, number], most: number = MOST_ROWS) {
  const inside = Array.from({ length: series.length }, (_, at) => at).filter((at) =>
    series.stepLast[at] >= from && series.step[at] <= to
  );
  if (inside.length <= most) return inside;
  return Array.from({ length: most }, (_, row) => inside[Math.round((row * (inside.length - 1)) / (most - 1))]);
}

export class ValuesTable {
  sources: ValuesSource[] = [];
  /** Its name. */
  chosen = "";
  made: unknown[] = [];
  select = element("select", { class: "small", "aria-label": "Run whose values are listed",
    onchange: () => this.#choose(this.select.value) });
  count = element("p", { class: "dock-message", role: "status" });
  scroller = scroller("Table of the charts' values");
  element: HTMLElement;

  constructor(store: PanelStore) {
    const close = iconButton("✕", "Close the values", () => store.set({ dock: null }));
    this.element = dock("Values of the charts", [element("h2", {}, "Values of the charts"), this.select, this.count],
      close, this.scroller);
  }

  /** @param sources the current run first, then what is drawn beside it */
  show(sources: ValuesSource[]) {
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

  #choose(name: string) {
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
    this.count.textContent = `${formatCount(points.length)}${chosen}${
      series.exact ? (several ? `; ${what}` : "") : `; each stands for ${places.span(series.bucketSteps)}: ${what}`
    }`;
    const heads = [places.head,
      ...lines.map(({ spec, line }) => (spec.lines.length > 1 ? `${spec.title} ${line.label}` : spec.title))];
    const inView = pointsInView(series, view, Infinity);
    const statistics = lines.map(({ spec, column }) => {
      const write = writerOf(spec);
      const { mean, least, greatest } = statisticsOf(column, inView);
      return [mean, least, greatest].map((value) => (Number.isFinite(value) ? write(value) : "–"));
    });
    const summary = table("data-table statistics", ["In view", ...heads.slice(1)],
      ["Mean", "Least", "Greatest"].map((name, at) => [name, ...statistics.map((values) => values[at])]));
    this.scroller.replaceChildren(summary, table("data-table values-table", heads, points.map((at) => [
      places.write(series.step[at], series.stepLast[at]),
      ...lines.map(({ spec, column }) => valueText(spec, column, at)),
    ])));
  }
}

/** Mean, least and greatest of the finite values at points; a point that stands for several steps counts as often. */
export function statisticsOf({ last, min, max, mean, known }: Line, points: number[]) {
  let [sum, count, least, greatest] = [0, 0, Infinity, -Infinity];
  for (const at of points) {
    const value = mean ? mean[at] : last[at];
    const steps = known ? known[at] : 1;
    if (Number.isFinite(value) && steps) [sum, count] = [sum + value * steps, count + steps];
    if (min[at] < least) least = min[at];
    if (max[at] > greatest) greatest = max[at];
  }
  return { mean: sum / count, least, greatest };
}

function writerOf({ scale }: ChartSpec) {
  return (value: number) => (scale === "log2" ? formatScale(value) : formatNumber(Number(value.toPrecision(6))));
}

function valueText(spec: ChartSpec, { last, min, max, nan, inf }: Line, at: number) {
  const write = writerOf(spec);
  if (Number.isNaN(last[at])) return inf?.[at] ? "∞" : nan?.[at] ? "NaN" : "–";
  return write(last[at]) + (min[at] === max[at] ? "" : ` (${write(min[at])} to ${write(max[at])})`);
}
