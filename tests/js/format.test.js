import assert from "node:assert/strict";
import { test } from "node:test";

import {
  formatAge, formatCompact, formatCount, formatElapsed, formatNumber, formatScale, formatScaleShort, formatShare,
  linearLabels, linearTicks, log10Labels, log10Ticks, log2Labels, log2Ticks, statusOf, stepLabels, timeLabels, timeTicks, typeset, parseCount,
} from "../../plugins/tensorboard_plugin_tbnum/frontend/format.ts";

test("an unknown value is a dash, a non-finite one is what it is", () => {
  assert.equal(formatNumber(null), "–");
  assert.equal(formatNumber(undefined), "–");
  assert.equal(formatNumber(NaN), "NaN");
  assert.equal(formatNumber(Infinity), "∞");
  assert.equal(formatNumber(-Infinity), "−∞");
});

test("a number keeps six significant digits, and says its power of ten where it is very large or small", () => {
  assert.equal(formatNumber(0), "0");
  assert.equal(formatNumber(2.3141592), "2.31416");
  assert.equal(formatNumber(-0.5), "−0.5");
  assert.equal(formatNumber(123456.7), "123,457");
  assert.equal(formatNumber(3e-4), "0.0003");
  assert.equal(formatNumber(1.25e-7), "1.25×10⁻⁷");
  assert.equal(formatNumber(3.4e38), "3.4×10³⁸");
});

test("counts have thousands apart, and are rounded down where room is short", () => {
  assert.equal(formatCount(1234567), "1,234,567");
  assert.equal(formatCount(null), "–");
  assert.deepEqual([999, 1000, 1999, 35_900, 1_000_000, 2_560_000_000].map(formatCompact), ["999", "1k", "1.9k", "35k", "1M", "2.5G"]);
});

test("a loss scale that is a power of two says which", () => {
  assert.equal(formatScale(65536), "65,536 (2¹⁶)");
  assert.equal(formatScale(0.25), "0.25 (2⁻²)");
  assert.equal(formatScale(1), "1");
  assert.equal(formatScale(100), "100");
  assert.equal(formatScaleShort(65536), "2¹⁶");
  assert.equal(formatScaleShort(null), "–");
});

test("a share is never rounded down to none", () => {
  assert.equal(formatShare(0, 10), "0 %");
  assert.equal(formatShare(7, 50000), "0.014 %");
  assert.equal(formatShare(1, 1e6), "< 0.01 %");
  assert.equal(formatShare(0, 0), "–");
});

test("time since the start reads as a clock", () => {
  assert.equal(formatElapsed(0), "0:00");
  assert.equal(formatElapsed(59.6), "1:00");
  assert.equal(formatElapsed(3723), "1:02:03");
  assert.equal(formatElapsed(2 * 86400 + 3600), "2d 01:00:00");
  assert.equal(formatElapsed(-90), "−1:30");
  assert.equal(formatElapsed(98.5, 1), "1:38.5");
  assert.equal(formatElapsed(99.96, 1), "1:40.0");
  assert.equal(formatElapsed(0.25), "0:00.250");
  assert.equal(formatElapsed(-0.25), "−0:00.250");
  assert.equal(formatElapsed(1.25), "0:01");
  assert.equal(formatAge(3599), "59 min");
});

test("status: training while steps come as usual, then silent, and what the log says at its end", () => {
  const run = { ended: null, steps: 101, first_wall_time: 1000, last_wall_time: 1100 };
  assert.equal(statusOf(run, 1120).state, "training");
  assert.equal(statusOf(run, 1400).text, "silent for 5 min");
  assert.equal(statusOf({ ...run, steps: 2 }, 1400).state, "training", "a step of 100 s is awaited for longer");
  assert.equal(statusOf({ ...run, ended: "closed" }, 1120).state, "ended");
  assert.equal(statusOf({ ...run, ended: "crash" }, 1120).state, "crashed");
  assert.equal(statusOf({ ...run, last_wall_time: null }, 0).state, "unknown");
});

