import assert from "node:assert/strict";
import { test } from "node:test";

import { arranged, findingRows } from "../../plugins/tensorboard_plugin_tbnum/frontend/findings.js";

const FINDINGS = [{ rule: "a", severity: "error", title: "Collapsed", evidence: "why", remedy: "lower it", steps: [] }];

const EVENTS = [
  { step: 9, kind: "skip", severity: "warning", cause: "bad_batch", message: "skipped", remedy: "" },
  { step: 10, kind: "scale_backoff", severity: "info", cause: null, message: "came down", remedy: "" },
];

test("findings stand before events until a column is chosen", () => {
  const rows = findingRows(FINDINGS, EVENTS);
  assert.deepEqual(arranged(rows, "", null, 1).map(({ what }) => what), ["Collapsed", "skip", "scale backoff"]);
});

test("steps are ordered as numbers, severities by weight, and what has no step is last either way", () => {
  const rows = findingRows(FINDINGS, EVENTS);
  const order = (column, direction) => arranged(rows, "", column, direction).map(({ step }) => step);
  assert.deepEqual(order("step", 1), [9, 10, null]);
  assert.deepEqual(order("step", -1), [10, 9, null]);
  assert.deepEqual(order("severity", -1), [null, 9, 10]);
});

test("a filter wants every word, wherever it stands", () => {
  const rows = findingRows(FINDINGS, EVENTS);
  assert.deepEqual(arranged(rows, "bad SKIP", null, 1).map(({ step }) => step), [9]);
  assert.deepEqual(arranged(rows, "lower", null, 1).map(({ what }) => what), ["Collapsed"]);
  assert.equal(arranged(rows, "nothing of this", null, 1).length, 0);
});
