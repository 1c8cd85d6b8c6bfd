import assert from "node:assert/strict";
import { test } from "node:test";

import { chartKey } from "../../plugins/tensorboard_plugin_tbnum/frontend/keys.ts";

/** What a key does on a chart of steps 100 to 200. */
function pressed(key, cursor, more = {}) {
  /** @type {unknown[]} */
  const done = [];
  const event = { key, ...more, preventDefault: () => done.push("taken") };
  const call = (name) => (...values) => done.push([name, ...values]);
  chartKey(event, { view: [100, 200], cursor, moveTo: call("move"), pin: call("pin"), zoom: call("zoom") });
  return done;
}

test("arrows move the cursor from step to step, with shift by ten or more, and from the middle at first", () => {
  assert.deepEqual(pressed("ArrowRight", 150), [["move", 151], "taken"]);
  assert.deepEqual(pressed("ArrowLeft", 150, { shiftKey: true }), [["move", 140], "taken"]);
  assert.deepEqual(pressed("ArrowLeft", null), [["move", 150], "taken"]);
  assert.deepEqual([pressed("Home", 150)[0], pressed("End", 150)[0]], [["move", 100], ["move", 200]]);
});

test("plus and minus zoom about the cursor, pages move the view, and enter holds the step", () => {
  assert.deepEqual(pressed("+", 120)[0], ["zoom", 110, 160]);
  assert.deepEqual(pressed("-", 150)[0], ["zoom", 50, 250]);
  assert.deepEqual(pressed("PageDown", 150)[0], ["zoom", 190, 290]);
  assert.deepEqual(pressed("Enter", 150)[0], ["pin", 150]);
});

test("other keys, and those of the browser, are left alone", () => {
  for (const [key, more] of [["a", {}], ["ArrowLeft", { altKey: true }], ["+", { ctrlKey: true }]]) assert.deepEqual(pressed(key, 150, more), []);
});
