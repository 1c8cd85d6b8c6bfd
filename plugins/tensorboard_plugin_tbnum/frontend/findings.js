/** Findings and events in one table that folds, sorts and filters, and the files to take away. Loaded when it is opened. */

import { button, dock, download, element, headRow, iconButton, scroller } from "./elements.js";
import { counted, formatCount, typeset, words } from "./format.js";

/** @import { Api } from "./api.js" */
/** @import { EventGroup, Finding, FindingRow, Fold, TbnumEvent } from "./types.js" */

const SEVERITIES = ["info", "warning", "error"];
const MOST_ROWS = 400;
const COLUMNS = /** @type {const} */ (["severity", "step", "what", "cause", "message"]);

/** @param {Finding[]} findings @param {TbnumEvent[]} events @returns {FindingRow[]} findings first, gravest first */
export function findingRows(findings, events) {
  return [
    ...findings.map(({ severity, title, evidence, remedy, steps }) => ({
      severity, step: steps[0] ?? null, what: title, cause: "finding", message: evidence, remedy, event: null,
    })),
    ...events.map((event) => ({ severity: event.severity, step: event.step, what: words(event.kind), cause: words(event.cause), message: event.message, remedy: event.remedy, event })),
  ];
}

/**
 * Those that have every word, in order of a column; what has no step comes last.
 * @param {FindingRow[]} rows @param {string} filter @param {typeof COLUMNS[number] | null} column null: as they are @param {1 | -1} direction
 */
export function arranged(rows, filter, column, direction) {
  const parts = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = rows.filter((row) => {
    const text = `${row.severity} ${row.step} ${row.what} ${row.cause} ${row.message} ${typeset(row.message)} ${row.remedy}`.toLowerCase();
    return parts.every((part) => text.includes(part));
  });
  if (column === null) return shown;
  return shown.sort((a, b) => {
    if (column === "severity") return direction * (SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
    if (column === "step") return a.step === null || b.step === null ? Number(a.step === null) - Number(b.step === null) : direction * (a.step - b.step);
    return direction * a[column].localeCompare(b[column]);
  });
}

/**
 * Rows as the report folds them: each finding, each group of events worth reading by its first, and in one what is left.
 * Groups are of the same events as the rows, in order; where only the first of many groups were told, what is worth
 * reading beyond them stands by itself.
 * @param {FindingRow[]} rows as `findingRows` has them @param {EventGroup[]} groups @returns {Fold[]}
 */
export function folded(rows, groups) {
  const sort = (/** @type {TbnumEvent} */ { kind, cause, optimizer }) => JSON.stringify([kind, cause, optimizer]);
  /** @type {Map<string, {group: EventGroup, fold: Fold | null, left: number}[]>} */
  const bySort = new Map();
  for (const group of groups) {
    const alike = bySort.get(sort(group)) ?? [];
    alike.push({ group, fold: null, left: group.count });
    bySort.set(sort(group), alike);
  }
  /** @type {Fold[]} */
  const folds = [];
  /** @type {FindingRow[]} */
  const rest = [];
  for (const row of rows) {
    const { event } = row;
    const found = event && bySort.get(sort(event))?.find(({ group, left }) => left > 0 && group.step <= event.step && event.step <= group.last_step);
    if (found) {
      found.left--;
      if (found.fold) found.fold.others.push(row);
      else folds.push(found.fold = { key: `${sort(found.group)} ${row.step}`, row, others: [], more: found.group.more });
    } else if (event && event.severity === "info") rest.push(row);
    else folds.push({ key: `${row.what} ${row.step}`, row, others: [], more: "" });
  }
  if (rest.length) folds.push({ key: "rest", row: null, others: rest, more: `${counted(rest.length, "event")} with nothing to act on: ${countsOf(rest)}` });
  return folds;
}

/** How many there are of each, most first: "12 scale growth, 3 skip". @param {FindingRow[]} rows */
function countsOf(rows) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { what } of rows) counts.set(what, (counts.get(what) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([what, count]) => `${formatCount(count)} ${what}`).join(", ");
}

