import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "../../plugins/tensorboard_plugin_tbnum/frontend/store.ts";

test("who watches a part of the state hears of its changes, once for all that were set together", () => {
  const store = new Store({ zoom: null, pin: null, run: "a" });
  const heard = [];
  store.watch(["zoom", "pin"], (keys) => heard.push([...keys].sort()));
  store.set({ zoom: [1, 2], pin: 3, run: "b" });
  store.set({ run: "c" });
  store.set({ pin: 3 });
  assert.deepEqual(heard, [["pin", "run", "zoom"]]);
});

test("those who asked first hear first, and of what one of them sets all hear after the first change", () => {
  const store = new Store({ a: 0, b: 0 });
  const heard = [];
  store.watch(["a"], () => { heard.push(`one ${store.state.a}`); store.set({ b: store.state.a }); });
  store.watch(["a", "b"], () => heard.push(`two ${store.state.a} ${store.state.b}`));
  store.set({ a: 1 });
  assert.deepEqual(heard, ["one 1", "two 1 1", "two 1 1"]);
});

test("one that fails does not silence the store", () => {
  const store = new Store({ a: 0 });
  let heard = 0;
  store.watch(["a"], () => { heard += 1; if (store.state.a === 1) throw new Error("once"); });
  assert.throws(() => store.set({ a: 1 }), /once/);
  store.set({ a: 2 });
  assert.equal(heard, 2);
});
