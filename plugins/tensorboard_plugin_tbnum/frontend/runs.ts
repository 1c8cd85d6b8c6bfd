/**
 * The runs in one table, which of them are in the charts, and how the settings of two differ. Loaded when it is opened.
 */

import { Api } from "./api.ts";
import { chooseRun, goToStep, toggleRun } from "./actions.ts";
import { dock, element, headRow, iconButton, scroller, table } from "./elements.ts";
import { counted, formatAligned, formatCount, formatScaleShort, formatShare, statusOf } from "./format.ts";

import { HealthCounter } from "./health.ts";
import { letsThrough } from "./state.ts";

import type { RunRow } from "./answers.ts";
import type { PanelStore } from "./state.ts";

/**
 * Settings as paths and texts, so that nested ones can be held against each other: `scaler.init_scale`.
 */
function flattened(value: any, path: string = ""): [string, string][] {
  if (value === null || typeof value !== "object")
    return [[path, value === null || value === undefined ? "–" : String(value)]];
  if (Array.isArray(value)) return [[path, JSON.stringify(value)]];
  return Object.entries(value).flatMap(([name, inner]) => flattened(inner, path ? `${path}.${name}` : name));
}

/** What two runs recorded differently: path, first, second. */
export function differences(first: any, second: any): [string, string, string][] {
  const [a, b] = [new Map(flattened(first)), new Map(flattened(second))];
  return [...new Set([...a.keys(), ...b.keys()])].sort()
    .map((path) => ([path, a.get(path) ?? "–", b.get(path) ?? "–"] as [string, string, string])).filter(([, x, y]) =>
      x !== y
    );
}

/** what runs are sorted by */
const COLUMNS: [id: string, title: string, of: ((run: RunRow) => string | number | null) | null][] = [
  ["shown", "Show", null],
  ["compare", "Compare", null],
  ["run", "Run", (run) => run.run],
  ["status", "Status", (run) => run.last_wall_time],
  ["steps", "Steps", (run) => run.steps],
  ["skipped", "Skipped", (run) => (run.steps && run.skipped_steps != null ? run.skipped_steps / run.steps : null)],
  ["scale", "Last scale", (run) => run.last_loss_scale],
  ["loss", "Best loss", (run) => run.best_loss],
  ["findings", "Findings",
    (run) =>
      run.findings && (run.findings.error ?? 0) * 1e6 + (run.findings.warning ?? 0) * 1e3 + (run.findings.info ?? 0)],
];

/** Rows in the order of a column; what is not known comes last, whichever way. */
export function sortedRuns(runs: RunRow[], column: string, down: boolean) {
  const of = COLUMNS.find(([id]) => id === column)?.[2];
  if (!of) return runs;
  const names = new Intl.Collator(undefined, { numeric: true });
  return [...runs].sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    const order = typeof x === "string" ? names.compare(x, String(y)) : x - Number(y);
    return (down ? -order : order) || names.compare(a.run, b.run);
  });
}

/** @param findings by severity */
export function findingsText(findings: Record<string, number> | null) {
  if (!findings) return "…";
  const parts = ["error", "warning"].filter((severity) => findings[severity]).map((severity) =>
    counted(findings[severity], severity)
  );
  return parts.join(", ") || "none";
}

