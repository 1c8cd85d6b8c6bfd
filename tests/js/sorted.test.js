import assert from "node:assert/strict";
import { test } from "node:test";

import { bucketAt, indexOfStep, lowerBound } from "../../plugins/tensorboard_plugin_tbnum/frontend/sorted.ts";

test("a step is found in its bucket, and in none where there is none", () => {
  const series = { step: [0, 4, 8], stepLast: [3, 5, 9] };
  assert.deepEqual([0, 3, 5, 6, 9, 10].map((step) => indexOfStep(series, step)), [0, 0, 1, -1, 2, -1]);
});

test("lowerBound finds the first entry that is not smaller", () => {
  assert.deepEqual([0, 1, 2, 3, 4].map((value) => lowerBound([1, 1, 3], value)), [0, 0, 2, 2, 3]);
});

test("x is in the bucket that begins at it or before it, and in none beyond the ends", () => {
  const starts = Float64Array.of(0, 8, 16);
  assert.deepEqual([-1, 0, 7.9, 8, 20, 23, 24].map((x) => bucketAt(starts, x, 23)), [-1, 0, 0, 1, 2, 2, -1]);
  assert.equal(bucketAt(Float64Array.of(), 0, 0), -1);
});
