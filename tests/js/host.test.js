import assert from "node:assert/strict";
import { test } from "node:test";

import { parseFilter } from "../../plugins/tensorboard_plugin_tbnum/frontend/host.ts";

test("what TensorBoard filters by is read from its address, wherever it put it, and nonsense filters nothing", () => {
  const names = ["gpt/seed1", "gpt/seed2", "Other"];
  const through = (search, hash) => names.filter(parseFilter(search, hash).lets);
  assert.deepEqual(through("", "#tbnum"), names);
  assert.deepEqual(through("?runFilter=seed%5B12%5D", "#tbnum"), ["gpt/seed1", "gpt/seed2"]);
  assert.deepEqual(through("?darkMode=true", "#tbnum&regexInput=OTHER"), ["Other"]);
  const boxes = encodeURIComponent(btoa(JSON.stringify({ "gpt/seed1": false, "gpt/seed2": true })));
  assert.deepEqual(through("", `#tbnum&runSelectionState=${boxes}`), ["gpt/seed2", "Other"]);
  assert.deepEqual(through("?runFilter=%28", "#tbnum&runSelectionState=%%%&regexInput=*"), names);
  assert.equal(parseFilter("?runFilter=seed", `#tbnum&runSelectionState=${boxes}`).text, "seed, 1 unticked");
});
