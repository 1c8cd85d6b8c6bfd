import assert from "node:assert/strict";
import { test } from "node:test";

import { Zoom, clampedZoom, isClose } from "../../plugins/tensorboard_plugin_tbnum/frontend/zoom.ts";

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

test("a followed view moves on with the run until a person looks elsewhere", () => {
  const place = { zoom: null };
  let last = 1000;
  let changes = 0;
  const zoom = new Zoom({ place: () => place, ready: () => true, extent: () => [0, last], changed: () => { changes += 1; } });
  zoom.toggleFollowing();
  assert.deepEqual([place.zoom, zoom.following, changes], [[800, 1000], true, 1]);
  last = 1100;
  assert.ok(zoom.keepUp());
  assert.deepEqual(place.zoom, [900, 1100]);
  zoom.to(1000, 1100);
  assert.ok(zoom.following, "closer to the newest step, and still at it");
  zoom.to(200, 300);
  assert.deepEqual([zoom.following, zoom.keepUp(), place.zoom], [false, false, [200, 300]]);
  zoom.reset();
  assert.deepEqual([place.zoom, zoom.view], [null, [0, 1100]]);
});

test("nothing is zoomed before there is a run", () => {
  const zoom = new Zoom({ place: () => ({ zoom: null }), ready: () => false, extent: () => assert.fail(), changed: () => assert.fail() });
  zoom.to(0, 10);
  zoom.reset();
  zoom.toggleFollowing();
});
