import assert from "node:assert/strict";
import { test } from "node:test";

import { firstViews, fitted, formatViews, moveView, neededColumns, parseViews, toggleView } from "../../plugins/tensorboard_plugin_tbnum/frontend/views.ts";

test("only columns that the run has are asked for, with the optimizer's prefix", () => {
  assert.deepEqual(neededColumns(["loss", "gan/grad_norm", "grad_norm"], "gan/"), ["loss", "gan/grad_norm"]);
});

test("views survive as text, and those that nobody chose follow the run", () => {
  assert.equal(formatViews(firstViews()), "auto");
  assert.equal(formatViews(parseViews("auto,loss.log,scale")), "auto,loss.log,scale,norm,clip,lr,ratio,headroom");
  assert.equal(formatViews(parseViews("norm~*90")), "norm~*90,loss,scale,-clip,-lr,-ratio,-headroom");
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
  assert.deepEqual(neededColumns(columns, ""), ["loss", "loss_scale", "nonfinite_tensors", "clipped"]);
  assert.deepEqual(neededColumns(columns, "", { ...firstViews(), hidden: new Set(["loss", "scale", "lr", "clip"]) }).sort(), ["clipped", "loss", "nonfinite_tensors", "update_ratio"]);
  assert.deepEqual(neededColumns(columns, "", { ...firstViews(), hidden: new Set(["loss", "scale", "lr", "ratio"]) }).sort(), ["clip_coef", "clipped", "loss", "nonfinite_tensors"]);
});

test("each rank's own column is asked for where ranks have lines, which an address says", () => {
  const columns = ["loss", "loss/rank_min", "loss/rank_max", "loss/rank_0", "loss/rank_11"];
  const views = parseViews("loss^,scale");
  assert.match(formatViews(views), /^loss\^,/);
  assert.deepEqual(neededColumns(columns, "", views), ["loss", "loss/rank_min", "loss/rank_max", "loss/rank_0", "loss/rank_11"]);
  assert.deepEqual(neededColumns(columns, ""), ["loss", "loss/rank_min", "loss/rank_max"]);
});

/** Ids of the views that a run is shown with when nobody chose. */
function shownOf(run, views = firstViews()) {
  const { order, hidden } = fitted(views, run);
  return order.filter((id) => !hidden.has(id));
}

test("the first views follow the run: a scale only where there is one, else clipping and the update ratio, where they are known", () => {
  const columns = ["loss", "loss_scale", "grad_norm", "clip_coef", "update_norm", "param_norm"];
  assert.deepEqual(shownOf({ columns, unknown: [] }), ["loss", "scale", "norm"]);
  assert.deepEqual(shownOf({ columns, unknown: ["loss_scale"] }), ["loss", "norm", "clip", "ratio"]);
  assert.deepEqual(shownOf({ columns: ["loss", "a/grad_norm", "a/clip_coef"], unknown: [] }), ["loss", "norm", "clip"]);
  assert.deepEqual(shownOf({ columns, unknown: ["loss_scale"] }, parseViews("loss,scale")), ["loss", "scale", "norm"], "a choice stays");
});

test("who hides a view has chosen, and one view stays", () => {
  const views = firstViews();
  toggleView(views, "scale");
  assert.deepEqual([views.auto, views.hidden.has("scale")], [false, true]);
  for (const id of ["loss", "norm"]) toggleView(views, id);
  assert.equal(views.order.length - views.hidden.size, 1);
  moveView(views, "norm", -1);
  assert.deepEqual(views.order.slice(0, 3), ["loss", "scale", "norm"], "there is none above it");
});
