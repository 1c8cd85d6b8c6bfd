import assert from "node:assert/strict";
import { test } from "node:test";

import { aroundGap, measuredNan, missingAfter, missingBetween, plotData, sampledLine, smoothed } from "../../plugins/tensorboard_plugin_tbnum/frontend/plotdata.ts";
import { CHARTS } from "../../plugins/tensorboard_plugin_tbnum/frontend/views.ts";
import { exact } from "./series.js";

const [LOSS, SCALE, NORM] = CHARTS;

const options = { scale: /** @type {const} */ ("linear"), prefix: "", smoothing: 0, xOf: (step) => step };

test("smoothing has no bias at its start, leaves a constant alone, and passes over gaps", () => {
  assert.deepEqual(smoothed([4, 4, 4], 0.9).map((value) => Number(value.toFixed(12))), [4, 4, 4]);
  assert.deepEqual(smoothed([null, 2, null, 6], 0.5), [null, 2, null, (0.25 * 2 + 0.5 * 6) / 0.75]);
  assert.deepEqual(smoothed([1, 5], 0), [1, 5]);
});

test("uPlot never gets a NaN or an infinity", () => {
  const series = exact({ loss: [NaN, 1, Infinity, 2, -Infinity] });
  const { data } = plotData(LOSS, series, { ...options, smoothing: 0.5 });
  assert.ok(data.flat().every((value) => value === null || Number.isFinite(value)));
  assert.deepEqual(data[3], [null, 1, null, 2, null]);
});

test("a logarithmic axis leaves out what has no logarithm", () => {
  const { data } = plotData(SCALE, exact({ loss_scale: [65536, 0, -1, 0.5] }), { ...options, scale: "log2" });
  assert.deepEqual(data[3], [16, null, null, -1]);
});

test("a norm's NaN is drawn at the edge only where it was measured, an infinity always", () => {
  const series = exact({ grad_norm: [NaN, NaN, Infinity, 1], nonfinite_tensors: [NaN, 3, 3, 0] });
  const { edge } = plotData(NORM, series, { ...options, scale: "log10" });
  assert.deepEqual(edge, { step: [1, 2], infinite: [false, true] });
});

test("a one-step spike in a bucket is in the band", () => {
  const series = {
    exact: false, bucketSteps: 1024, length: 2, step: [0, 1024], stepLast: [1023, 2047], wallTime: [0, 1],
    line: (name) => (name === "loss" ? { min: [1, 1], max: [2, 90], last: [1.5, 1.5], nan: [0, 0], inf: [0, 0] } : null),
  };
  const { data } = plotData(LOSS, series, options);
  assert.deepEqual(data[0], [511.5, 1535.5]);
  assert.deepEqual(data[1], [2, 90]);
  assert.deepEqual(data[2], [1, 1]);
});

test("behind the loss lies the range of the ranks, where there are several", () => {
  const series = exact({ loss: [2, 3], "loss/rank_min": [1, 3], "loss/rank_max": [2, Infinity] });
  const { data } = plotData(LOSS, series, options);
  assert.deepEqual([data[1], data[2]], [[2, null], [1, 3]]);
  assert.deepEqual(plotData(LOSS, exact({ loss: [2, 3] }), options).data[1], [null, null]);
});

test("a NaN was measured where the record says so, and is unknown elsewhere", () => {
  const nonfinite = { step: Float64Array.of(1, 2), value: Float32Array.of(NaN, Infinity), wallTime: Float64Array.of(0, 0) };
  assert.deepEqual([...measuredNan("loss", exact({ loss: [NaN, NaN, Infinity] }), "", nonfinite)], [0, 1, 0]);
  const series = exact({ grad_norm: [NaN, NaN, NaN], nonfinite_tensors: [NaN, 3, 0] });
  assert.deepEqual([...measuredNan("grad_norm", series, "", null)], [0, 1, 0], "finite gradients have a norm");
  assert.equal(measuredNan("loss_scale", series, "", nonfinite), null);
});

