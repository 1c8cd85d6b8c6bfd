import assert from "node:assert/strict";
import { test } from "node:test";

import { rankValues, standingOut } from "../../plugins/tensorboard_plugin_tbnum/frontend/ranklines.ts";
import { exact } from "./series.js";

const calm = [1, 1.01, 0.99, 1];

test("the rank that is furthest from the others is the one that stands out, where it is far", () => {
  const ranks = new Map([[0, calm], [1, [1, 1, 1, 1]], [2, [1, 1.02, 5, 1]], [3, [0.99, 1, 1.05, 1]]]);
  assert.deepEqual(standingOut(ranks, 0, 4), { rank: 2, at: 2 });
  assert.equal(standingOut(ranks, 0, 2), null, "out of view");
  assert.equal(standingOut(new Map([[0, calm], [1, calm], [2, [1, 1, 1, 1.001]]]), 0, 4), null, "hardly differs");
});

test("of two ranks neither stands out, but one that is not finite does", () => {
  assert.equal(standingOut(new Map([[0, calm], [1, [9, 9, 9, 9]]]), 0, 4), null);
  assert.deepEqual(standingOut(new Map([[0, calm], [1, [1, 1, Infinity, 1]]]), 0, 4), { rank: 1, at: 2 });
  assert.equal(standingOut(new Map([[0, calm], [1, [1, NaN, 1, 1]]]), 0, 4), null, "NaN may be unknown");
});

test("ranks are known by the names of their columns, the tenth too", () => {
  const series = exact({ "loss/rank_0": [1], "loss/rank_10": [3], "loss/rank_min": [1], "grad_norm/rank_0": [7] });
  const found = rankValues(series, ["loss/rank_0", "loss/rank_10", "loss/rank_min", "grad_norm/rank_0", "loss/rank_4"], "loss");
  assert.deepEqual([...found].map(([rank, values]) => [rank, values[0]]), [[0, 1], [10, 3]]);
});
