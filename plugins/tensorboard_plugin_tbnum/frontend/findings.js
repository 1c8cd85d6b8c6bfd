/** Findings and events in one table that sorts and filters, and the files to take away. Loaded when it is opened. */

import { button, dock, download, element, headRow, iconButton, scroller } from "./elements.js";
import { formatCount, typeset, words } from "./format.js";

/** @import { Api } from "./api.js" */
/** @import { Finding, FindingRow, TbnumEvent } from "./types.js" */

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

export class FindingsTable {
  /** @param {Api} api @param {{go: (step: number, event: TbnumEvent | null) => void, close: () => void, figure: () => Promise<Blob>}} callbacks */
  constructor(api, callbacks) {
    this.api = api;
    this.callbacks = callbacks;
    this.key = "";
    /** @type {FindingRow[]} */
    this.rows = [];
    /** @type {typeof COLUMNS[number] | null} */
    this.column = null;
    this.direction = /** @type {1 | -1} */ (1);
    this.search = element("input", { class: "search", type: "search", placeholder: "Filter", "aria-label": "Filter findings and events", oninput: () => this.#draw() });
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
    this.key = key;
    const link = (/** @type {"steps" | "events"} */ what, /** @type {"csv" | "json"} */ format) => element("a", { class: "export", href: this.api.exportUrl(run, what, format), download: "" }, `${what} ${format.toUpperCase()}`);
    const figure = button("Figure (PNG)", "The charts as they are now", async () => download(await this.callbacks.figure(), `${run.replaceAll(/[^\w.-]+/g, "-")}.png`));
    this.links.replaceChildren("Save", link("events", "csv"), link("events", "json"), link("steps", "csv"), link("steps", "json"), figure);
    const { findings } = await this.api.findings(run).catch(() => ({ findings: [] }));
    if (this.key !== key) return;
    this.rows = findingRows(findings, events);
    this.#draw();
  }

  /** @param {typeof COLUMNS[number]} column */
  #sort(column) {
    this.direction = this.column === column ? /** @type {1 | -1} */ (-this.direction) : column === "severity" ? -1 : 1;
    this.column = column;
    this.#draw();
  }

  #draw() {
    const rows = arranged(this.rows, this.search.value, this.column, this.direction);
    for (const head of this.heads) {
      head.setAttribute("aria-sort", head.dataset.column !== this.column ? "none" : this.direction > 0 ? "ascending" : "descending");
    }
    this.count.textContent = `${formatCount(rows.length)} of ${formatCount(this.rows.length)}${rows.length > MOST_ROWS ? `; the first ${MOST_ROWS} are shown, a filter finds the rest` : ""}`;
    this.body.replaceChildren(...rows.slice(0, MOST_ROWS).map((row) => element(
      "tr", `severity-${row.severity}`,
      element("td", {}, element("span", `severity severity-${row.severity}`, row.severity)),
      element("td", "number", row.step === null ? "–" : element("button", { class: "link", type: "button", onclick: () => this.callbacks.go(/** @type {number} */ (row.step), row.event) }, formatCount(row.step))),
      element("td", {}, row.what), element("td", {}, row.cause),
      element("td", {}, element("p", {}, typeset(row.message)), ...(row.remedy ? [element("p", "finding-remedy", typeset(row.remedy))] : [])),
    )));
  }
}