export class RunsTable {
  health: HealthCounter;
  sort = { column: "run", down: false };
  runs: RunRow[] = [];
  drawn: Map<string, { key: string; row: HTMLTableRowElement }> = new Map();
  /** at most two, the one chosen last at the end */
  compared: string[] = [];
  body = element("tbody");
  result = element("div", { class: "runs-differences", role: "status" });
  heads = COLUMNS.map(([id, title, of]) =>
    element("th", { scope: "col", "data-column": id },
      of ? element("button", { class: "sort", type: "button", onclick: () => this.#sortBy(id) }, title) : title)
  );
  scroller = scroller("Table of runs", this.result,
    element("table", "data-table runs-table", headRow(this.heads), this.body));
  element: HTMLElement;

  constructor(readonly api: Api, readonly store: PanelStore, readonly colorOf: (run: string) => string) {
    this.health = new HealthCounter(new Api(api.base, api.fetcher), store);
    this.scroller.addEventListener("scroll", () => this.health.count(() => this.#inSight()));
    const how = element("p", "dock-message",
      "Show puts a run into the charts. Choose two to compare, to see how their settings differ.");
    this.element = dock("Comparison of runs", [element("h2", {}, "Runs"), how],
      iconButton("✕", "Close the runs", () => store.set({ dock: null })), this.scroller);
  }

  show() {
    const { colorOf, store: { state } } = this;
    const current = state.run;
    const over = new Set(state.over);
    const counted = (row: RunRow) => ({ ...row, findings: state.health.get(row.run)?.findings ?? row.findings });
    const runs = (this.runs = (state.table?.runs ?? []).filter(({ run }) => letsThrough(state, run)).map(counted));
    const now = Date.now() / 1000;
    for (const [at, [id]] of COLUMNS.entries())
      this.heads[at].setAttribute("aria-sort",
        id !== this.sort.column ? "none" : this.sort.down ? "descending" : "ascending");
    const rows = sortedRuns(runs, this.sort.column, this.sort.down).map((run) => {
      const shown = run.run === current || over.has(run.run);
      const color = shown ? colorOf(run.run) : "";
      const key = JSON.stringify([run, shown, current === run.run, color, statusOf(run, now).text]);
      const known = this.drawn.get(run.run);
      if (known?.key === key) return known.row;
      const row = this.#row(run, { current: run.run === current, shown, color, now });
      this.drawn.set(run.run, { key, row });
      return row;
    });
    if (rows.length !== this.body.children.length || rows.some((row, at) => row !== this.body.children[at])) {
      const focused =
        ((this.body.contains(document.activeElement) ? document.activeElement : null) as HTMLElement | null)
          ?.getAttribute("aria-label");
      this.body.replaceChildren(...rows);
      if (focused) this.body.querySelector<HTMLElement>(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
    }
    this.health.count(() => this.#inSight());
  }

  #row(run: RunRow, { current, shown, color, now }: { current: boolean; shown: boolean; color: string; now: number }) {
    const name = run.run === "." ? "(logdir)" : run.run;
    const show = element("input", { type: "checkbox", "aria-label": `Show ${run.run}`, disabled: current,
      onchange: () => toggleRun(this.store, run.run) });
    show.checked = shown;
    const compare = element("input", { type: "checkbox", "data-run": run.run, "aria-label": `Compare ${run.run}`,
      onchange: () => this.#compare(run.run, compare.checked) });
    compare.checked = this.compared.includes(run.run);
    const skipped = run.steps && run.skipped_steps != null
      ? `${formatCount(run.skipped_steps)} (${formatShare(run.skipped_steps ?? 0, run.steps)})` : "–";
    const findings = element("span", run.findings?.error ? "bad" : "", findingsText(run.findings));
    return element(
      "tr",
      current ? "current" : "",
      element("td", {}, show),
      element("td", {}, compare),
      element("td", {}, element("span", { class: "swatch", style: `--color: ${color || "transparent"}` }),
        element("button", { class: "link", type: "button", title: run.run,
          onclick: () => chooseRun(this.store, run.run) }, name)),
      element("td", {}, statusOf(run, now).text),
      element("td", "number", formatCount(run.steps)),
      element("td", "number", skipped),
      element("td", "number", formatScaleShort(run.last_loss_scale)),
      element("td", "number", formatAligned(run.best_loss)),
      element("td", "number", findings),
    );
  }

  #sortBy(column: string) {
    this.sort = { column, down: this.sort.column === column ? !this.sort.down : !["run", "loss"].includes(column) };
    this.show();
  }

  /** The runs in sight. */
  #inSight() {
    const { top, bottom } = this.scroller.getBoundingClientRect();
    return this.runs.filter(({ run }) => {
      const box = this.drawn.get(run)?.row.getBoundingClientRect();
      return box && box.height > 0 && box.bottom > top && box.top < bottom;
    });
  }

  #linkTo(step: number | null) {
    if (step === null || !this.compared.includes(this.store.state.run ?? "")) return [];
    return [" ",
      element("button", { class: "link", type: "button", onclick: () => goToStep(this.store, step) },
        `Go to step ${formatCount(step)}`)];
  }

  async #compare(run: string, on: boolean) {
    this.compared = [...this.compared.filter((one) => one !== run), ...(on ? [run] : [])].slice(-2);
    for (const box of this.body.querySelectorAll<HTMLInputElement>("input[data-run]"))
      box.checked = this.compared.includes(box.dataset.run ?? "");
    const [first, second] = this.compared;
    if (second === undefined) return this.result.replaceChildren();
    try {
      const [a, b, apart] = await Promise.all([this.api.settings(first), this.api.settings(second),
        this.api.apart(first, second)]);
      if (this.compared[0] !== first || this.compared[1] !== second) return;
      const rows = differences(a.settings, b.settings);
      this.result.replaceChildren(
        element("p", "apart", apart.sentence, ...this.#linkTo(apart.first_step)),
        rows.length ? table("data-table differences", ["Setting", first, second], rows)
          : element("p", "nothing", "Their settings are the same."),
      );
    } catch (error) {
      this.result.replaceChildren(element("p", "nothing", error instanceof Error ? error.message : String(error)));
    }
  }
}
