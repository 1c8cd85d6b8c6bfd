/** Values held against those of another run: how much they are above it, or how many times as large. Pure. */

import { bucketAt } from "./sorted.ts";

/** `off`: values as they are. */
export type Against = "off" | "difference" | "ratio";

/** What others are held against: where each of its points begins, its values, and where it ends. */
export type Base = { start: ArrayLike<number>; values: ArrayLike<number>; end: number };

/** A value at an x, held against what the other run has there; NaN where that is not known. */
export type Relative = (value: number, x: number) => number;

export function relativeTo({ start, values, end }: Base, against: Exclude<Against, "off">): Relative {
  return (value, x) => {
    const at = bucketAt(start, x, end);
    const base = at < 0 ? NaN : values[at];
    return against === "difference" ? value - base : base === 0 ? NaN : value / base;
  };
}
