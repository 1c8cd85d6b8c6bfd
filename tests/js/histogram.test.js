import assert from "node:assert/strict";
import { test } from "node:test";

import { exponentRange, lost, magnitudes, nothingFinite, percent } from "../../plugins/tensorboard_plugin_tbnum/frontend/losses.ts";

const FLOAT16 = { name: "float16", max: 65504, smallest_normal: 2 ** -14, smallest_subnormal: 2 ** -24, flushes_to: 2 ** -25, overflows_from: 65520 };
const edges = { first_bin: 1, last_bin: 255, upper_exponent: -127 };
/** Bin of the magnitudes above 2**(exponent - 1) and up to 2**exponent. */
const bin = (exponent) => exponent + 127;
const histogram = (counts, more = {}) => ({ step: 0, counts, zero: 0, inf: 0, nan: 0, low: null, high: null, edges, loss_scale: 1, formats: [FLOAT16], steps_available: [0, 0, 1], ...more });

test("what a format flushes to zero at a power of two is a number of whole bins", () => {
  const counts = [[bin(-26), 10], [bin(-25), 20], [bin(-24), 40], [bin(0), 30]];
  assert.deepEqual(lost(histogram(counts), FLOAT16, 1), { zero: 0.3, overflow: 0 });
  assert.deepEqual(lost(histogram(counts), FLOAT16, 2), { zero: 0.1, overflow: 0 });
  assert.deepEqual(lost(histogram(counts), FLOAT16, 4), { zero: 0, overflow: 0 });
});

test("what overflows is what lies above the largest number times the scale, and all infinities", () => {
  const counts = [[bin(0), 50], [bin(1), 25], [bin(2), 25]];
  assert.equal(lost(histogram(counts), FLOAT16, 2 ** 15).overflow, 0.25);
  assert.equal(lost(histogram(counts), FLOAT16, 2 ** 16).overflow, 0.5);
  assert.equal(lost(histogram(counts, { inf: 100 }), FLOAT16, 1).overflow, 0.5);
});

test("elements that are zero already are not flushed, but count in the share", () => {
  assert.deepEqual(lost(histogram([[bin(-30), 50]], { zero: 50 }), FLOAT16, 1), { zero: 0.5, overflow: 0 });
  assert.deepEqual(lost(histogram([]), FLOAT16, 1), { zero: 0, overflow: 0 });
});

test("a share is never rounded down to none", () => {
  assert.equal(percent(0), "0 %");
  assert.equal(percent(1e-9), "< 0.0001 %");
  assert.equal(percent(0.0123456), "1.23 %");
  assert.deepEqual(exponentRange([bin(-60), bin(10)], -127), [-63, 12]);
});

test("magnitudes that were not measured come from the bins, and none where nothing was counted", () => {
  const counts = [[bin(-30), 1], [bin(-5), 2]];
  assert.equal(magnitudes(histogram(counts)), "; magnitudes 2⁻³¹ to 2⁻⁵");
  assert.equal(magnitudes(histogram(counts, { low: 0.000012345, high: 0.03 })), "; magnitudes 1.23×10⁻⁵ to 0.03");
  assert.equal(magnitudes(histogram([])), "");
});

test("a histogram without a bar says why", () => {
  assert.equal(nothingFinite(histogram([], { zero: 3, inf: 174, nan: 20278 })), "No finite value but zero: ∞ 174, NaN 20,278");
  assert.equal(nothingFinite(histogram([], { zero: 3 })), "Every value is zero");
});
