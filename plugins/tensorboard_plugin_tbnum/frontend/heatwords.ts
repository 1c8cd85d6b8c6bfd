/** The heat map in words: what its colours stand for, what is known of a cell, and the table of a step. */

import { element, table } from "./elements.ts";
import { counted, formatCount, formatNumber } from "./format.ts";
import { brokenRows, bucketOf, worstOf } from "./heatcells.ts";
import { coloursOf } from "./heatcolours.ts";
import { sparkline } from "./sparkline.ts";

import type { Cells } from "./answers.ts";
import type { HeatMode, HeatRow } from "./heatcells.ts";

/** What a mode's values are called. */
function titleOf({ scale, title }: HeatMode) {
  return scale === "none" ? "Gradient norm" : title;
}

/** What is known of a cell, as pairs; nothing where there is no sample. */
export function cellFacts(cells: Cells, mode: HeatMode, row: HeatRow, bucket: number): [string, string][] {
  if (bucket < 0 || bucket >= cells.step.length) return [];
  const { value, at, broken } = worstOf(cells, mode, row.members, bucket);
  const [from, to] = [cells.step[bucket], cells.stepLast[bucket]];
  const facts: [string, string][] = [[from === to ? "Step" : "Steps",
    from === to ? formatCount(from) : `${formatCount(from)} to ${formatCount(to)}`]];
  const written = mode.scale === "share" && value !== null ? `${formatNumber(Number((100 * value).toPrecision(3)))} %`
    : formatNumber(value === null ? null : Number(value.toPrecision(5)));
  facts.push([(row.group ? "worst " : "") + titleOf(mode).toLowerCase(), written]);
  if (row.group && at >= 0) facts.push(["of", cells.rows[at]]);
  if (broken) facts.push(["Not finite", counted(broken, "sample")]);
  return facts;
}

/** What the colours stand for. */
export function heatKey(mode: HeatMode, range: [number, number]): HTMLElement[] {
  const bar = element("canvas", { width: 256, height: 1, class: "heat-bar", "aria-hidden": "true" });
  const context = bar.getContext("2d") as CanvasRenderingContext2D;
  const image = context.createImageData(256, 1);
  new Uint32Array(image.data.buffer).set(coloursOf(mode, document.documentElement.classList.contains("dark")));
  context.putImageData(image, 0, 0);
  const ends = mode.scale === "doublings" ? [range[1], range[0]] : range;
  const [low, high] = ends.map((end) =>
    mode.scale === "share" ? `${end * 100} %` : formatNumber(Number(end.toPrecision(mode.scale === "ratio" ? 3 : 2)))
  );
  const scale = mode.scale === "none" ? []
    : [...(mode.scale === "ratio" ? [element("span", {}, mode.title.slice(mode.title.lastIndexOf("ratio to")))] : []),
      element("span", {}, low), bar, element("span", {}, high + (mode.scale === "doublings" ? " doublings" : "")),
      element("span", {}, "up to the next sample")];
  return [
    ...scale,
    element("span", {}, element("span", "heat-broken"), "not finite, at its steps"),
    element("span", {}, element("span", "heat-none"), "no value"),
  ];
}

/** What is shown, for screen readers. */
export function heatSummary(cells: Cells, mode: HeatMode, rows: HeatRow[], view: [number, number]) {
  const groups = rows.filter(({ group }) => group).length;
  const broken = brokenRows(cells, rows, ...view);
  return `${mode.title}, ${counted(rows.length, "row")}${groups ? `, ${groups} of them modules` : ""}, steps ${
    formatCount(view[0])
  } to ${formatCount(view[1])}; ${
    broken ? `${counted(broken, "row")} with values that are not finite` : "all values finite"
  }${broken && mode.scale === "none" ? `, most of them in ${rows[0].label}` : ""}.`;
}

/** Cells of another mode than the one in colours, for their trends. */
export type Trend = { cells: Cells; mode: HeatMode };

const MOST_TRENDS = 300; // rows that have them
const SPARK = { width: 110, height: 24 };

/** The values at a step, and how each statistic went in view. */
export function heatTable(cells: Cells, mode: HeatMode, rows: HeatRow[], step: number, trends: Trend[],
  view: [number, number]) {
  const bucket = bucketOf(cells, step);
  const [from, to] = [cells.step[bucket], cells.stepLast[bucket]];
  const caption = bucket < 0 ? "No sample here"
    : from === to ? `At step ${formatCount(from)}` : `At steps ${formatCount(from)} to ${formatCount(to)}`;
  const heads = ["Tensor", titleOf(mode), "Not finite", ...trends.map((one) => `${titleOf(one.mode)} in view`)];
  const places = trends.map((one) => new Map(one.cells.rows.map((name, at) => [name, at])));
  return table("small-table", heads, rows.map((row, at) => {
    const facts = cellFacts(cells, mode, row, bucket);
    return [row.group ? `${row.label} (${row.members.length})` : row.name, facts[1]?.[1] ?? "–",
      facts.find(([name]) => name === "Not finite")?.[1] ?? "–",
      ...trends.map((one, which) => {
        const members = row.members.map((member) => places[which].get(cells.rows[member]) ?? -1);
        return at < MOST_TRENDS ? trendOf(one, members.filter((member) => member >= 0), view) : "–";
      })];
  }), caption);
}

/** How a row's worst value went in view: a small line, with the first and the last for those who do not see it. */
function trendOf({ cells, mode }: Trend, members: number[], [from, to]: [number, number]) {
  const [steps, values]: [number[], number[]] = [[], []];
  for (let bucket = bucketOf(cells, from); bucket < cells.step.length && cells.step[bucket] <= to; bucket++) {
    if (bucket < 0) continue;
    const { value } = worstOf(cells, mode, members, bucket);
    if (value === null || !Number.isFinite(value) || (mode.scale === "log" && value <= 0)) continue;
    steps.push(cells.step[bucket]);
    values.push(value);
  }
  if (!values.length) return "–";
  const text = (value: number) => formatNumber(Number(value.toPrecision(3)));
  const said = `${text(values[0])} to ${text(values[values.length - 1])}`;
  const line = sparkline(steps, values, { ...SPARK, from: Math.max(from, steps[0]), to, log: mode.scale === "log" });
  return element("span", { class: "trend", title: said }, line, element("span", "visually-hidden", said));
}