export class FindingsTable {
  /** @param {Api} api @param {{go: (step: number, event: TbnumEvent | null) => void, close: () => void, figure: () => Promise<Blob>}} callbacks */
  constructor(api, callbacks) {
    this.api = api;
    this.callbacks = callbacks;
    this.key = "";
    /** @type {FindingRow[]} */
    this.rows = [];
    /** @type {EventGroup[]} */
    this.groups = [];
    /** @type {Set<string>} keys of the folds that are open */
    this.open = new Set();
    this.most = MOST_ROWS;
    /** What draws each row that there may be. @type {(() => HTMLElement)[]} */
    this.drawn = [];
    /** @type {typeof COLUMNS[number] | null} */
    this.column = null;
    this.direction = /** @type {1 | -1} */ (1);
    this.search = element("input", { class: "search", type: "search", placeholder: "Filter", "aria-label": "Filter findings and events", oninput: () => this.#anew() });
    this.links = element("span", "export-links");
    this.count = element("p", { class: "dock-message", role: "status" });
    this.body = element("tbody");
    this.heads = COLUMNS.map((column) => element(
      "th", { scope: "col", "data-column": column },
      element("button", { type: "button", class: "sort", onclick: () => this.#sort(column) }, { severity: "Severity", step: "Step", what: "What", cause: "Cause", message: "In words" }[column]),
    ));
    this.element = dock(
      "Findings and events", [element("h2", {}, "Findings and events"), this.search, this.count, this.links], iconButton("✕", "Close the findings", callbacks.close),
      scroller("Table of findings and events", element("table", "data-table", headRow(this.heads), this.body)),
    );
    this.element.classList.add("findings");
  }

  /** @param {string} run @param {TbnumEvent[]} events @param {string} version */
  async show(run, events, version) {
    const key = `${run}\n${version}`;
    if (key === this.key) return;
    if (!this.key.startsWith(`${run}\n`)) {
      this.open.clear();
      this.most = MOST_ROWS;
    }
    this.key = key;
    const link = (/** @type {"steps" | "events"} */ what, /** @type {"csv" | "json"} */ format) => element("a", { class: "export", href: this.api.exportUrl(run, what, format), download: "" }, `${what} ${format.toUpperCase()}`);
    const figure = button("Figure (PNG)", "The charts as they are now", async () => download(await this.callbacks.figure(), `${run.replaceAll(/[^\w.-]+/g, "-")}.png`));
    this.links.replaceChildren("Save", link("events", "csv"), link("events", "json"), link("steps", "csv"), link("steps", "json"), figure);
    const { findings, groups } = await this.api.findings(run).catch(() => ({ findings: [], groups: [] }));
    if (this.key !== key) return;
    this.rows = findingRows(findings, events);
    this.groups = groups;
    this.#draw();
  }

  /** A click sorts, the next one the other way, and a third one leaves them as they were. @param {typeof COLUMNS[number]} column */
  #sort(column) {
    const first = column === "severity" ? -1 : 1;
    if (this.column !== column) [this.column, this.direction] = [column, first];
    else if (this.direction === first) this.direction = /** @type {1 | -1} */ (-first);
    else this.column = null;
    this.#anew();
  }

  #anew() {
    this.most = MOST_ROWS;
    this.#draw();
  }

  /** @param {string} key */
  #toggle(key) {
    if (!this.open.delete(key)) this.open.add(key);
    this.#draw();
  }

  #draw() {
    for (const head of this.heads) {
      head.setAttribute("aria-sort", head.dataset.column !== this.column ? "none" : this.direction > 0 ? "ascending" : "descending");
    }
    const search = this.search.value.trim();
    const folds = this.column === null && !search;
    this.drawn = folds ? folded(this.rows, this.groups).flatMap((fold) => this.#drawFold(fold))
      : arranged(this.rows, search, this.column, this.direction).map((row) => () => this.#drawRow(row));
    const findings = this.rows.filter(({ event }) => event === null).length;
    this.count.textContent = folds ? `${counted(findings, "finding")}, ${counted(this.rows.length - findings, "event")}` : `${formatCount(this.drawn.length)} of ${formatCount(this.rows.length)}`;
    const focused = this.body.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.key : undefined;
    this.body.replaceChildren();
    this.#append();
    if (focused !== undefined) [...this.body.querySelectorAll("button")].find(({ dataset }) => dataset.key === focused)?.focus();
  }

  /** Draws those up to the most that are shown, below those that are there. */
  #append() {
    this.body.append(...this.drawn.slice(this.body.rows.length, this.most).map((draw) => draw()));
    if (this.drawn.length > this.most) this.body.append(this.#drawMore(this.drawn.length - this.most));
  }

  /** What of a fold is seen, each as what draws it. @param {Fold} fold @returns {(() => HTMLElement)[]} */
  #drawFold({ key, row, others, more }) {
    const open = this.open.has(key);
    const opener = () => element("button", { class: "link opener", type: "button", "data-key": key, "aria-expanded": String(open), onclick: () => this.#toggle(key) }, more);
    const first = () => (row ? this.#drawRow(row, ...(others.length ? [opener()] : [])) : element("tr", {}, element("td", { class: "rest", colspan: COLUMNS.length }, opener())));
    return [first, ...(open ? others.map((other) => () => this.#drawRow(other)) : [])];
  }

  /** @param {FindingRow} row @param {...HTMLElement} opener of those that are folded into it */
  #drawRow(row, ...opener) {
    const go = (/** @type {number} */ step) => element("button", { class: "link", type: "button", "data-key": `${row.what} ${step}`, onclick: () => this.callbacks.go(step, row.event) }, formatCount(step));
    return element(
      "tr", `severity-${row.severity}`,
      element("td", {}, element("span", `severity severity-${row.severity}`, row.severity)),
      element("td", "number", row.step === null ? "–" : go(row.step)),
      element("td", {}, row.what), element("td", {}, row.cause),
      element("td", {}, element("p", {}, typeset(row.message), ...(opener.length ? [" ", ...opener] : [])), ...(row.remedy ? [element("p", "finding-remedy", typeset(row.remedy))] : [])),
    );
  }

  /** @param {number} left */
  #drawMore(left) {
    const next = Math.min(left, MOST_ROWS);
    return element("tr", {}, element("td", { class: "rest", colspan: COLUMNS.length }, button(
      `Show ${next === left ? "the last" : "the next"} ${formatCount(next)}${next === left ? "" : ` of ${formatCount(left)} more`}`, "More rows of this table", () => {
        this.body.lastElementChild?.remove();
        const from = this.body.rows.length;
        this.most += MOST_ROWS;
        this.#append();
        this.body.rows[from]?.querySelector("button")?.focus();
      },
    )));
  }
}
