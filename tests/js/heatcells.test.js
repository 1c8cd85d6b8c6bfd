import assert from "node:assert/strict";
import { test } from "node:test";

import { MODES, badnessOf, brokenRows, deepest, depthAtFirst, heatRows, moduleOf, rangeOf, rowPixels, shareOf, spans, usualGap } from "../../plugins/tensorboard_plugin_tbnum/frontend/heatcells.ts";
import { colourMap } from "../../plugins/tensorboard_plugin_tbnum/frontend/heatcolours.ts";

const NAMES = ["wte.weight", "blocks.0.attn.weight", "blocks.0.attn.bias", "blocks.1.attn.weight", "ln_f.weight"];

const LOG = MODES[0];

/** Cells from rows of values; "!" is a value that was not finite, null one that is unknown. */
function cells(rows, { step, stepLast = step, minimum = false } = {}) {
  const flat = rows.flat();
  const steps = Float64Array.from(step ?? rows[0].map((_, at) => at * 10));
  return {
    rows: rows.map((_, at) => NAMES[at]), rowsTotal: rows.length, bucketSteps: 1, minimum, step: steps, stepLast: Float64Array.from(stepLast ?? steps),
    value: Float32Array.from(flat, (value) => (typeof value === "number" ? value : NaN)), nonfinite: Uint32Array.from(flat, (value) => (value === "!" ? 1 : 0)),
  };
}

const geometry = { left: 0, width: 40, min: 0, max: 40, time: false, xOf: (step) => step, stepOf: (x) => x };

test("tensors are put in their modules, in the model's order; a module of one tensor is that tensor", () => {
  assert.equal(moduleOf("blocks.0.attn.weight", 2), "blocks.0");
  assert.equal(deepest(NAMES), 3);
  const rows = heatRows(NAMES, { depth: 2, open: new Set(), badness: null });
  assert.deepEqual(rows.map(({ label, members }) => [label, members]), [["wte.weight", [0]], ["blocks.0", [1, 2]], ["blocks.1.attn.weight", [3]], ["ln_f.weight", [4]]]);
  const open = heatRows(NAMES, { depth: 2, open: new Set(["blocks.0"]), badness: null });
  assert.deepEqual(open.map(({ label }) => label), ["wte.weight", "blocks.0", "attn.weight", "attn.bias", "blocks.1.attn.weight", "ln_f.weight"]);
});

test("the worst come first, within modules too", () => {
  const rows = heatRows(NAMES, { depth: 2, open: new Set(["blocks.0"]), badness: [1, 2, 9, 5, 0] });
  assert.deepEqual(rows.map(({ name }) => name), ["blocks.0", "blocks.0.attn.bias", "blocks.0.attn.weight", "blocks.1.attn.weight", "wte.weight", "ln_f.weight"]);
});

test("few tensors stand by themselves at first, thousands in modules", () => {
  assert.equal(depthAtFirst(NAMES), deepest(NAMES) + 1);
  const many = Array.from({ length: 3000 }, (_, at) => `blocks.${Math.floor(at / 30)}.part${at % 30}.weight`);
  assert.equal(depthAtFirst(many), 2);
  assert.equal(heatRows(many, { depth: 2, open: new Set(), badness: null }).length, 100);
});

test("what is not finite is worse than any value, and small headroom worse than large", () => {
  const badness = badnessOf(cells([[1, 2], ["!", 0.1], [5, 1]]), LOG, 0, 10);
  assert.ok(badness[1] > badness[2] && badness[2] > badness[0]);
  const often = badnessOf(cells([["!", 3e38], ["!", "!"]]), LOG, 0, 10);
  assert.ok(often[1] > often[0], "and the more often the worse");
  const headroom = badnessOf(cells([[3, 9], [1, 9]], { minimum: true }), MODES[4], 0, 10);
  assert.ok(headroom[1] > headroom[0]);
  assert.equal(badnessOf(cells([[1, 50]]), LOG, 0, 5)[0], 1, "only what is in view counts");
});

