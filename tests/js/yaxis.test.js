import assert from "node:assert/strict";
import { test } from "node:test";

import { ONTO_AXIS } from "../../plugins/tensorboard_plugin_tbnum/frontend/plotdata.ts";
import { withoutOutliers, yLabels, yTicks } from "../../plugins/tensorboard_plugin_tbnum/frontend/yaxis.ts";

const falling = Array.from({ length: 200 }, (_, at) => 5 - at / 50);

test("a point that flattens the rest is left out, and what does not is no outlier", () => {
  const points = (...values) => values.map((value) => [value]);
  const [low, high] = withoutOutliers(points(...falling.slice(0, 90), 1e6, ...falling.slice(90)));
  assert.ok(low >= 1 && high < 10, `${low} to ${high}`);
  assert.equal(withoutOutliers(points(...falling)), null);
  assert.equal(withoutOutliers(points(...falling, 20)), null, "the rest has a quarter of the height");
  assert.equal(withoutOutliers(points(1, 2, 1e9)), null, "a few points are all worth seeing");
  assert.equal(withoutOutliers(points(90, 60, 30, ...falling)), null, "what a curve begins with is none");
  const beside = withoutOutliers(points(...falling), points(40, 20, ...falling, 1e6));
  assert.ok(beside[1] >= 40 && beside[1] < 100, `of other runs too, and each begins as it does: ${beside}`);
  assert.equal(withoutOutliers(points(...new Array(100).fill(1), 7)), null, "of what is constant nothing is an outlier");
});

test("a logarithmic axis goes on below zero where there is such, and its ticks read as values", () => {
  const onto = ONTO_AXIS.symlog;
  assert.deepEqual([onto(0), onto(9), onto(-99), onto(NaN)], [0, 1, -2, null]);
  const ticks = yTicks("symlog", onto(-1000), onto(100), 300);
  const labels = yLabels("symlog", ticks);
  assert.ok(labels.includes("0") && labels.includes("−100") && labels.includes("10"), labels.join());
  assert.deepEqual([...ticks].sort((a, b) => a - b), ticks);
});

test("a low chart has two ticks where one multiple alone is within its range", () => {
  assert.deepEqual(yTicks("linear", -0.045, 0.04, 90), [-0.04, -0.02, 0, 0.02, 0.04]);
  const onto = ONTO_AXIS.symlog;
  assert.ok(yTicks("symlog", onto(-0.045), onto(0.04), 90).length > 1);
});
