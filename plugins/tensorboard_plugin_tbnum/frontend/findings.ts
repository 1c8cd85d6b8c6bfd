/**
 * Findings and events in one table that folds, sorts and filters, and the files to take away. Loaded when it is opened.
 */

import { goToStep, select } from "./actions.ts";
import { button, dock, element, figureButtons, headRow, iconButton, scroller } from "./elements.ts";
import { counted, formatCount, typeset, words } from "./format.ts";

import type { Api } from "./api.ts";
import type { Figure } from "./elements.ts";
import type { PanelStore } from "./state.ts";
import type { EventGroup, Finding, TbnumEvent } from "./answers.ts";

export type FindingRow = {
  severity: string;
  step: number | null;
  what: string;
  cause: string;
  message: string;
  remedy: string;
  event: TbnumEvent | null;
};

/** What is one row of the table of findings until it is opened. */
export type Fold = {
  key: string;
  /** null: those within have none that stands for them */
  row: FindingRow | null;
  others: FindingRow[];
  /** the others in words */
  more: string;
};

const SEVERITIES = ["info", "warning", "error"];
const MOST_ROWS = 400;
const COLUMNS = ["severity", "step", "what", "cause", "message"] as const;

/** @returns findings first, gravest first */
export function findingRows(findings: Finding[], events: TbnumEvent[]): FindingRow[] {
  return [
    ...findings.map(({ severity, title, evidence, remedy, steps }) => ({ severity, step: steps[0] ?? null, what: title,
      cause: "finding", message: evidence, remedy, event: null })
    ),
    ...events.map((event) => ({ severity: event.severity, step: event.step, what: words(event.kind),
      cause: words(event.cause), message: event.message, remedy: event.remedy, event })
    ),
  ];
}

/**
 * Those that have every word, in order of a column; what has no step comes last.
 * @param column null: as they are
 */
