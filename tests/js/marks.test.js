import assert from "node:assert/strict";
import { test } from "node:test";

import { eventsAt } from "../../plugins/tensorboard_plugin_tbnum/frontend/events.ts";
import { buildLanes, causesOf, cluster, isQuiet, laneOf, onCurve, pillWidth, severitiesOf, shownLanes } from "../../plugins/tensorboard_plugin_tbnum/frontend/marks.ts";

const event = (step, kind, more = {}) => ({
  step, kind, wall_time: step, elapsed: step, severity: "info", optimizer: null, cause: null, message: "", remedy: "", data: {}, ...more,
});

const total = (clusters) => clusters.reduce((sum, { count }) => sum + count, 0);

test("events go to the lane of their kind, and an unknown kind is a finding", () => {
  assert.equal(laneOf("skip"), "skip");
  assert.equal(laneOf("annotation"), "note");
  assert.equal(laneOf("clip_before_unscale"), "finding");
  assert.equal(laneOf("kind_of_a_later_version"), "finding");
  const lanes = buildLanes([event(3, "skip"), event(3, "scale_backoff"), event(9, "skip")], null);
  assert.deepEqual(lanes.map((lane) => [lane.kind.id, [...lane.steps]]), [["skip", [3, 9]], ["scale_backoff", [3]]]);
});

test("marks are turned off by their kind, and by a cause of theirs", () => {
  const lanes = buildLanes([
    event(1, "skip", { cause: "scale_warmup" }), event(2, "skip", { cause: "bad_batch" }), event(3, "skip", { cause: "scale_warmup" }), event(4, "scale_growth"),
  ], null);
  assert.deepEqual(causesOf(lanes[0]), [["scale_warmup", 2], ["bad_batch", 1]]);
  assert.deepEqual(causesOf(lanes[1]), [], "one cause is none to choose by");
  const steps = (...hidden) => shownLanes(lanes, new Set(hidden)).map((lane) => [...lane.steps]);
  assert.deepEqual(steps(), [[1, 2, 3], [4]]);
  assert.deepEqual(steps("skip/scale_warmup"), [[2], [4]]);
  assert.deepEqual(steps("skip/scale_warmup", "skip/bad_batch"), [[4]]);
  assert.deepEqual(steps("skip"), [[4]]);
  assert.equal(shownLanes(lanes, new Set())[0], lanes[0], "no new array is made where nothing is hidden");
});

test("each non-finite loss has a mark, and a stretch of them one event", () => {
  const step = Float64Array.of(5, 20, 21, 22, 40);
  const [lane] = buildLanes([], { step, wallTime: step, value: Float32Array.of(NaN, Infinity, NaN, NaN, NaN) });
  assert.equal(lane.steps.length, 5);
  assert.deepEqual(lane.events.map((one) => one.step), [5, 20, 40]);
  assert.deepEqual([...lane.owner], [0, 1, 1, 1, 2]);
  assert.match(lane.events[1].message, /3 steps in a row/);
});

test("seven marks among fifty thousand steps are seven marks", () => {
  const steps = Float64Array.of(3571, 10717, 17863, 25009, 32154, 39300, 46446);
  const clusters = cluster(steps, { min: 0, max: 49999, width: 700 });
  assert.deepEqual(clusters.map(({ count }) => count), [1, 1, 1, 1, 1, 1, 1]);
  assert.ok(clusters.every(({ x, first }) => Math.abs(x - (steps[first] / 49999) * 700) < 1e-9), "a single mark stands where its event is");
});

test("every event is in exactly one cluster, and clusters do not overlap, at any zoom", () => {
  let seed = 7;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const steps = Float64Array.from({ length: 5000 }, () => Math.floor(random() ** 3 * 1e6)).sort();
  for (const [min, max, width] of [[0, 999_999, 740], [0, 1000, 740], [0, 20_000, 300], [100_000, 100_400, 1200], [0, 999_999, 120]]) {
    const clusters = cluster(steps, { min, max, width });
    assert.equal(total(clusters), steps.filter((step) => step >= min && step <= max).length);
    for (let index = 1; index < clusters.length; index++) {
      const [left, right] = [clusters[index - 1], clusters[index]];
      assert.equal(left.first + left.count, right.first);
      const half = ({ count }) => (count > 1 ? pillWidth(count) / 2 : 6);
      assert.ok(right.x - left.x >= half(left) + half(right) - 1e-6, `${left.x} and ${right.x}`);
    }
  }
});

test("marks at one step cannot be taken apart, and say so", () => {
  const [one] = cluster(Float64Array.of(10, 10), { min: 0, max: 20, width: 500 });
  assert.deepEqual([one.count, one.single, one.x], [2, true, 250]);
});

test("marks outside of the view are not drawn, those on its edges are", () => {
  const clusters = cluster(Float64Array.of(0, 10, 20, 30), { min: 10, max: 20, width: 500 });
  assert.deepEqual(clusters.map(({ first }) => first), [1, 2]);
  assert.deepEqual(cluster(new Float64Array(), { min: 0, max: 1, width: 500 }), []);
});

test("a million marks are clustered in a few milliseconds", () => {
  const steps = Float64Array.from({ length: 1_000_000 }, (_, index) => index);
  const start = performance.now();
  const clusters = cluster(steps, { min: 0, max: 999_999, width: 800 });
  assert.ok(performance.now() - start < 50);
  assert.equal(total(clusters), 1_000_000);
});

test("on the curve the earlier lane goes first, and crowded marks stay in their lanes", () => {
  const at = (x, count = 1) => ({ first: 0, count, single: count === 1, x });
  const placed = onCurve([[at(100), at(300, 5)], [at(104), at(200)]], 400);
  assert.deepEqual(placed.map(({ lane, cluster: { x } }) => [lane, x]), [[0, 100], [1, 200]]);
});

test("events are turned off by their severity, and what needs no hand is quiet", () => {
  const lanes = buildLanes([event(1, "skip"), event(2, "skip", { severity: "warning" }), event(4, "loss_spike", { severity: "error" })], { step: Float64Array.of(9), wallTime: Float64Array.of(9), value: Float32Array.of(NaN) });
  assert.deepEqual(severitiesOf(lanes), [["error", 1], ["warning", 2], ["info", 1]]);
  const steps = (...hidden) => shownLanes(lanes, new Set(hidden)).map((lane) => [...lane.steps]);
  assert.deepEqual(steps("severity/info"), [[2], [9], [4]]);
  assert.deepEqual(steps("severity/warning"), [[1], [4]]);
  const [skips] = lanes;
  assert.deepEqual([isQuiet(skips, { first: 0, count: 1 }), isQuiet(skips, { first: 0, count: 2 })], [true, false]);
});

test("a step at which two optimizers skipped is one mark, and both of its events are there", () => {
  const both = [event(3, "skip", { optimizer: "dis", cause: "bad_batch" }), event(3, "skip", { optimizer: "gen", cause: "bad_batch", severity: "warning" }), event(5, "skip", { cause: "scale_warmup" })];
  const [lane] = buildLanes(both, null);
  assert.deepEqual([[...lane.steps], lane.events.length], [[3, 5], 3]);
  assert.deepEqual(causesOf(lane), [["bad_batch", 1], ["scale_warmup", 1]]);
  assert.deepEqual([isQuiet(lane, { first: 0, count: 1 }), isQuiet(lane, { first: 1, count: 1 })], [false, true]);
  assert.deepEqual(eventsAt([lane], 3), both.slice(0, 2));
  assert.deepEqual([...shownLanes([lane], new Set(["severity/warning"]))[0].steps], [3, 5]);
});
