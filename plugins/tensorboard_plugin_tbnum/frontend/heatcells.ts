/**
 * The heat map's numbers: which rows there are, how bad each is, and which colour a value has. Pure: `heatmap.ts`
 * draws.
 *
 * The server reduces to about a bucket a pixel and keeps the worst of each; here rows are put in modules and cells onto
 * pixels, again by the worst. Nothing is ever scaled as an image.
 */

import { lowerBound } from "./sorted.ts";

import type { Cells } from "./answers.ts";
import type { Geometry } from "./model.ts";

export type HeatMode = {
  id: string;
  column: string;
  title: string;
  /** doublings: small is bad. none: only what is not finite counts. ratio: both sides of 1 are */
  scale: "log" | "share" | "doublings" | "none" | "ratio";
};

export type HeatRow = {
  /** of the tensor, or the module */
  name: string;
  label: string;
  /** rows of the cells */
  members: number[];
  group: boolean;
  open: boolean;
  level: number;
};

/** What can be looked at, of what a run has. */
export const MODES: HeatMode[] = [
  { id: "grad_norm", column: "grad_norm", title: "Gradient norm", scale: "log" },
  { id: "update_ratio", column: "update_ratio", title: "Update ratio", scale: "log" },
  { id: "underflow/float16", column: "underflow/float16", title: "Underflow in float16", scale: "share" },
  { id: "overflow/float16", column: "overflow/float16", title: "Overflow in float16", scale: "share" },
  { id: "headroom/float16", column: "headroom/float16", title: "Headroom in float16", scale: "doublings" },
  { id: "nonfinite", column: "grad_norm", title: "Not finite", scale: "none" },
  { id: "float8_amax", column: "float8_amax", title: "Largest cast to float8", scale: "log" },
  { id: "float8_flushed", column: "float8_flushed", title: "Flushed in float8", scale: "share" },
  { id: "float8_saturated", column: "float8_saturated", title: "Saturated in float8", scale: "share" },
];

const MOST_ROWS_AT_FIRST = 120;

/** The module of a tensor, at most `depth` levels below the model. */
export function moduleOf(name: string, depth: number) {
  return name.split(".").slice(0, -1).slice(0, depth).join(".");
}

/** How many levels of modules there are above tensors. */
export function deepest(names: string[]) {
  return names.reduce((most, name) => Math.max(most, name.split(".").length - 1), 0);
}

/** The finest grouping whose rows are not too many; one level more than there are is every tensor by itself. */
export function depthAtFirst(names: string[]) {
  const levels = deepest(names);
  if (names.length <= MOST_ROWS_AT_FIRST) return levels + 1;
  for (let depth = levels; depth > 1; depth--) {
    if (new Set(names.map((name) => moduleOf(name, depth))).size <= MOST_ROWS_AT_FIRST) return depth;
  }
  return 1;
}

/**
 * The rows to show: modules with what is below the opened ones, in the model's order or the worst first.
 *
 * @param names of tensors
 * @param options
 * `badness`: of each tensor, where the worst come first; `counts`: whether it is a count, to be shown
 */
export function heatRows(names: string[],
  { depth, open, badness, counts = false }: { depth: number; open: Set<string>; badness: ArrayLike<number> | null;
    counts?: boolean }): HeatRow[] {
  const groups: Map<string, number[]> = new Map();
  const alone = depth > deepest(names);
  names.forEach((name, at) => {
    const key = alone ? `\0${at}` : moduleOf(name, depth);
    const members = groups.get(key);
    if (members) members.push(at);
    else groups.set(key, [at]);
  });
  const worst = (members: number[]) =>
    members.reduce((most, at) => Math.max(most, badness ? badness[at] : 0), -Infinity);
  const sorted = [...groups];
  if (badness) sorted.sort((a, b) => worst(b[1]) - worst(a[1]));
  const named = (label: string, members: number[]) => {
    const count = badness && counts ? members.reduce((sum, at) => sum + badness[at], 0) : 0;
    return count ? `${label} · ${count}` : label;
  };
  return sorted.flatMap(([key, members]) => {
    if (members.length === 1)
      return [{ name: names[members[0]], label: named(names[members[0]], members), members, group: false, open: false,
        level: 0 }];
    const isOpen = open.has(key);
    const label = key === "" ? "(the model's own)" : key;
    const inside = badness ? [...members].sort((a, b) => badness[b] - badness[a]) : members;
    return [
      { name: key, label: named(label, members), members, group: true, open: isOpen, level: 0 },
      ...(isOpen
        ? inside.map((at) => ({ name: names[at], label: named(names[at].slice(key ? key.length + 1 : 0), [at]),
          members: [at],
          group: false, open: false, level: 1 })
        ) : []),
    ];
  });
}

