import assert from "node:assert/strict";
import { test } from "node:test";

import { differences } from "../../plugins/tensorboard_plugin_tbnum/static/runs.js";

test("settings differ where their paths do, however deep; what one did not tell is a dash", () => {
  const first = { scaler: { init_scale: 65536, growth: 2 }, seed: 1, config: null };
  const second = { scaler: { init_scale: 1024, growth: 2 }, seed: 1, config: { lr: 0.1 } };
  assert.deepEqual(differences(first, second), [["config", "–", "–"], ["config.lr", "–", "0.1"], ["scaler.init_scale", "65536", "1024"]].filter(([, a, b]) => a !== b));
  assert.deepEqual(differences(first, first), []);
});
