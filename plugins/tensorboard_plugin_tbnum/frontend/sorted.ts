/** Searches in what is sorted: steps, buckets of steps, x. */

import type { Series } from "./api.ts";

/** Index of the first element >= `value`. */
export function lowerBound(sorted: ArrayLike<number>, value: number) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Index of the entry of a series that holds a step, -1 if none. */
export function indexOfStep(series: Series, step: number) {
  const after = lowerBound(series.step, step + 1);
  return after > 0 && series.stepLast[after - 1] >= step ? after - 1 : -1;
}

/** Index of the bucket that holds x, -1 outside of all. @param end of the last one */
export function bucketAt(starts: ArrayLike<number>, x: number, end: number) {
  if (!starts.length || x < starts[0] || x > end) return -1;
  return lowerBound(starts, x + 1e-9) - 1;
}