const ABOVE_ALL = 1e40; // cells are float32

/** How bad a value is; -Infinity where nothing is known. */
function badOf({ minimum }: Cells, { scale }: HeatMode, value: number) {
  if (Number.isNaN(value)) return -Infinity;
  return scale === "ratio" ? Math.abs(Math.log(value)) : minimum ? -value : value;
}

/** How bad each tensor was at its worst: not finite before all else. @param from step @param to step */
export function badnessOf(cells: Cells, mode: HeatMode, from: number, to: number) {
  const width = cells.step.length;
  const [first, last] = [lowerBound(cells.stepLast, from), lowerBound(cells.step, to + 1)];
  return Float64Array.from(cells.rows, (_, row) => {
    let [worst, broken] = [-Infinity, 0];
    for (let at = row * width + first; at < row * width + last; at++) {
      broken += cells.nonfinite[at];
      worst = Math.max(worst, badOf(cells, mode, cells.value[at]));
    }
    if (mode.scale === "none") return broken;
    return broken ? broken * ABOVE_ALL : worst;
  });
}

/** The bucket whose sample stands for a step; -1 before the first. */
export function bucketOf({ step }: Cells, at: number) {
  return lowerBound(step, at + 1) - 1;
}

/** The worst value of some rows in a bucket, whose it is (-1: nothing is known), and how many are not finite. */
export function worstOf(cells: Cells, mode: HeatMode, members: number[], bucket: number) {
  const width = cells.step.length;
  let [worst, at, broken] = [-Infinity, -1, 0];
  for (const member of members) {
    const value = cells.value[member * width + bucket];
    broken += cells.nonfinite[member * width + bucket];
    const bad = badOf(cells, mode, value);
    if (bad > worst) [worst, at] = [bad, member];
  }
  return { value: at < 0 ? null : cells.value[at * width + bucket], at, broken };
}

/** In how many rows something from step to step was not finite. */
export function brokenRows(cells: Cells, rows: { members: number[] }[], from: number, to: number) {
  const width = cells.step.length;
  const [first, last] = [lowerBound(cells.stepLast, from), lowerBound(cells.step, to + 1)];
  return rows.filter(({ members }) =>
    members.some((row) => cells.nonfinite.subarray(row * width + first, row * width + last).some(Boolean))
  ).length;
}

/**
 * The values that the ends of the colours stand for: all of the finite ones, but for the lowest hundredth on a
 * logarithmic scale, where a tensor that hardly gets a gradient would take the colours from all others.
 */
export function rangeOf(cells: Cells, mode: HeatMode): [number, number] {
  if (mode.scale === "share") return [0, 1];
  if (mode.scale === "none") return [0, 1];
  if (mode.scale === "ratio") return ratioRange(cells);
  let [least, high] = [Infinity, -Infinity];
  const some: number[] = []; // enough to know the lowest hundredth by; sorting millions takes a second
  const stride = Math.ceil(cells.value.length / 20_000);
  for (let at = 0; at < cells.value.length; at++) {
    const value = cells.value[at];
    if (!Number.isFinite(value) || (mode.scale === "log" && value <= 0)) continue;
    least = Math.min(least, value);
    high = Math.max(high, value);
    if (at % stride === 0) some.push(value);
  }
  if (high === -Infinity) return [0, 1];
  some.sort((x, y) => x - y);
  const low = mode.scale === "log" ? some[Math.floor(some.length / 100)] ?? least : least;
  if (high > low) return [low, high];
  return mode.scale === "log" ? [low / 2, low * 2] : [low - 1, low + 1];
}

/** As far below 1 as above, without the hundredth that is furthest. */
function ratioRange({ value }: Cells): [number, number] {
  const stride = Math.ceil(value.length / 20_000);
  const far = [];
  for (let at = 0; at < value.length; at += stride)
    if (value[at] > 0 && value[at] < Infinity) far.push(Math.abs(Math.log(value[at])));
  far.sort((a, b) => a - b);
  const most = Math.exp(Math.max(Math.log(1.01), far[Math.floor(0.99 * far.length)] ?? 0));
  return [1 / most, most];
}

