/** How the runs in sight do: asked for one after another, as each takes its log to be read. */

import { element } from "./elements.ts";
import { counted, formatCount, formatShare } from "./format.ts";

import type { HealthAnswer, RunRow } from "./answers.ts";
import type { Api } from "./api.ts";
import type { PanelStore } from "./state.ts";

export class HealthCounter {
  /** steps that a run had when it was asked for */
  asked: Map<string, number | null> = new Map();
  busy = false;

  /** @param api one of its own, so that what it asks for pushes nothing out of what the charts keep */
  constructor(readonly api: Api, readonly store: PanelStore) {}

  /** Asks for the first of some runs that was not asked for since it went on, and so on. @param runs asked again */
  async count(runs: () => RunRow[]) {
    if (this.busy) return;
    this.busy = true;
    try {
      for (let next = this.#next(runs()); next; next = this.#next(runs())) {
        this.asked.set(next.run, next.steps);
        const answer = await this.api.health(next.run).catch(() => null);
        if (answer) this.store.set({ health: new Map(this.store.state.health).set(next.run, answer) });
      }
    } finally {
      this.busy = false;
    }
  }

  #next(runs: RunRow[]) {
    return runs.find(({ run, steps }) => steps !== null && this.asked.get(run) !== steps);
  }
}

const GRAVITY = ["info", "warning", "error"];

/** The greater, the worse: the worst finding, then how many there are, then spikes and skips. */
export function badness({ worst, findings, spikes, skipped }: HealthAnswer) {
  const counts = (findings.error ?? 0) * 1e6 + (findings.warning ?? 0) * 1e3;
  return (GRAVITY.indexOf(worst ?? "") + 1) * 1e9 + counts + spikes * 10 + Math.min(9, skipped ?? 0);
}

/** In words: "worst: warning, 1 spike, 8 skips, 27 % clipped". */
export function healthText({ worst, spikes, skipped, clipped, nonfinite }: HealthAnswer) {
  return [
    worst ? `worst: ${worst}` : "nothing to report",
    spikes ? counted(spikes, "spike") : "",
    skipped ? counted(skipped, "skip") : "",
    nonfinite ? `${formatCount(nonfinite)} non-finite` : "",
    clipped ? `${formatShare(clipped, 1)} clipped` : "",
  ].filter(Boolean).join(", ");
}

/** The same in the length of a word: the worst finding, and bars for spikes, skips and the clipped share. */
export function healthBar(health: HealthAnswer, steps: number) {
  const { worst, spikes, skipped, clipped, nonfinite } = health;
  const rare = (count: number) => (count ? 0.3 + 0.7 * Math.min(1, Math.log10(count) / 3) : 0);
  const bars: [string, number][] = [["spike", rare(spikes + nonfinite)], ["skip",
    skipped ? Math.max(0.3, Math.min(1, 10 * skipped / Math.max(1, steps))) : 0], ["clipped", clipped ?? 0]];
  return element("span", { class: "health", title: healthText(health) },
    element("span", { class: `severity-dot severity-${worst ?? "info"}`, "aria-hidden": "true" }),
    ...bars.map(([name, share]) =>
      element("span", { class: `health-bar health-${name}`, style: `--share: ${share.toFixed(2)}`,
        "aria-hidden": "true" })
    ), element("span", "visually-hidden", healthText(health)));
}
