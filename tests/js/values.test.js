import assert from "node:assert/strict";
import { test } from "node:test";

import { pointsInView } from "../../plugins/tensorboard_plugin_tbnum/frontend/values.ts";

test("the table has the points in view, or evenly chosen ones with both ends", () => {
  const step = Float64Array.from({ length: 100 }, (_, at) => 10 * at);
  const series = { length: 100, step, stepLast: step.map((one) => one + 9) };
  assert.deepEqual(pointsInView(series, [25, 45]), [2, 3, 4]);
  const chosen = pointsInView(series, [0, 999], 10);
  assert.equal(chosen.length, 10);
  assert.deepEqual([chosen[0], chosen[9]], [0, 99]);
  assert.deepEqual(pointsInView(series, [5000, 6000]), []);
});
