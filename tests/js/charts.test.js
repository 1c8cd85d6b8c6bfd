import assert from "node:assert/strict";
import { test } from "node:test";

import {
  CHARTS, TimeAxis, clippedText, firstViews, formatViews, indexOfStep, neededColumns, parseViews, plotData, smoothed,
} from "../../plugins/tensorboard_plugin_tbnum/frontend/charts.js";

const [LOSS, SCALE, NORM] = CHARTS;
const options = { scale: /** @type {const} */ ("linear"), prefix: "", smoothing: 0, xOf: (step) => step };

/** A stand-in for `Series` with exact values. */
function exact(columns) {
  const length = Object.values(columns)[0].length;
  const step = Float64Array.from({ length }, (_, index) => index);
  return {
    exact: true, bucketSteps: 1, length, step, stepLast: step, wallTime: step.map((value) => 100 + 2 * value),
    line: (name) => (columns[name] ? { min: columns[name], max: columns[name], last: columns[name], nan: null, inf: null } : null),
  };
}

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

test("behind the loss lies what the ranks spread over, where there are several", () => {
  const series = exact({ loss: [2, 3], "loss/rank_min": [1, 3], "loss/rank_max": [2, Infinity] });
  const { data } = plotData(LOSS, series, options);
  assert.deepEqual([data[1], data[2]], [[2, null], [1, 3]]);
  assert.deepEqual(plotData(LOSS, exact({ loss: [2, 3] }), options).data[1], [null, null]);
});

test("steps become seconds and back, also where the clock was set back", () => {
  const series = exact({ loss: [1, 1, 1, 1] });
  const axis = new TimeAxis(series);
  assert.equal(axis.xOf(2), 4);
  assert.equal(axis.stepOf(3), 1.5);
  assert.equal(axis.stepOf(axis.xOf(4.5)), 4.5, "beyond the last step too");
  const back = new TimeAxis({ ...series, wallTime: Float64Array.of(100, 102, 50, 106) });
  assert.deepEqual([0, 1, 2, 3].map((step) => back.xOf(step)), [0, 2, 2, 6]);
});

test("a step is found in its bucket, and in none where there is none", () => {
  const series = { step: [0, 4, 8], stepLast: [3, 5, 9] };
  assert.deepEqual([0, 3, 5, 6, 9, 10].map((step) => indexOfStep(series, step)), [0, 0, 1, -1, 2, -1]);
});

test("only columns that the run has are asked for, with the optimizer's prefix", () => {
  assert.deepEqual(neededColumns(["loss", "gan/grad_norm", "grad_norm"], "gan/"), ["loss", "gan/grad_norm"]);
});

test("views survive as text, and the first ones are no text", () => {
  assert.equal(formatViews(firstViews()), "");
  const text = "norm.lin*180,loss.log,-scale,clip,-lr,ratio,-headroom";
  assert.equal(formatViews(parseViews(text)), text);
});

test("views that a text does not name stand at the end, as at first; nonsense is passed over", () => {
  const views = parseViews("scale,moon,scale*90,loss*1,<b>,-norm");
  assert.deepEqual(views.order, ["scale", "loss", "norm", "clip", "lr", "ratio", "headroom"]);
  assert.deepEqual([...views.hidden], ["norm", "clip", "lr", "ratio", "headroom"]);
  assert.deepEqual([...views.heights], [["loss", 48]], "no view is too low to be read");
  assert.equal(parseViews("-loss,-scale,-norm").hidden.has("loss"), false, "one view is always shown");
});

test("columns of hidden views are not asked for, and what a legend needs is", () => {
  const columns = ["loss", "loss_scale", "lr", "update_ratio", "clip_coef", "clipped", "nonfinite_tensors"];
  assert.deepEqual(neededColumns(columns, ""), ["loss", "loss_scale", "nonfinite_tensors"]);
  assert.deepEqual(neededColumns(columns, "", new Set(["loss", "scale", "lr", "clip"])).sort(), ["loss", "nonfinite_tensors", "update_ratio"]);
  assert.deepEqual(neededColumns(columns, "", new Set(["loss", "scale", "lr", "ratio"])).sort(), ["clip_coef", "clipped", "loss", "nonfinite_tensors"]);
});

test("the share of clipped updates is exact, where steps are reduced too, and leaves out skipped steps", () => {
  const series = exact({ clipped: [0, 1, NaN, 1, 0] });
  assert.equal(clippedText(series, "", 0, 4), "clipped in 50 % of 4 updates");
  assert.equal(clippedText(series, "", 4, 4), "clipped in 0 % of 1 update");
  const line = { mean: [0.25, NaN, Math.fround(1 / 3)], known: [8, 0, 6], last: [1, NaN, 0] };
  const reduced = { exact: false, length: 3, step: [0, 8, 16], stepLast: [7, 15, 23], line: () => line };
  assert.equal(clippedText(reduced, "", 0, 23), "clipped in 29 % of 14 updates");
});
