import assert from "node:assert/strict";
import { test } from "node:test";

import { viewOf } from "../../plugins/tensorboard_plugin_tbnum/frontend/state.ts";
import { Store } from "../../plugins/tensorboard_plugin_tbnum/frontend/store.ts";
import { clampedZoom, isClose, newest, resetZoom, toggleFollowing, zoomTo } from "../../plugins/tensorboard_plugin_tbnum/frontend/zoom.ts";

test("a zoom keeps within the steps there are, is never too narrow, and is none where it would show all", () => {
  assert.deepEqual(clampedZoom([20, 40], [0, 100]), [20, 40]);
  assert.deepEqual(clampedZoom([-30, 20], [0, 100]), [0, 50]);
  assert.deepEqual(clampedZoom([90, 130], [0, 100]), [60, 100]);
  assert.deepEqual(clampedZoom([50, 51], [0, 100]), [47, 55]);
  assert.equal(clampedZoom([-10, 200], [0, 100]), null);
  assert.equal(clampedZoom([0, 3], [0, 5]), null);
});

test("a step is close where it is in a narrow view", () => {
  assert.deepEqual([isClose(50, [0, 100]), isClose(150, [0, 100]), isClose(50, [0, 1000])], [true, false, false]);
});

/** A store with a run of steps 0 to `last`. */
function withRun(last) {
  return new Store({ zoom: null, following: false, axis: "step", beside: { extent: null }, loaded: runOf(last) });
}

function runOf(last) {
  return { overview: { header: { first_step: 0, last_step: last }, line: () => null }, lanes: [] };
}

test("a followed view moves on with the run until a person looks elsewhere", () => {
  const store = withRun(1000);
  const { state } = store;
  toggleFollowing(store);
  assert.deepEqual([state.zoom, state.following], [[800, 1000], true]);
  store.set({ loaded: runOf(1100) });
  assert.deepEqual(newest(state), [900, 1100]);
  zoomTo(store, 1000, 1100);
  assert.ok(state.following, "closer to the newest step, and still at it");
  zoomTo(store, 200, 300);
  assert.deepEqual([state.following, state.zoom], [false, [200, 300]]);
  resetZoom(store);
  assert.deepEqual([state.zoom, viewOf(state)], [null, [0, 1100]]);
});

test("nothing is zoomed before there is a run", () => {
  const store = new Store({ zoom: null, following: false, loaded: null });
  store.watch(["zoom", "following"], () => assert.fail());
  zoomTo(store, 0, 10);
  resetZoom(store);
  toggleFollowing(store);
});
