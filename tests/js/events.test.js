import assert from "node:assert/strict";
import { test } from "node:test";

import { fact, eventFacts, eventText, listedEvents, listedTotal, sentinelText, tensorsAtFault, withWords } from "../../plugins/tensorboard_plugin_tbnum/frontend/events.ts";

import { buildLanes } from "../../plugins/tensorboard_plugin_tbnum/frontend/marks.ts";

const SKIP = {
  step: 450, wall_time: 0, elapsed: 1, kind: "skip", severity: "warning", optimizer: "optimizer", cause: "bad_batch",
  message: "The step was skipped.", remedy: "Look at the batch.",
  data: {
    loss: 10.874784469604492, loss_scale: 262144, new_scale: 65536, grad_norm: Infinity, nonfinite_tensors: 7, tensors: 28,
    nonfinite_names: ["wte.weight"],
    evidence: {
      held_steps: 62, skips_in_row: 1, recovered_after: 80, recent_loss: 2.336, norm_ratio: 35.02,
      nonfinite: [{ name: "blocks.1.mlp.fc.weight", nan: 0, inf: 6 }], nan: 0, inf: 6,
    },
    sentinel: { module: "blocks.1.mlp", phase: "backward", what: "gradient", largest: 61000, limit: 65504, dtype: "float16", shape: [8, 64] },
  },
};

test("a skip's facts begin with the scale and when it was back", () => {
  const rows = eventFacts(SKIP);
  assert.deepEqual(rows.slice(0, 3), [
    ["Loss scale", "262,144 (2¹⁸) → 65,536 (2¹⁶)"], ["Scale back after", "80 steps"], ["Held before it", "62 steps"],
  ]);
  const facts = Object.fromEntries(rows);
  assert.equal(facts["… recent median"], "2.336");
  assert.equal(facts["Non-finite tensors"], "7 of 28");
  assert.equal(facts["Finite gradients"], "35 × their usual length");
});

test("a scale that was tried higher in vain says how long it had held before that", () => {
  const evidence = { ...SKIP.data.evidence, held_steps: 6, held_before_probe: 80, failed_probe: 2 ** 20 };
  const rows = eventFacts({ ...SKIP, data: { ...SKIP.data, evidence } });
  assert.deepEqual(rows.slice(2, 4), [["Held before it", "6 steps"], ["… before a probe of 1,048,576 (2²⁰)", "80 steps"]]);
});

test("a skip of several ranks has the loss of each, and whose batch it was", () => {
  const ranks = { numbers: [0, 1], losses: [0.19, "Infinity"], guilty: [1], how: "loss" };
  const facts = Object.fromEntries(eventFacts({ ...SKIP, data: { ...SKIP.data, ranks } }));
  assert.equal(facts["Loss by rank"], "rank 0: 0.19\nrank 1: ∞  ← at fault");
  const many = { numbers: [...Array(64).keys()], losses: Array(64).fill(1), guilty: [40], how: "part" };
  const lines = Object.fromEntries(eventFacts({ ...SKIP, data: { ...SKIP.data, ranks: many } }))["Loss by rank"].split("\n");
  assert.deepEqual(lines.slice(8), ["rank 40: 1  ← its part of the gradients is not finite", "… of 64 ranks"]);
});

test("tensors at fault are those that were counted, else those that were named", () => {
  assert.deepEqual(tensorsAtFault(SKIP), [{ name: "blocks.1.mlp.fc.weight", nan: 0, inf: 6 }]);
  const { evidence, ...data } = SKIP.data;
  assert.deepEqual(tensorsAtFault({ ...SKIP, data }), [{ name: "wte.weight", nan: null, inf: null }]);
});

test("a sentinel's finding is a sentence", () => {
  assert.equal(
    sentinelText(SKIP.data.sentinel),
    "Going backward, the first that was not finite was the gradient of blocks.1.mlp (8 × 64, float16); the largest that went before it was 61,000, the limit is 65,504.",
  );
  assert.equal(sentinelText(undefined), "");
});

test("the text for a bug report has every value in full, and the address", () => {
  const values = { run: "gpt", version: "1", step: 450, values: { loss: 10.874784469604492, max_norm: null, grad_norm: Infinity }, events: [] };
  const text = eventText("gpt", SKIP, values, "http://host/#tbnum");
  for (const part of ["skip at step 450 of gpt (bad batch)", "What to do: Look at the batch.", "loss       10.874784469604492", "max_norm   unknown", "grad_norm  Infinity", "blocks.1.mlp.fc.weight  NaN 0  inf 6", "http://host/#tbnum"]) {
    assert.ok(text.includes(part), part);
  }
});

test("events are found by their severity", () => {
  const events = [SKIP, { ...SKIP, severity: "info", message: "", remedy: "" }];
  assert.deepEqual(withWords(events, "warning"), [SKIP]);
  assert.deepEqual(withWords(events, "warning batch").length, 1);
});

test("a skip and the backoff that follows from it are one row, until the skips are hidden", () => {
  const of = (step, kind) => ({ ...SKIP, step, kind, severity: "info" });
  const lanes = buildLanes([of(3, "skip"), of(3, "scale_backoff"), of(5, "scale_backoff")], null);
  const listed = (...hidden) => listedEvents(lanes, new Set(hidden)).map(({ step, kind }) => `${step} ${kind}`);
  assert.deepEqual(listed(), ["3 skip", "5 scale_backoff"]);
  assert.deepEqual(listed("skip"), ["3 scale_backoff", "5 scale_backoff"]);
  assert.equal(listedTotal(lanes), 2);
});

test("a column of an optimizer is called by the optimizer's name as it is, and what it is", () => {
  assert.deepEqual(fact("gen A/grad_norm", 0.5), ["gen A: Gradient norm", "0.5"]);
  assert.deepEqual(fact("lr/1", 0.5), ["lr/1", "0.5"]);
  assert.deepEqual(fact("loss/kl", 0.5)[0], "loss/kl");
  assert.deepEqual(fact("halvings", 2), ["Halvings", "2"]);
});