export function arranged(rows: FindingRow[], filter: string, column: typeof COLUMNS[number] | null, direction: 1 | -1) {
  const parts = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rows.filter((row) => {
    const text = `${row.severity} ${row.step} ${row.what} ${row.cause} ${row.message} ${
      typeset(row.message)
    } ${row.remedy}`.toLowerCase();
    return parts.every((part) => text.includes(part));
  });
  if (column === null) return shown;
  return shown.sort((a, b) => {
    if (column === "severity") return direction * (SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
    if (column === "step")
      return a.step === null || b.step === null ? Number(a.step === null) - Number(b.step === null)
        : direction * (a.step - b.step);
    return direction * a[column].localeCompare(b[column]);
  });
}

/**
 * Rows as the report folds them: each finding, each group of events worth reading by its first, and in one what is
 * left.
 * Groups are of the same events as the rows, in order; where only the first of many groups were sent, what is worth
 * reading beyond them stands by itself.
 * @param rows as `findingRows` has them
 */
export function folded(rows: FindingRow[], groups: EventGroup[]): Fold[] {
  const sort = ({ kind, cause, optimizer }: TbnumEvent) => JSON.stringify([kind, cause, optimizer]);
  const bySort: Map<string, { group: EventGroup; fold: Fold | null; left: number }[]> = new Map();
  for (const group of groups) {
    const alike = bySort.get(sort(group)) ?? [];
    alike.push({ group, fold: null, left: group.count });
    bySort.set(sort(group), alike);
  }
  const folds: Fold[] = [];
  const rest: FindingRow[] = [];
  for (const row of rows) {
    const { event } = row;
    const found = event
      && bySort.get(sort(event))?.find(({ group, left }) =>
        left > 0 && group.step <= event.step && event.step <= group.last_step
      );
    if (found) {
      found.left--;
      if (found.fold) found.fold.others.push(row);
      else folds.push(
          found.fold = { key: `${sort(found.group)} ${row.step}`, row, others: [], more: found.group.more },
        );
    } else if (event && event.severity === "info") rest.push(row);
    else folds.push({ key: `${row.what} ${row.step}`, row, others: [], more: "" });
  }
  if (rest.length)
    folds.push({ key: "rest", row: null, others: rest,
      more: `${counted(rest.length, "event")} with nothing to act on: ${countsOf(rest)}` });
  return folds;
}

/** How many there are of each, most first: "12 scale growth, 3 skip". */
function countsOf(rows: FindingRow[]) {
  const counts: Map<string, number> = new Map();
  for (const { what } of rows) counts.set(what, (counts.get(what) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([what, count]) => `${formatCount(count)} ${what}`).join(", ");
}

export class FindingsTable {
  key = "";
  rows: FindingRow[] = [];
  groups: EventGroup[] = [];
  /** keys of the folds that are open */
  open: Set<string> = new Set();
  most = MOST_ROWS;
  /** What draws each row that there may be. */
  drawn: (() => HTMLElement)[] = [];
  column: typeof COLUMNS[number] | null = null;
  direction = (1 as 1 | -1);
  search = element("input", { class: "search", type: "search", placeholder: "Filter",
    "aria-label": "Filter findings and events", oninput: () => this.#restart() });
  links = element("span", "export-links");
  count = element("p", { class: "dock-message", role: "status" });
  body = element("tbody");
  heads = COLUMNS.map((column) =>
    element(
      "th",
      { scope: "col", "data-column": column },
      element("button", { type: "button", class: "sort", onclick: () => this.#sort(column) },
        { severity: "Severity", step: "Step", what: "What", cause: "Cause", message: "In words" }[column]),
    )
  );
  element: HTMLElement;

  constructor(readonly api: Api, readonly store: PanelStore, readonly figure: Figure) {
    this.element = dock(
      "Findings and events",
      [element("h2", {}, "Findings and events"), this.search, this.count, this.links],
      iconButton("✕", "Close the findings", () => store.set({ dock: null })),
      scroller("Table of findings and events", element("table", "data-table", headRow(this.heads), this.body)),
    );
    this.element.classList.add("findings");
  }

  async show() {
    const { loaded } = this.store.state;
    if (!loaded?.eventsAnswer) return;
    const { run, eventsAnswer: { events, version } } = loaded;
    const key = `${run}\n${version}`;
    if (key === this.key) return;
    if (!this.key.startsWith(`${run}\n`)) {
      this.open.clear();
      this.most = MOST_ROWS;
    }
    this.key = key;
    const link = (what: "steps" | "events", format: "csv" | "json") =>
      element("a", { class: "export", href: this.api.exportUrl(run, what, format), download: "" },
        `${what} ${format.toUpperCase()}`);
    this.links.replaceChildren("Save", link("events", "csv"), link("events", "json"), link("steps", "csv"),
      link("steps", "json"), ...figureButtons(this.figure, () => run));
    const { findings, groups } = await this.api.findings(run).catch(() => ({ findings: [], groups: [] }));
    if (this.key !== key) return;
    this.rows = findingRows(findings, events);
    this.groups = groups;
    this.#draw();
  }

  #go(step: number, event: TbnumEvent | null) {
    if (event) select(this.store, event, true);
    else goToStep(this.store, step);
  }

  /** A click sorts, the next one the other way, and a third one leaves them as they were. */
  #sort(column: typeof COLUMNS[number]) {
    const first = column === "severity" ? -1 : 1;
    if (this.column !== column) [this.column, this.direction] = [column, first];
    else if (this.direction === first) this.direction = -first as 1 | -1;
    else this.column = null;
    this.#restart();
  }

  #restart() {
    this.most = MOST_ROWS;
    this.#draw();
  }

  #toggle(key: string) {
    if (!this.open.delete(key)) this.open.add(key);
    this.#draw();
  }

  #draw() {
    for (const head of this.heads) {
      head.setAttribute("aria-sort",
        head.dataset.column !== this.column ? "none" : this.direction > 0 ? "ascending" : "descending");
    }
    const search = this.search.value.trim();
    const folds = this.column === null && !search;
    this.drawn = folds ? folded(this.rows, this.groups).flatMap((fold) => this.#drawFold(fold))
      : arranged(this.rows, search, this.column, this.direction).map((row) => () => this.#drawRow(row));
    const findings = this.rows.filter(({ event }) => event === null).length;
    this.count.textContent = folds ? `${counted(findings, "finding")}, ${counted(this.rows.length - findings, "event")}`
      : `${formatCount(this.drawn.length)} of ${formatCount(this.rows.length)}`;
    const focused = this.body.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.key
      : undefined;
    this.body.replaceChildren();
    this.#append();
    if (focused !== undefined)
      [...this.body.querySelectorAll("button")].find(({ dataset }) => dataset.key === focused)?.focus();
  }

  /** Draws those up to the most that are shown, below those that are there. */
  #append() {
    this.body.append(...this.drawn.slice(this.body.rows.length, this.most).map((draw) => draw()));
    if (this.drawn.length > this.most) this.body.append(this.#drawMore(this.drawn.length - this.most));
  }

  /** What of a fold is seen, each as what draws it. */
  #drawFold({ key, row, others, more }: Fold): (() => HTMLElement)[] {
    const open = this.open.has(key);
    const opener = () =>
      element("button", { class: "link opener", type: "button", "data-key": key, "aria-expanded": String(open),
        onclick: () => this.#toggle(key) }, more);
    const first = () => (row ? this.#drawRow(row, ...(others.length ? [opener()] : []))
      : element("tr", {}, element("td", { class: "rest", colspan: COLUMNS.length }, opener())));
    return [first, ...(open ? others.map((other) => () => this.#drawRow(other)) : [])];
  }

  /** @param opener of those that are folded into it */
  #drawRow(row: FindingRow, ...opener: HTMLElement[]) {
    const go = (step: number) =>
      element("button", { class: "link", type: "button", "data-key": `${row.what} ${step}`, onclick: () =>
        this.#go(step, row.event) }, formatCount(step));
    return element(
      "tr",
      `severity-${row.severity}`,
      element("td", {}, element("span", `severity severity-${row.severity}`, row.severity)),
      element("td", "number", row.step === null ? "–" : go(row.step)),
      element("td", {}, row.what),
      element("td", {}, row.cause),
      element("td", {}, element("p", {}, typeset(row.message), ...(opener.length ? [" ", ...opener] : [])),
        ...(row.remedy ? [element("p", "finding-remedy", typeset(row.remedy))] : [])),
    );
  }

  #drawMore(left: number) {
    const next = Math.min(left, MOST_ROWS);
    return element("tr", {}, element("td", { class: "rest", colspan: COLUMNS.length }, button(
      `Show ${next === left ? "the last" : "the next"} ${formatCount(next)}${
        next === left ? "" : ` of ${formatCount(left)} more`
      }`,
      "More rows of this table",
      () => {
        this.body.lastElementChild?.remove();
        const from = this.body.rows.length;
        this.most += MOST_ROWS;
        this.#append();
        this.body.rows[from]?.querySelector("button")?.focus();
      },
    )));
  }
}
