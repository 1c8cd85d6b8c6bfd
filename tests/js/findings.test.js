import assert from "node:assert/strict";
import { test } from "node:test";

import { arranged, findingRows, folded } from "../../plugins/tensorboard_plugin_tbnum/frontend/findings.ts";

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

test("events are folded as the report has them, and what is nothing to act on is one", () => {
  const skip = (step, cause = "bad_batch") => ({ step, kind: "skip", severity: "warning", cause, optimizer: "adam", message: "", remedy: "" });
  const growth = (step) => ({ step, kind: "scale_growth", severity: "info", cause: null, optimizer: null, message: "", remedy: "" });
  const events = [skip(1), growth(2), skip(3), skip(4, "scale_warmup"), skip(5), growth(6), skip(7), skip(9)];
  const groups = [
    { ...skip(1), last_step: 3, count: 2, more: "and 1 more" }, { ...skip(4, "scale_warmup"), last_step: 4, count: 1, more: "" },
    { ...skip(5), last_step: 7, count: 2, more: "and 1 more" },
  ];
  const folds = folded(findingRows(FINDINGS, events), groups);
  assert.deepEqual(folds.map(({ row, others, more }) => [row?.step ?? null, others.map(({ step }) => step), more]), [
    [null, [], ""], [1, [3], "and 1 more"], [4, [], ""], [5, [7], "and 1 more"],
    [9, [], ""], // of a group that was not sent
    [null, [2, 6], "2 events with nothing to act on: 2 scale growth"],
  ]);
  assert.equal(folds.flatMap(({ row, others }) => [...(row ? [row] : []), ...others]).length, FINDINGS.length + events.length);
  assert.equal(new Set(folds.map(({ key }) => key)).size, folds.length);
});
