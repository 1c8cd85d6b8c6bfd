import assert from "node:assert/strict";
import { test } from "node:test";

import { relativeTo } from "../../plugins/tensorboard_plugin_tbnum/frontend/baseline.ts";
import { plotData } from "../../plugins/tensorboard_plugin_tbnum/frontend/plotdata.ts";
import { CHARTS } from "../../plugins/tensorboard_plugin_tbnum/frontend/views.ts";
import { exact } from "./series.js";

const base = { start: [0, 10, 20], values: [2, 0, 4], end: 29 };

test("a value is held against what the baseline has at the same x, and against nothing where it has none", () => {
  const above = relativeTo(base, "difference");
  assert.deepEqual([above(3, 0), above(3, 9), above(3, 25), above(3, 30), above(3, -1)], [1, 1, -1, NaN, NaN]);
  const times = relativeTo(base, "ratio");
  assert.deepEqual([times(3, 5), times(3, 15), times(2, 29)], [1.5, NaN, 0.5]);
});

test("a chart draws what is left of the values, and nothing where the baseline is unknown", () => {
  const series = exact({ loss: [3, 5, 7] });
  const own = { start: series.step, values: [3, NaN, 6], end: 2 };
  const { data } = plotData(CHARTS[0], series, { scale: "linear", prefix: "", smoothing: 0, xOf: (step) => step, relative: relativeTo(own, "difference") });
  assert.deepEqual(data[4], [0, null, 1]);
});
