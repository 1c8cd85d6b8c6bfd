import assert from "node:assert/strict";
import { test } from "node:test";

import { differenceText } from "../../plugins/tensorboard_plugin_tbnum/frontend/cursorcard.ts";

test("a difference is signed, a scale's is a factor, and there is none to what is not finite", () => {
  assert.equal(differenceText(2.5, 2, false), " (+0.5)");
  assert.equal(differenceText(2, 2.5, false), " (−0.5)");
  assert.equal(differenceText(2, 2, false), " (same)");
  assert.equal(differenceText(65536, 16384, true), " (× 4)");
  assert.equal(differenceText(16384, 65536, true), " (÷ 4)");
  for (const value of [NaN, Infinity, null, undefined, "a"]) assert.equal(differenceText(value, 2, false), "");
});