test("colours have even steps of lightness, away from the ground", () => {
  for (const dark of [false, true]) {
    const luminance = Array.from(colourMap(dark), (pixel) => {
      const [r, g, b] = [0, 8, 16].map((shift) => (((pixel >>> shift) & 255) / 255) ** 2.2);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    });
    const lightness = luminance.map((value) => Math.cbrt(value));
    const steps = lightness.slice(1).map((value, at) => (value - lightness[at]) * (dark ? 1 : -1));
    const mean = steps.reduce((sum, step) => sum + step, 0) / steps.length;
    assert.ok(mean > 0.0015);
    for (let at = 0; at + 32 <= steps.length; at += 16) {
      const part = steps.slice(at, at + 32).reduce((sum, step) => sum + step, 0) / 32;
      assert.ok(part > 0.4 * mean && part < 1.7 * mean, `${dark ? "dark" : "light"} at ${at}: ${part / mean}`);
    }
  }
});

test("the ends of the colours are the data's, but for the lowest hundredth of a logarithmic scale", () => {
  const row = Array.from({ length: 300 }, (_, at) => (at < 2 ? 1e-20 : 1 + at));
  const [low, high] = rangeOf(cells([row]), LOG);
  assert.ok(low >= 3 && high === 300);
  assert.equal(shareOf(high, LOG, [low, high]), 1);
  assert.equal(shareOf(0, LOG, [low, high]), 0);
  assert.equal(shareOf(2, MODES[4], [2, 10]), 1, "little headroom is the bad end");
  assert.deepEqual(rangeOf(cells([[null, "!"]]), LOG), [0, 1]);
});

test("a sample stands for the steps until the next one, but not across missing ones", () => {
  const step = Float64Array.from([0, 10, 11, 12, 20, 100]);
  assert.equal(usualGap(Float64Array.from([0, 10, 11, 12, 20, 30]), Float64Array.from([0, 10, 11, 12, 20, 30])), 10);
  const { left, right } = spans({ ...cells([[1, 1, 1, 1, 1, 1]], { step }) }, { ...geometry, width: 120, max: 120 }, 1);
  assert.deepEqual([...left], [0, 10, 11, 12, 20, 100]);
  assert.deepEqual([...right.subarray(0, 4)], [10, 11, 12, 20]);
});

test("cells that share a pixel show the worst of them, and what is not finite is never too small to see", () => {
  const step = [0, 1, 2, 3];
  const narrow = { ...geometry, width: 2, max: 4 };
  const dense = cells([[1, 100, 1, 1]], { step });
  const line = rowPixels(dense, [0], spans(dense, narrow, 1), 2, LOG, [1, 100]);
  assert.deepEqual([...line], [0, 255]);
  const broken = cells([[1, 1, "!", 1]], { step: [0, 10, 20, 30] });
  const wide = rowPixels(broken, [0], spans(broken, geometry, 1), 40, LOG, [1, 100]);
  assert.ok(wide.filter((share) => share === -2).length >= 5);
  const unknown = cells([[1, null, 1, 1]]);
  assert.deepEqual([...rowPixels(unknown, [0], spans(unknown, geometry, 1), 40, LOG, [1, 100])].slice(10, 20), new Array(10).fill(-1));
});

test("a module shows its worst tensor", () => {
  const two = cells([[1, 1], [100, 1]]);
  assert.equal(rowPixels(two, [0, 1], spans(two, geometry, 1), 40, LOG, [1, 100])[0], 255);
});

test("rows that were not finite are counted by the steps in view alone", () => {
  const map = cells([["!", 1, 1], [1, 1, 1], [1, 1, "!"]]);
  const rows = [{ members: [0, 1] }, { members: [2] }];
  assert.deepEqual([[0, 20], [0, 9], [1, 19], [15, 25]].map(([from, to]) => brokenRows(map, rows, from, to)), [2, 1, 0, 1]);
});
