/** The runs in one table, and how the settings of two of them differ. Loaded when it is opened. */

import { formatCount, formatNumber, formatScaleShort, formatShare, statusOf } from "./format.js";
import { element } from "./host.js";

/** @import { Api } from "./api.js" */
/** @import { RunRow } from "./types.js" */

/**
 * Settings as paths and texts, so that nested ones can be held against each other: `scaler.init_scale`.
 * @param {any} value @param {string} [path] @returns {[string, string][]}
 */
export function flattened(value, path = "") {
  if (value === null || typeof value !== "object") return [[path, value === null || value === undefined ? "–" : String(value)]];
  if (Array.isArray(value)) return [[path, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([name, inner]) => flattened(inner, path ? `${path}.${name}` : name));
}

/** What two runs told differently: path, first, second. @param {any} first @param {any} second @returns {[string, string, string][]} */
export function differences(first, second) {
  const [a, b] = [new Map(flattened(first)), new Map(flattened(second))];
  return [...new Set([...a.keys(), ...b.keys()])].sort()
    .map((path) => /** @type {[string, string, string]} */ ([path, a.get(path) ?? "–", b.get(path) ?? "–"])).filter(([, x, y]) => x !== y);
}

export class RunsTable {
  /** @param {Api} api @param {{close: () => void, choose: (run: string) => void}} callbacks */
  constructor(api, callbacks) {
    this.api = api;
    this.callbacks = callbacks;
    this.drawn = "";
    /** @type {string[]} at most two, the one chosen last at the end */
    this.compared = [];
    this.body = element("tbody");
    this.result = element("div", { class: "runs-differences", role: "status" });
    const heads = ["Compare", "Run", "Status", "Steps", "Skipped", "Last scale", "Best loss"];
    const close = element("button", { class: "icon-button", type: "button", "aria-label": "Close the runs", title: "Close", onclick: () => callbacks.close() }, "✕");
    this.element = element(
      "section", { class: "dock", "aria-label": "Comparison of runs" },
      element("header", "dock-head", element("h2", {}, "Runs"), element("p", "dock-message", "Choose two to see how their settings differ."), close),
      element(
        "div", { class: "findings-scroller", tabindex: 0, role: "region", "aria-label": "Table of runs" },
        element("table", "findings-table", element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))), this.body), this.result,
      ),
    );
  }

  /** @param {RunRow[]} runs */
  show(runs) {
    const drawn = JSON.stringify(runs);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const now = Date.now() / 1000;
    this.body.replaceChildren(...runs.map((run) => {
      const box = element("input", { type: "checkbox", "aria-label": `Compare ${run.run}`, onchange: () => this.#compare(run.run, box.checked) });
      box.checked = this.compared.includes(run.run);
      const name = element("button", { class: "link", type: "button", onclick: () => this.callbacks.choose(run.run) }, run.run === "." ? "(logdir)" : run.run);
      const skipped = run.steps ? `${formatCount(run.skipped_steps)} (${formatShare(run.skipped_steps ?? 0, run.steps)})` : "–";
      return element(
        "tr", {}, element("td", {}, box), element("td", {}, name), element("td", {}, statusOf(run, now).text), element("td", "number", formatCount(run.steps)),
        element("td", "number", skipped), element("td", "number", formatScaleShort(run.last_loss_scale)), element("td", "number", formatNumber(run.best_loss)),
      );
    }));
  }

  /** @param {string} run @param {boolean} on */
  async #compare(run, on) {
    this.compared = [...this.compared.filter((one) => one !== run), ...(on ? [run] : [])].slice(-2);
    this.body.querySelectorAll("input").forEach((box) => { box.checked = this.compared.some((one) => box.getAttribute("aria-label") === `Compare ${one}`); });
    const [first, second] = this.compared;
    if (second === undefined) return this.result.replaceChildren();
    try {
      const [a, b] = await Promise.all([this.api.settings(first), this.api.settings(second)]);
      if (this.compared[0] !== first || this.compared[1] !== second) return;
      const rows = differences(a.settings, b.settings);
      this.result.replaceChildren(rows.length ? element(
        "table", "findings-table differences",
        element("thead", {}, element("tr", {}, ...["Setting", first, second].map((head) => element("th", { scope: "col" }, head)))),
        element("tbody", {}, ...rows.map(([path, x, y]) => element("tr", {}, element("th", { scope: "row" }, path), element("td", {}, x), element("td", {}, y)))),
      ) : element("p", "nothing", "Their settings are the same."));
    } catch (error) {
      this.result.replaceChildren(element("p", "nothing", error instanceof Error ? error.message : String(error)));
    }
  }
}
