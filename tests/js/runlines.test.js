import assert from "node:assert/strict";
import { test } from "node:test";

import { RunColors, groupName, linesOf, shortNames } from "../../plugins/tensorboard_plugin_tbnum/frontend/runlines.ts";

test("a run keeps the colour that TensorBoard gave it, however many come after it", () => {
  const colors = new RunColors();
  colors.know(["a", "b"]);
  const [first, second] = [colors.of("a"), colors.of("b")];
  colors.know(["0", "a", "b"]); // it sorts before, and came later
  assert.deepEqual([colors.of("a"), colors.of("b")], [first, second]);
  assert.deepEqual(first, ["#425066", "#8e98a3"]);
  assert.notDeepEqual(colors.of("0"), first);
});

test("the eighth run of TensorBoard has the colour of the first", () => {
  const colors = new RunColors();
  const names = [...Array(8).keys()].map(String);
  colors.know(names);
  assert.equal(colors.of("7"), colors.of("0"));
  assert.equal(new Set(names.map((name) => colors.of(name)[0])).size, 7);
});

test("a run that TensorBoard does not know has a colour that none of its own has", () => {
  const colors = new RunColors();
  colors.know(["a", "b", "c", "d", "e", "f", "g"]);
  const theirs = new Set(["a", "b", "c", "d", "e", "f", "g"].flatMap((name) => colors.of(name)));
  const own = ["x", "y", "z", "x"].map((name) => colors.of(name));
  assert.ok(own.every((pair) => pair.every((color) => !theirs.has(color))));
  assert.equal(own[0], own[3]);
  assert.equal(new Set(own).size, 3);
});

test("runs are lines one by one, or those of one setting together", () => {
  const setting = { a1: "A", a2: "A", b1: "B", b2: "B", c: "C", d: null, e: null };
  const others = ["a2", "b1", "b2", "c", "d", "e", "b1"];
  const settingOf = (run) => setting[run];
  assert.deepEqual(linesOf("a1", others, settingOf, false), [["a2"], ["b1"], ["b2"], ["c"], ["d"], ["e"]]);
  assert.deepEqual(linesOf("a1", others, settingOf, true), [["a1", "a2"], ["b1", "b2"], ["c"], ["d"], ["e"]]);
  assert.deepEqual(linesOf("c", ["c"], settingOf, true), [], "the current run alone is drawn by the charts");
});

test("names lose the folders that all have, and never all of themselves", () => {
  assert.deepEqual(shortNames(["gpt/lr1/seed1", "gpt/lr2/seed1"]), ["lr1/seed1", "lr2/seed1"]);
  assert.deepEqual(shortNames(["gpt", "gpt/a"]), ["gpt", "gpt/a"]);
  assert.deepEqual(shortNames(["a/b", "a/b"]), ["b", "b"]);
  assert.deepEqual(shortNames(["a/b"]), ["a/b"]);
});

test("seeds are called together by what their names begin with", () => {
  assert.equal(groupName(["gpt/lr1e-3/seed1", "gpt/lr1e-3/seed2"]), "gpt/lr1e-3 · 2 seeds");
  assert.equal(groupName(["base_seed_12", "base_seed_13", "base_seed_1"]), "base · 3 seeds");
  assert.equal(groupName(["x", "y"]), "one setting · 2 seeds");
});
