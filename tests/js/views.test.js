import assert from "node:assert/strict";
import { test } from "node:test";

import { firstViews, formatViews, neededColumns, parseViews } from "../../plugins/tensorboard_plugin_tbnum/frontend/views.ts";

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
