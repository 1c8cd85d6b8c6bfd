import assert from "node:assert/strict";
import { test } from "node:test";

import { pointsInView, statisticsOf } from "../../plugins/tensorboard_plugin_tbnum/frontend/values.ts";

test("the table has the points in view, or evenly chosen ones with both ends", () => {
  const step = Float64Array.from({ length: 100 }, (_, at) => 10 * at);
  const series = { length: 100, step, stepLast: step.map((one) => one + 9) };
  assert.deepEqual(pointsInView(series, [25, 45]), [2, 3, 4]);
  const chosen = pointsInView(series, [0, 999], 10);
  assert.equal(chosen.length, 10);
  assert.deepEqual([chosen[0], chosen[9]], [0, 99]);
  assert.deepEqual(pointsInView(series, [5000, 6000]), []);
});

test("statistics of the range in view weigh each point by the steps that it stands for", () => {
  const line = { last: [1, 2, 9], min: [0, 2, 9], max: [4, 2, 9], mean: [2, 2, 9], known: [8, 8, 0], nan: null, inf: null };
  assert.deepEqual(statisticsOf(line, [0, 1]), { mean: 2, least: 0, greatest: 4 });
  assert.deepEqual(statisticsOf({ ...line, mean: null, known: null }, [0, 2]), { mean: 5, least: 0, greatest: 9 });
});
