import assert from "node:assert/strict";
import { test } from "node:test";

import { badness, healthText } from "../../plugins/tensorboard_plugin_tbnum/frontend/health.ts";
import { inOrder, nameTest } from "../../plugins/tensorboard_plugin_tbnum/frontend/runlist.ts";

test("runs are found by words, or by a regular expression", () => {
  const names = ["gpt/lr1e-3/seed1", "gpt/lr1e-3/seed12", "gpt/lr3e-3/seed1", "vit.large"];
  const found = (text) => names.filter(nameTest(text));
  assert.deepEqual(found("gpt seed1"), names.slice(0, 3));
  assert.deepEqual(found("seed1$"), [names[0], names[2]]);
  assert.deepEqual(found("lr(1|3)e-3/seed12"), [names[1]]);
  assert.deepEqual(found("VIT"), [names[3]]);
  assert.deepEqual(found("(unfinished"), [], "an expression that is not whole yet is words");
});

const healthy = { run: "b", worst: null, findings: {}, spikes: 0, skipped: 0, clipped: null, nonfinite: 0 };
const broken = { run: "a", worst: "error", findings: { error: 1, warning: 2 }, spikes: 2, skipped: 12, clipped: 0.6, nonfinite: 1 };

test("how a run does is said in a line, and the worst come first", () => {
  assert.equal(healthText(broken), "worst: error, 2 spikes, 12 skips, 1 non-finite, 60 % clipped");
  assert.equal(healthText(healthy), "nothing to report");
  assert.ok(badness(broken) > badness({ ...broken, worst: "warning", findings: { warning: 90 } }) && badness(healthy) === 0);
  const rows = ["b", "a", "c"].map((run, at) => ({ run, last_wall_time: at, skipped_steps: at, steps: 10 }));
  const health = new Map([["a", broken], ["b", healthy]]);
  const order = (runOrder) => inOrder(rows, { runOrder, health }).map(({ run }) => run).join("");
  assert.deepEqual(["name", "newest", "skips", "worst"].map(order), ["bac", "cab", "cab", "abc"]);
});
