/**
 * The list of runs beside the charts: which there are, how they do, which one is chosen, and which are drawn beside it.
 */

import { chooseRun, fold, toggleDock, toggleRun } from "./actions.ts";
import { Api } from "./api.ts";
import { button, element, iconButton, longName } from "./elements.ts";
import { counted, formatCompact, formatCount, isPlain, runTitle, statusOf } from "./format.ts";
import { HealthCounter, badness, healthBar } from "./health.ts";
import { RowList, searchField } from "./rowlist.ts";
import { letsThrough } from "./state.ts";

import type { HealthAnswer, RunRow } from "./answers.ts";
import type { PanelStore, RunOrder, State } from "./state.ts";

/** The runs, with a field to search them where they are many. */
export class RunList {
  title = element("h2", {}, "Runs");
  tableButton: HTMLButtonElement;
  filterText = element("span");
  filterNote: HTMLParagraphElement;
  search = searchField("Find a run", () => this.#filter(), "Words, or a regular expression");
  order: HTMLSelectElement;
  health: HealthCounter;
  errors = element("div", "run-errors");
  list: RowList;
  element: HTMLElement;
  shown: RunRow[] = [];

  /** @param colorOf "" where colours do not distinguish runs */
  constructor(api: Api, readonly store: PanelStore, readonly colorOf: (run: string) => string) {
    this.health = new HealthCounter(new Api(api.base, api.fetcher), store);
    this.order = element("select", { class: "small", "aria-label": "Order of the runs",
      onchange: () => store.set({ runOrder: this.order.value as RunOrder }) },
      ...ORDERS.map(([id, text]) => element("option", { value: id }, text)));
    this.tableButton = button("Compare", "Runs as a table, and how their settings differ", () => {
      store.set({ runsOpen: false });
      toggleDock(store, "runs");
    });
    this.filterNote = element("p", { class: "run-filter", hidden: true }, this.filterText,
      button("Show all", "Leave TensorBoard's filter aside",
        () => store.set({ filterAside: store.state.filter.text })));
    this.list = new RowList({ label: "Runs", rowHeight: 52,
      key: (index) =>
        `${JSON.stringify(this.shown[index])} ${statusOf(this.shown[index], Date.now() / 1000).text} ${
          this.#tick(this.shown[index].run)
        } ${JSON.stringify(store.state.health.get(this.shown[index].run))}`,
      draw: (index, row) =>
        drawRun(this.shown[index], row, this.#tick(this.shown[index].run),
          store.state.health.get(this.shown[index].run)), choose: (index) => chooseRun(store, this.shown[index].run),
      toggle: (index) => toggleRun(store, this.shown[index].run) });
    this.list.element.setAttribute("aria-keyshortcuts", "O"); // a run beside the chosen one
    this.element = element("nav", { class: "runs", "aria-label": "Runs" },
      element("header", "runs-head", this.title, this.tableButton,
        iconButton("«", "Fold the runs away", () => fold(store, "runs"))), this.search, this.order, this.filterNote,
      this.list.element, this.errors);
  }

  /** How a run is ticked, and in which colour. */
  #tick(run: string) {
    const { table, run: chosen, over } = this.store.state;
    if ((table?.runs.length ?? 0) < 2) return "";
    const on = over.includes(run);
    return `${run === chosen ? "chosen" : on ? "on" : "off"} ${
      over.length && (on || run === chosen) ? this.colorOf(run) : ""
    }`;
  }

  show() {
    const { table } = this.store.state;
    if (!table) return;
    this.tableButton.hidden = table.runs.length < 2;
    this.title.textContent = table.runs.length > 1 ? `Runs (${formatCount(table.runs.length)})` : "Runs";
    this.search.hidden = table.runs.length < 8;
    this.order.hidden = table.runs.length < 4;
    this.errors.replaceChildren(
      ...table.errors.slice(0, 20).map(({ run, reason }) =>
        element("p", "problem", element("strong", {}, run), ` ${reason}`)
      ),
    );
    this.#filter();
  }

  #filter() {
    const { state } = this.store;
    const runs = state.table?.runs ?? [];
    const wanted = nameTest(this.search.value);
    const kept = runs.filter(({ run }) => run === state.run || letsThrough(state, run));
    this.filterNote.hidden = kept.length === runs.length;
    this.filterText.textContent = `TensorBoard's filter hides ${counted(runs.length - kept.length, "run")}`;
    this.filterText.title = state.filter.text;
    this.shown = inOrder(this.search.hidden ? kept : kept.filter(({ run }) => wanted(run)), state);
    this.list.show(this.shown.length, this.shown.findIndex((row) => row.run === state.run));
    this.health.count(() => (state.runOrder === "worst" ? this.shown : this.list.inSight.map((at) => this.shown[at])));
  }
}

const ORDERS: [RunOrder, string][] = [["name", "By name"], ["newest", "Newest first"], ["worst", "Worst first"], [
  "skips",
  "Most skips first",
]];

/** Runs in the order that a person chose; what is not known comes last. */
export function inOrder(runs: RunRow[], { runOrder, health }: Pick<State, "runOrder" | "health">): RunRow[] {
  const of: Record<Exclude<RunOrder, "name">, (run: RunRow) => number | null | undefined> = {
    newest: (run) => run.last_wall_time,
    skips: (run) => run.skipped_steps && run.steps && run.skipped_steps / run.steps,
    worst: ({ run }) => health.has(run) ? badness(health.get(run) as HealthAnswer) : null,
  };
  if (runOrder === "name") return runs;
  const known = (run: RunRow) => of[runOrder](run) ?? -Infinity;
  return [...runs].sort((a, b) => known(b) - known(a) || a.run.localeCompare(b.run, undefined, { numeric: true }));
}

/** Whether a name is wanted: by words, all of which it has, or by a regular expression. */
export function nameTest(text: string): (name: string) => boolean {
  if (/[\\^$.*+?()[\]{}|]/.test(text)) {
    try {
      const expression = new RegExp(text, "i");
      return (name) => expression.test(name);
    } catch {
      // Not a whole one yet: words until it is.
    }
  }
  const parts = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (name) => parts.every((part) => name.toLowerCase().includes(part));
}

function drawRun(run: RunRow, row: HTMLElement, tick: string, health: HealthAnswer | undefined) {
  const [how, color = ""] = tick.split(" ");
  const { state, text } = statusOf(run, Date.now() / 1000);
  row.title = `${runTitle(run.run)}: ${text}${isPlain(run) ? ", inferred from TensorBoard scalars" : ""}`;
  const facts = run.steps == null ? [isPlain(run) ? "TensorBoard scalars" : "reading …"] : [
    `${formatCompact(run.steps)} ${run.steps === 1 ? "step" : "steps"}`,
    run.skipped_steps == null ? "skips unknown"
      : run.skipped_steps || run.last_loss_scale != null ? counted(run.skipped_steps, "skip") : "",
  ].filter(Boolean);
  row.append(
    element("span", "run-name", element("span", { class: `dot ${state}`, title: text }),
      longName(runTitle(run.run), "run-text"),
      ...(how && (how !== "chosen" || color) ? [
        element("span", { class: `run-tick ${how}`, "data-tick": "", style: color && `--color: ${color}`,
          title: how === "chosen" ? "The current run" : "In the charts beside the current run (O)" }),
        ...(how === "on" ? [element("span", "visually-hidden", "in the charts")] : []),
      ] : [])),
    element("span", "run-facts", ...facts.map((one) => element("span", "run-fact", one)),
      ...(health ? [healthBar(health, run.steps ?? 0)] : [])),
  );
}