test("what is measured every so many steps has its values at the points of the steps' series, and none between", () => {
  const samples = { exact: true, length: 4, step: Float64Array.of(0, 2, 3, 7), stepLast: Float64Array.of(0, 2, 3, 7), line: (name) => (name === "x" ? { last: [5, 1, 4, Infinity] } : null) };
  const steps = { length: 4, step: Float64Array.of(0, 1, 2, 3), stepLast: Float64Array.of(0, 1, 2, 3) };
  assert.deepEqual([...sampledLine(samples, "x", steps).last], [5, NaN, 1, 4]);
  const reduced = { length: 2, step: Float64Array.of(0, 4), stepLast: Float64Array.of(3, 7) };
  const { last, min, max, inf } = sampledLine(samples, "x", reduced);
  assert.deepEqual([[...last], [...min], [...max], [...inf]], [[4, NaN], [1, NaN], [5, NaN], [0, 1]]);
  assert.equal(sampledLine(samples, "y", steps), null);
});

test("no line leads over steps that a damaged log lacks, however steps were logged or reduced", () => {
  const at = (first, last, bucketSteps) => ({ step: Float64Array.from(first), stepLast: Float64Array.from(last), length: first.length, bucketSteps });
  const each = [0, 1, 2, 3, 50, 51, 52, 60];
  assert.deepEqual([...missingAfter(at(each, each, 1))], [3]);
  const tenth = [0, 10, 20, 40, 50, 60, 70, 400, 410];
  assert.deepEqual([...missingAfter(at(tenth, tenth, 1))], [6]);
  assert.deepEqual([...missingAfter(at([0, 8, 16, 320, 328], [7, 15, 21, 327, 335], 8))], [2]);
  assert.equal(missingAfter(at([], [], 1)).size + missingAfter(at([7], [7], 1)).size, 0);
});

test("a line that was measured now and then has its gap between the values around the missing steps", () => {
  assert.deepEqual(aroundGap([1, null, null, null, 2, null], 2), [0, 4]);
  assert.deepEqual(aroundGap([1, 2], 0), [0, 1]);
  assert.deepEqual(aroundGap([null, null, null], 1), [0, 2]);
});

/** Points at steps. */
function at(...step) {
  return { exact: true, bucketSteps: 1, length: step.length, step: Float64Array.from(step), stepLast: Float64Array.from(step), line: () => null };
}

test("samples are joined however far apart they are, unless the run's own steps are missing between them", () => {
  const history = Array.from({ length: 32 }, (_, index) => 401 + index);
  const samples = at(0, 50, 100, 150, 200, 250, 300, 350, 400, ...history, 450, 500, 900);
  const whole = at(...Array.from({ length: 951 }, (_, step) => step));
  assert.deepEqual([...missingBetween(samples, whole, missingAfter(whole))], []);
  const damaged = at(...Array.from({ length: 951 }, (_, step) => step).filter((step) => step < 520 || step > 890));
  assert.deepEqual([...missingBetween(samples, damaged, missingAfter(damaged))], [samples.length - 2]);
});

test("of a log that is written at will, what comes again and again is no gap", () => {
  const dense = Array.from({ length: 60 }, (_, step) => step);
  const sparse = Array.from({ length: 10 }, (_, index) => 100 + 50 * index);
  const series = at(...dense, ...sparse, 5000);
  assert.deepEqual([...missingAfter(series, true)], [series.length - 2]);
  assert.ok(missingAfter(series).size > 1, "a run's own record has every step");
});

test("the loss is smoothed as it is, whatever its axis, and nothing else unless it is asked for", () => {
  const series = exact({ loss: [1e6, 2, 2], grad_norm: [1e6, 2, 2] });
  const expected = [1e6, (0.6 * 0.4 * 1e6 + 0.4 * 2) / (1 - 0.6 ** 2), (0.6 ** 2 * 0.4 * 1e6 + 0.6 * 0.4 * 2 + 0.4 * 2) / (1 - 0.6 ** 3)];
  const near = (drawn, values) => drawn.forEach((value, index) => assert.ok(Math.abs(value / values[index] - 1) < 1e-9, `${value}`));
  near(plotData(LOSS, series, { ...options, smoothing: 0.6 }).data[4], expected);
  near(plotData(LOSS, series, { ...options, smoothing: 0.6, scale: "log10" }).data[4], expected.map(Math.log10));
  const reduced = { ...at(0, 8, 16), exact: false, bucketSteps: 8, line: (name) => { const last = series.line(name)?.last; return last ? { min: last, max: last, last, mean: last, nan: [0, 0, 0], inf: [0, 0, 0] } : null; } };
  for (const points of [series, reduced]) near(plotData(NORM, points, { ...options, smoothing: 0.6, scale: "log10" }).data[3], [1e6, 2, 2].map(Math.log10));
  near(plotData(NORM, series, { ...options, smoothing: 0.6, smoothed: true }).data[3], expected);
});