test("linear ticks are round, inside, and no more than asked for", () => {
  assert.deepEqual(linearTicks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(linearTicks(-0.11, 0.32, 4), [0, 0.2]);
  assert.deepEqual(linearTicks(380, 460, 4), [380, 400, 420, 440, 460]);
  assert.deepEqual(linearTicks(10, 13, 10, 1), [10, 11, 12, 13], "steps have no fractions");
  assert.deepEqual(linearTicks(5, 4, 3), []);
  for (const [min, max] of [[0, 1e-30], [1e300, 1.1e300], [-5, 1e9], [0.1, 0.3]]) {
    const ticks = linearTicks(min, max, 6);
    assert.ok(ticks.length <= 7 && ticks.every((tick) => tick >= min - 1e-9 * Math.abs(min) && tick <= max * (1 + 1e-9)), `${ticks}`);
  }
});

test("linear labels share their decimals", () => {
  assert.deepEqual(linearLabels([0, 0.5, 1]), ["0.0", "0.5", "1.0"]);
  assert.deepEqual(linearLabels([-2, 0, 2]), ["−2", "0", "2"]);
  assert.deepEqual(linearLabels([0, 2e6]), ["0", "2×10⁶"]);
  assert.deepEqual(linearLabels([1234500, 1234600]), ["1.2345×10⁶", "1.2346×10⁶"], "no two are the same");
  assert.deepEqual(linearLabels([0.00099995, 0.0009999]), ["9.9995×10⁻⁴", "9.999×10⁻⁴"]);
  assert.deepEqual(linearLabels([]), []);
});

test("step labels stay whole numbers, and count in millions only where ticks are far apart", () => {
  assert.deepEqual(stepLabels([0, 250_000, 500_000]), ["0", "250,000", "500,000"]);
  assert.deepEqual(stepLabels([0, 500_000, 1_000_000]), ["0", "0.5M", "1M"]);
  assert.deepEqual(stepLabels([1_000_000, 1_000_050]), ["1,000,000", "1,000,050"]);
});

test("time ticks fall on seconds, minutes and hours, and on tenths within a second", () => {
  assert.deepEqual(timeTicks(0, 100, 4), [0, 30, 60, 90]);
  assert.deepEqual(timeLabels(timeTicks(0, 100, 4)), ["0:00", "0:30", "1:00", "1:30"]);
  assert.deepEqual(timeTicks(0, 4 * 3600, 4), [0, 3600, 7200, 10800, 14400]);
  assert.deepEqual(timeLabels(timeTicks(97.6, 99.9, 4)), ["1:38", "1:39"]);
  assert.deepEqual(timeLabels(timeTicks(97.9, 98.6, 4)), ["1:38.0", "1:38.2", "1:38.4", "1:38.6"]);
  assert.deepEqual(timeLabels([0, 0.0002, 0.0004]), ["0:00.0000", "0:00.0002", "0:00.0004"]);
  assert.deepEqual(timeLabels([0.5]), ["0:00.5"]);
  assert.deepEqual(timeLabels([0]), ["0:00"]);
});

test("a log2 axis has whole exponents only", () => {
  assert.deepEqual(log2Ticks(14.3, 18.7, 4), [15, 16, 17, 18]);
  assert.deepEqual(log2Ticks(0, 16, 4), [0, 4, 8, 12, 16]);
  assert.deepEqual(log2Labels([-1, 0, 16]), ["2⁻¹", "2⁰", "2¹⁶"]);
});

test("a log10 axis has decades, 1-2-5 where few are in view, and linear ticks within one", () => {
  assert.deepEqual(log10Ticks(-2, 3, 6), [-2, -1, 0, 1, 2, 3]);
  assert.deepEqual(log10Labels(log10Ticks(-0.5, 0.6, 5)), ["0.5", "1", "2", "3"]);
  assert.deepEqual(log10Labels(log10Ticks(Math.log10(4.2), Math.log10(4.8), 4)), ["4.2", "4.4", "4.6", "4.8"]);
  assert.deepEqual(log10Labels([-5, -1, 0, 5]), ["10⁻⁵", "0.1", "1", "10⁵"]);
});

test("powers and arrows of a message are written as elsewhere in the panel", () => {
  assert.equal(typeset("The loss scale grew: 2^16 -> 2^17, from 1e-3 to 2^-24; a^2 stays."), "The loss scale grew: 2¹⁶ → 2¹⁷, from 1e-3 to 2⁻²⁴; a^2 stays.");
});

test("a step is read however people write its thousands, and nothing else is a step", () => {
  for (const text of ["1234567", "1,234,567", "1.234.567", "1 234 567", "1'234'567", " 1_234_567 "]) assert.equal(parseCount(text), 1234567, text);
  for (const text of ["", "1.5", "1,23", "-4", "1e3", "12,34,567", "step 4"]) assert.equal(parseCount(text), null, text);
});