/** Where in the colours a value stands, 0 to 1; the bad end is 1. */
export function shareOf(value: number, mode: HeatMode, [low, high]: [number, number]) {
  let share;
  switch (mode.scale) {
    case "log":
    case "ratio":
      share = value > 0 ? Math.log(value / low) / Math.log(high / low) : 0;
      break;
    case "share":
      share = Math.sqrt(value);
      break; // one in ten thousand is to be seen
    case "doublings":
      share = 1 - (value - low) / (high - low);
      break;
    default:
      share = 0;
  }
  return Math.max(0, Math.min(1, share));
}

/**
 * The distance between samples in which most steps lie; a few steps that were sampled one by one do not count.
 */
export function usualGap(step: Float64Array, stepLast: Float64Array) {
  const gaps = Float64Array.from({ length: Math.max(0, step.length - 1) }, (_, at) => step[at + 1] - stepLast[at])
    .sort();
  const half = gaps.reduce((sum, gap) => sum + gap, 0) / 2;
  let sum = 0;
  for (const gap of gaps) {
    sum += gap;
    if (sum >= half) return gap;
  }
  return 1;
}

const LEAST_BROKEN = 6; // pixels of what is not finite, however short it was

/**
 * Which pixels each bucket covers: up to the next bucket, as samples stand for the steps until the next one, but not
 * across a stretch in which samples are missing; and never less than a pixel. `end` is where its own steps end: what
 * was not finite is known of those alone.
 *
 * @param ratio pixels of the canvas for one of the page
 * @returns right and end are exclusive
 */
export function spans({ step, stepLast }: Cells, { xOf, min, max, width }: Geometry,
  ratio: number): { left: Int32Array; right: Int32Array; end: Int32Array } {
  const count = step.length;
  const reach = 1.5 * usualGap(step, stepLast);
  const toPixel = (at: number) => Math.round(((xOf(at) - min) / (max - min)) * width * ratio);
  const left = Int32Array.from(step, toPixel);
  const right = new Int32Array(count);
  const end = new Int32Array(count);
  for (let at = 0; at < count; at++) {
    const next = at + 1 < count ? step[at + 1] : Infinity;
    right[at] = Math.max(left[at] + 1, toPixel(Math.min(next, stepLast[at] + reach)));
    end[at] = Math.max(left[at] + 1, toPixel(Math.min(next, stepLast[at] + 1)));
  }
  return { left, right, end };
}

/**
 * One row of pixels of a heat-map row: share 0 to 255, -1 where nothing is known, -2 where something was not finite.
 *
 * @param members rows of `cells`
 */
export function rowPixels(cells: Cells, members: number[],
  { left, right, end }: { left: Int32Array; right: Int32Array; end: Int32Array }, pixels: number, mode: HeatMode,
  range: [number, number]) {
  const line = new Int16Array(pixels).fill(-1);
  const far = mode.scale === "ratio" ? (share: number) => (share < 0 ? -1 : Math.abs(share - 127.5))
    : (share: number) => share;
  const worse = (a: number, b: number) => (far(b) > far(a) ? b : a);
  const width = cells.step.length;
  const broken: number[] = [];
  for (let bucket = 0; bucket < width; bucket++) {
    if (right[bucket] <= 0 || left[bucket] >= pixels) continue;
    let share = -1;
    let bad = false;
    for (const row of members) {
      const value = cells.value[row * width + bucket];
      if (cells.nonfinite[row * width + bucket]) bad = true;
      if (Number.isFinite(value)) share = worse(share, Math.round(255 * shareOf(value, mode, range)));
    }
    if (bad) broken.push(bucket);
    for (let x = Math.max(0, left[bucket]); x < Math.min(pixels, right[bucket]); x++)
      line[x] = worse(line[x], share);
  }
  for (const bucket of broken) { // last, and never too narrow to be seen
    const more = Math.max(0, LEAST_BROKEN - (end[bucket] - left[bucket])) >> 1;
    line.fill(-2, Math.max(0, left[bucket] - more), Math.max(0, Math.min(pixels, end[bucket] + more)));
  }
  return line;
}
