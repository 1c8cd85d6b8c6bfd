import assert from "node:assert/strict";
import { test } from "node:test";

import { clippedText } from "../../plugins/tensorboard_plugin_tbnum/frontend/describe.ts";
import { exact } from "./series.js";

test("the share of clipped updates is exact, where steps are reduced too, and leaves out skipped steps", () => {
  const series = exact({ clipped: [0, 1, NaN, 1, 0] });
  assert.equal(clippedText(series, "", 0, 4), "clipped in 50 % of 4 updates");
  assert.equal(clippedText(series, "", 4, 4), "clipped in 0 % of 1 update");
  const line = { mean: [0.25, NaN, Math.fround(1 / 3)], known: [8, 0, 6], last: [1, NaN, 0] };
  const reduced = { exact: false, length: 3, step: [0, 8, 16], stepLast: [7, 15, 23], line: () => line };
  assert.equal(clippedText(reduced, "", 0, 23), "clipped in 29 % of 14 updates");
});
