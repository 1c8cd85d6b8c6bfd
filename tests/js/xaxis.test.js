import assert from "node:assert/strict";
import { test } from "node:test";

import { TimeAxis, placesOf, xTickLabels, xTicks } from "../../plugins/tensorboard_plugin_tbnum/frontend/xaxis.ts";
import { exact } from "./series.js";

test("steps become seconds and back, also where the clock was set back", () => {
  const series = exact({ loss: [1, 1, 1, 1] });
  const axis = new TimeAxis(series);
  assert.equal(axis.xOf(2), 4);
  assert.equal(axis.stepOf(3), 1.5);
  assert.equal(axis.stepOf(axis.xOf(4.5)), 4.5, "beyond the last step too");
  const back = new TimeAxis({ ...series, wallTime: Float64Array.of(100, 102, 50, 106) });
  assert.deepEqual([0, 1, 2, 3].map((step) => back.xOf(step)), [0, 2, 2, 6]);
});

test("steps have ticks of their own and labels that fit, however large their numbers are", () => {
  const ticks = xTicks(false, 1e15, 1e15 + 49, 700);
  assert.deepEqual(ticks, [0, 20, 40].map((more) => 1e15 + more));
  assert.equal(xTickLabels(false, ticks)[1], "1,000,000,000,000,020");
  assert.deepEqual(xTicks(false, 0, 49, 700), [0, 10, 20, 30, 40]);
  assert.deepEqual(xTicks(false, 0, 0.3 * 1e6, 400), [0, 1e5, 2e5, 3e5]);
});

test("points on the axis are written as what it counts, with both ends of what they stand for", () => {
  const steps = placesOf("step", false);
  assert.deepEqual([steps.head, steps.write(0, 7), steps.span(8)], ["Steps", "0 to 7", "8 steps"]);
  assert.deepEqual([placesOf("step", true).head, placesOf("step", true).write(1234, 1234)], ["Step", "1,234"]);
  const time = placesOf("time", false);
  assert.deepEqual([time.head, time.write(90, 95), time.span(5)], ["Time since the first step", "1:30", "0:05"]);
  assert.deepEqual([placesOf("updates", false).head, placesOf("updates", false).span(1)], ["Updates done", "1 update"]);
});

test("pauses are left out of the time", () => {
  const series = { ...exact({ loss: [1, 1, 1, 1] }), wallTime: Float64Array.of(100, 102, 86502, 86504) };
  const axis = new TimeAxis(series, undefined, [[1, 86398]]);
  assert.deepEqual([0, 1, 2, 3].map((step) => axis.xOf(step)), [0, 2, 4, 6]);
  assert.equal(axis.stepOf(5), 2.5);
});
