import assert from "node:assert/strict";
import { test } from "node:test";

import { differences, findingsText, sortedRuns } from "../../plugins/tensorboard_plugin_tbnum/frontend/runs.ts";

test("settings differ where their paths do, however deep; what one did not record is a dash", () => {
  const first = { scaler: { init_scale: 65536, growth: 2 }, seed: 1, config: null };
  const second = { scaler: { init_scale: 1024, growth: 2 }, seed: 1, config: { lr: 0.1 } };
  assert.deepEqual(differences(first, second), [["config", "–", "–"], ["config.lr", "–", "0.1"], ["scaler.init_scale", "65536", "1024"]].filter(([, a, b]) => a !== b));
  assert.deepEqual(differences(first, first), []);
});

test("runs are sorted by a column, names as people count, and what is unknown comes last either way", () => {
  const row = (run, more) => ({ run, steps: 10, skipped_steps: 0, best_loss: 1, findings: null, ...more });
  const runs = [row("run10", { best_loss: null }), row("run9", { best_loss: 2 }), row("run1", { best_loss: 3 })];
  const names = (column, down) => sortedRuns(runs, column, down).map(({ run }) => run);
  assert.deepEqual(names("run", false), ["run1", "run9", "run10"]);
  assert.deepEqual(names("loss", false), ["run9", "run1", "run10"]);
  assert.deepEqual(names("loss", true), ["run1", "run9", "run10"]);
  assert.deepEqual(names("shown", false), ["run10", "run9", "run1"], "no order of its own");
});

test("runs with errors count as worse than any with warnings, and skips by their share", () => {
  const row = (run, findings, steps = 10) => ({ run, steps, skipped_steps: 5, findings });
  const runs = [row("w", { warning: 9 }), row("e", { error: 1 }, 1000), row("n", {}), row("u", null, null)];
  assert.deepEqual(sortedRuns(runs, "findings", true).map(({ run }) => run), ["e", "w", "n", "u"]);
  assert.deepEqual(sortedRuns(runs, "skipped", false).map(({ run }) => run), ["e", "n", "w", "u"]);
});

test("findings are counted by severity; none differs from not yet counted", () => {
  assert.equal(findingsText({ error: 1, warning: 2, info: 4 }), "1 error, 2 warnings");
  assert.equal(findingsText({ info: 4 }), "none");
  assert.equal(findingsText(null), "…");
});
