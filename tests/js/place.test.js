import assert from "node:assert/strict";
import { test } from "node:test";

import { formatPlace, isOurs, nowhere, parsePlace } from "../../plugins/tensorboard_plugin_tbnum/frontend/place.ts";

test("what is written into the address is read back", () => {
  const place = { run: "gpt/seed 1&x=<b>#%", zoom: /** @type {[number, number]} */ ([120, 480]), axis: /** @type {const} */ ("time"), event: { step: 412, kind: "skip" }, views: "loss.log,norm*180,-scale", dock: "heatmap", pin: 77, column: "headroom/float16", tensor: "a.b&c", over: ["gpt/seed 2,3", "."], grouped: true, smoothing: 0.85, optimizer: 1, off: ["skip/bad_batch", "severity/info"], find: "bad batch", led: null, baseline: "gpt/seed 2,3", against: "ratio" };
  assert.deepEqual(parsePlace(formatPlace("#tbnum", place)), place);
  assert.deepEqual(parsePlace(formatPlace("", nowhere())), nowhere());
});

test("what others wrote into the address stays", () => {
  const hash = formatPlace("#tbnum&tagFilter=loss&p.tbnum.run=old&p.other.run=x", { ...nowhere(), run: "new" });
  assert.equal(hash, "#tbnum&tagFilter=loss&p.other.run=x&p.tbnum.run=new");
});

test("nonsense in the address is passed over", () => {
  for (const hash of ["", "#", "#tbnum&p.tbnum.steps=9-3", "#tbnum&p.tbnum.steps=a-b&p.tbnum.event=x.skip&p.tbnum.x=moon", "#tbnum&p.tbnum.steps"]) {
    assert.deepEqual(parsePlace(hash), nowhere(), hash);
  }
  assert.equal(parsePlace("#tbnum&p.tbnum.run=%E0%A4%A").run, "%E0%A4%A");
});

test("the address of another tab is left alone", () => {
  assert.ok(isOurs("") && isOurs("#tbnum") && isOurs("#tbnum&p.tbnum.run=a"));
  assert.ok(!isOurs("#scalars") && !isOurs("#timeseries&runSelectionState=x"));
});
