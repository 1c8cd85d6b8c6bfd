import assert from "node:assert/strict";
import { test } from "node:test";

import { farText, quantityTitle } from "../../plugins/tensorboard_plugin_tbnum/frontend/ledhere.ts";

test("how far a quantity left its usual is said in deviations", () => {
  assert.deepEqual([farText(12.34), farText(0), farText(4e9), farText(Infinity)], ["12 ×", "0 ×", "> 1,000 ×", "beyond measure"]);
});

test("a quantity is called what people call it, with whose it is", () => {
  const of = (more) => quantityTitle({ name: "grad_norm", optimizer: null, tensor: null, ...more });
  assert.deepEqual([of({}), of({ name: "lr", optimizer: "gen" }), of({ tensor: "wte.weight" })], ["grad norm", "learning rate (gen)", "norm of wte.weight"]);
});
