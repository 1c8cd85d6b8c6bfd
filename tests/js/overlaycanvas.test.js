import assert from "node:assert/strict";
import { test } from "node:test";

import { aliveAt, apart } from "../../plugins/tensorboard_plugin_tbnum/frontend/overlaycanvas.ts";

test("labels stand apart, near their lines and inside", () => {
  const places = (ys, xs = ys.map(() => 0)) => apart(ys.map((y, at) => ({ x: xs[at], y })), 10, 10, 0, 100).map(({ y }) => y);
  assert.deepEqual(places([10, 12, 50]), [10, 20, 50]);
  assert.deepEqual(places([95, 97, 99]), [95, 85, 75], "at the edge they go the other way");
  assert.deepEqual(places([-5, 130]), [0, 100]);
  assert.deepEqual(places([10, 12, 12], [0, 30, 60]), [10, 12, 12], "those that end elsewhere are in nobody's way");
  assert.deepEqual(places([]), []);
});

test("of runs together it is known how many go as far as an x", () => {
  const line = { ends: [100, 400, 500, 500] };
  assert.deepEqual([0, 100, 101, 450, 500, 501].map((x) => aliveAt(line, x)), [4, 4, 3, 2, 2, 0]);
});
