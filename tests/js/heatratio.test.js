import assert from "node:assert/strict";
import { test } from "node:test";

import { MODES, rangeOf, rowPixels, shareOf, worstOf } from "../../plugins/tensorboard_plugin_tbnum/frontend/heatcells.ts";
import { coloursOf } from "../../plugins/tensorboard_plugin_tbnum/frontend/heatcolours.ts";
import { canBeHeld, ratioCells, ratioMode } from "../../plugins/tensorboard_plugin_tbnum/frontend/heatratio.ts";

function cells(rows, values, step, stepLast = step) {
  return { rows, rowsTotal: rows.length, bucketSteps: 1, minimum: false, step: Float64Array.from(step), stepLast: Float64Array.from(stepLast),
    value: Float32Array.from(values.flat()), nonfinite: new Uint32Array(values.flat().length) };
}

const RATIO = ratioMode(MODES[0], "other");

test("cells are held against the same tensor at the same step, and against nothing where the other run has none", () => {
  const own = cells(["a", "b", "c"], [[2, 4, 6], [1, 1, 1], [5, 5, 5]], [0, 10, 20]);
  const base = cells(["b", "a"], [[4, 0.5], [1, 8]], [0, 10]);
  assert.deepEqual([...ratioCells(own, base).value], [2, 0.5, NaN, 0.25, 2, NaN, NaN, NaN, NaN]);
});

test("a bucket is held against what the other run has within it, and nothing is divided by 0", () => {
  const own = cells(["a"], [[8, 9]], [0, 16], [15, 31]);
  const base = cells(["a"], [[4, 0]], [7, 20]);
  assert.deepEqual([...ratioCells(own, base).value], [2, NaN]);
});

test("1 is the middle of the colours, and of several rows the furthest from it is shown", () => {
  const held = cells(["a", "b"], [[0.125, 1], [2, 1]], [0, 10]);
  const range = rangeOf(held, RATIO);
  assert.ok(Math.abs(range[0] * range[1] - 1) < 1e-12);
  assert.equal(shareOf(1, RATIO, range), 0.5);
  assert.equal(worstOf(held, RATIO, [0, 1], 0).value, 0.125);
  const line = rowPixels(held, [0, 1], { left: Int32Array.of(0, 4), right: Int32Array.of(4, 8), end: Int32Array.of(1, 5) }, 8, RATIO, range);
  assert.equal(line[0], 0);
  assert.ok(Math.abs(line[4] - 127.5) <= 0.5);
});

test("only what is larger by a factor is held, and its colours have two sides", () => {
  assert.deepEqual(MODES.filter(canBeHeld).map(({ id }) => id), ["grad_norm", "update_ratio", "float8_amax"]);
  const colours = coloursOf(RATIO, false);
  assert.notEqual(colours[0], colours[255]);
  assert.notEqual(colours[0], colours[127]);
});
