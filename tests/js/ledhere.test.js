import assert from "node:assert/strict";
import { test } from "node:test";

import { farText, quantityTitle, samplesText } from "../../plugins/tensorboard_plugin_tbnum/frontend/ledhere.ts";

test("how far a quantity left its usual is said in deviations", () => {
  assert.deepEqual([farText(12.34), farText(0), farText(4e9), farText(Infinity)], ["12 ×", "0 ×", "> 1,000 ×", "beyond measure"]);
});

test("a quantity is called what people call it, with whose it is", () => {
  const of = (more) => quantityTitle({ name: "grad_norm", optimizer: null, tensor: null, rank: null, ...more });
  assert.deepEqual([of({}), of({ name: "lr", optimizer: "gen" }), of({ tensor: "wte.weight" }), of({ name: "loss", rank: 2 })], ["grad norm", "learning rate (gen)", "norm of wte.weight", "loss (rank 2)"]);
});

test("the samples of a step are named where they were recorded, and how many more there were", () => {
  assert.equal(samplesText({ step: 1200, samples: [7, 9], samples_total: 2 }), "Step 1,200 was made of 2 samples: 7, 9.");
  assert.match(samplesText({ step: 1, samples: [7], samples_total: 2048 }), /2,048 samples: 7 and 2,047 more\.$/);
  assert.equal(samplesText({ step: 1, samples: null, samples_total: null }), "");
});
