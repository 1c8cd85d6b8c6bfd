/** Runs as lines: which run or runs of one setting each stands for, how it is called, and its colour and dashes. */

import { svg } from "./elements.ts";
import { counted } from "./format.ts";

/** TensorBoard's own, of its time series: light and dark. */
const HOST_COLORS = [
  ["#425066", "#8e98a3"],
  ["#12b5cb", "#12b5cb"],
  ["#e52592", "#e52592"],
  ["#f9ab00", "#f9ab00"],
  ["#9334e6", "#9334e6"],
  ["#7cb342", "#7cb342"],
  ["#e8710a", "#e8710a"],
];

/** For runs that TensorBoard does not know: none is like one of its own. */
const OWN_COLORS = [["#0b57d0", "#8ab4f8"], ["#8d5524", "#d7a876"], ["#00695c", "#5fd6c0"], ["#a61c1c", "#ff8a80"], [
  "#6b7000",
  "#d8d95b",
]];

export const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3]];

/** Colours by run, as TensorBoard gives them out: in the order in which it came to know of its runs. */
export class RunColors {
  host: Map<string, number> = new Map();
  own: Map<string, number> = new Map();

  /** @param runs all that TensorBoard knows, in its order */
  know(runs: string[]) {
    for (const run of runs) if (!this.host.has(run)) this.host.set(run, this.host.size);
    this.own.clear();
  }

  /** @returns light, dark */
  of(run: string): string[] {
    const at = this.host.get(run);
    if (at !== undefined) return HOST_COLORS[at % HOST_COLORS.length];
    if (!this.own.has(run)) this.own.set(run, this.own.size);
    return OWN_COLORS[(this.own.get(run) as number) % OWN_COLORS.length];
  }
}

/**
 * What is drawn beside the current run: runs one by one, or those of one setting together. The current one is part of
 * its setting's line, and is drawn for itself all the same.
 */
export function linesOf(current: string, others: string[], settingOf: (run: string) => string | null | undefined,
  grouped: boolean): string[][] {
  const chosen = [...new Set([current, ...others])];
  const groups: Map<string, string[]> = new Map();
  for (const run of chosen) {
    const key = (grouped && settingOf(run)) || `run ${run}`;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()].filter((runs) => runs.length > 1 || runs[0] !== current);
}

/** Names without the folders that all of them are in. */
export function shortNames(names: string[]): string[] {
  if (names.length < 2) return names;
  const parts = names.map((name) => name.split("/"));
  let common = 0;
  while (parts.every((one) => one.length > common + 1 && one[common] === parts[0][common])) common += 1;
  return parts.map((one) => one.slice(common).join("/"));
}

/** How runs of one setting are called together: what their names begin with, and how many. */
export function groupName(names: string[]) {
  let length = 0;
  while (length < names[0].length && names.every((name) => name[length] === names[0][length])) length += 1;
  const stem = names[0].slice(0, length).replace(/[\s/_.\-=]*(seed|s)?[\s/_.\-=]*\d*$/i, "");
  return `${stem || "one setting"} · ${counted(names.length, "seed")}`;
}

/** How a line looks. */
export function swatch(color: string, dash: number[]) {
  return svg("svg", { class: "line-swatch", width: 18, height: 8, "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: color, "stroke-width": 2, "stroke-dasharray": dash.join(" ") }));
}
