/**
 * What stands around the charts: the list of runs, the list of events, the card of a chosen event, the card at the
 * cursor, and what is said when there is nothing to draw. Every text from outside is set as text, never as markup.
 */

import { revived } from "./api.js";
import { eventAt } from "./charts.js";
import {
  counted, formatCompact, formatCount, formatElapsed, formatNumber, formatScale, formatScaleShort, formatShare, statusOf, typeset, words,
} from "./format.js";
import { button, copyButton, element, factTable, iconButton, placeBeside, table } from "./host.js";
import { LANES, causeId, causesOf, icon, laneOf, shownLanes } from "./marks.js";

/** @import { Lane, LaneKind, RunRow, RunTable, StepValues, TbnumEvent } from "./types.js" */

/** A list of which only the rows in sight exist, however long it is; a listbox by keyboard and for screen readers. */
export class RowList {
  /**
   * @param {{label: string, rowHeight: number, key: (index: number) => unknown, draw: (index: number, row: HTMLElement) => void, choose: (index: number) => void, toggle?: (index: number) => void}} options
   *   `toggle`: by the O key, or a click on what has `data-tick`
   *   `key`: a row whose key is the same as before is left as it is, so that nothing changes under a pointer
   */
  constructor({ label, rowHeight, key, draw, choose, toggle }) {
    this.key = key;
    this.toggle = toggle;
    this.rowHeight = rowHeight;
    this.draw = draw;
    this.choose = choose;
    this.count = 0;
    this.chosen = -1;
    this.active = -1;
    this.prefix = `row-${label.toLowerCase().replaceAll(" ", "-")}`;
    this.inner = element("div", { class: "rows-inner", role: "presentation" });
    this.element = element("div", {
      class: "rows", tabindex: 0, role: "listbox", "aria-label": label,
      onkeydown: (event) => this.#key(event),
      onclick: (event) => {
        const row = /** @type {HTMLElement} */ (event.target).closest("[data-index]");
        const tick = /** @type {HTMLElement} */ (event.target).closest("[data-tick]");
        if (row instanceof HTMLElement) (tick && toggle ? toggle : (/** @type {number} */ index) => this.#pick(index))(Number(row.dataset.index));
      },
    }, this.inner);
    this.element.addEventListener("scroll", () => this.#render(), { passive: true });
    new ResizeObserver(() => this.#resized()).observe(this.element);
    this.height = 0;
    /** @type {Map<number, {key: unknown, row: HTMLElement}>} */
    this.drawn = new Map();
  }

  /** @param {number} count @param {number} chosen index, or -1 */
  show(count, chosen) {
    const moved = chosen !== this.chosen;
    this.count = count;
    this.chosen = chosen;
    if (moved) this.active = chosen;
    if (this.active >= count) this.active = count - 1;
    this.inner.style.height = `${count * this.rowHeight}px`;
    if (moved && chosen >= 0) this.reveal(chosen);
    this.#render();
  }

  /** @param {number} index */
  reveal(index) {
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top - this.rowHeight;
    else if (top + this.rowHeight > scrollTop + clientHeight) this.element.scrollTop = top + 2 * this.rowHeight - clientHeight;
  }

  /** A chosen row that was in sight stays in sight. */
  #resized() {
    const { scrollTop, clientHeight } = this.element;
    const top = this.chosen * this.rowHeight;
    const before = this.height;
    this.height = clientHeight;
    if (this.chosen >= 0 && top >= scrollTop && top < scrollTop + before) this.reveal(this.chosen);
    this.#render();
  }

  #render() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - 4);
    const last = Math.min(this.count, Math.ceil((scrollTop + clientHeight) / this.rowHeight) + 4);
    for (const [index, { row }] of this.drawn) {
      if (index >= first && index < last) continue;
      row.remove();
      this.drawn.delete(index);
    }
    /** @type {HTMLElement | null} */
    let next = null;
    for (let index = last - 1; index >= first; index--) {
      const key = this.key(index);
      const known = this.drawn.get(index);
      let row = known?.row;
      if (!row || known?.key !== key) {
        row = element("div", "row");
        this.draw(index, row);
        if (known) known.row.replaceWith(row);
        else this.inner.insertBefore(row, next);
        this.drawn.set(index, { key, row });
      }
      this.#mark(row, index);
      next = row;
    }
    if (this.active >= first && this.active < last) this.element.setAttribute("aria-activedescendant", `${this.prefix}-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /** @param {HTMLElement} row @param {number} index */
  #mark(row, index) {
    row.classList.toggle("chosen", index === this.chosen);
    row.classList.toggle("active", index === this.active);
    row.dataset.index = String(index);
    row.id = `${this.prefix}-${index}`;
    row.style.transform = `translateY(${index * this.rowHeight}px)`;
    row.style.height = `${this.rowHeight}px`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(index === this.chosen));
    row.setAttribute("aria-setsize", String(this.count));
    row.setAttribute("aria-posinset", String(index + 1));
  }

  /** @param {number} index */
  #pick(index) {
    this.active = index;
    this.choose(index);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    /** @type {Record<string, number>} */
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      this.active = Math.max(0, Math.min(this.count - 1, this.active + moves[event.key]));
      this.reveal(this.active);
      this.#render();
    } else if ((event.key === "Enter" || event.key === " ") && this.active >= 0) {
      event.preventDefault();
      this.#pick(this.active);
    } else if (event.key.toLowerCase() === "o" && this.active >= 0 && !event.ctrlKey && !event.metaKey && !event.altKey) {
      this.toggle?.(this.active);
    }
  }
}

/** The runs, with a field to search them where they are many. */
export class RunList {
  /** @param {{choose: (run: string) => void, toggle: (run: string) => void, table: () => void, filtered: () => void}} callbacks `toggle`: whether a run is in the charts beside the current one */
  constructor({ choose, toggle, table, filtered }) {
    this.title = element("h2", {}, "Runs");
    this.tableButton = button("Compare", "Runs as a table, and how their settings differ", table);
    this.filterText = element("span");
    this.filterNote = element("p", { class: "run-filter", hidden: true }, this.filterText, button("Show all", "Leave TensorBoard's filter aside", () => { this.asideFrom = this.filter.text; this.#filter(); filtered(); }));
    /** What TensorBoard filters by was left aside. */
    this.asideFrom = "";
    this.filter = { text: "", lets: (/** @type {string} */ run) => run !== null };
    /** @type {Set<string>} in the charts beside the chosen one */
    this.over = new Set();
    this.colorOf = (/** @type {string} */ run) => run && "";
    this.search = searchField("Find a run", () => this.#filter());
    this.errors = element("div", "run-errors");
    this.list = new RowList({
      label: "Runs", rowHeight: 52,
      key: (index) => `${JSON.stringify(this.shown[index])} ${statusOf(this.shown[index], Date.now() / 1000).text} ${this.#tick(this.shown[index].run)}`,
      draw: (index, row) => drawRun(this.shown[index], row, this.#tick(this.shown[index].run)),
      choose: (index) => choose(this.shown[index].run),
      toggle: (index) => toggle(this.shown[index].run),
    });
    this.list.element.setAttribute("aria-keyshortcuts", "O"); // a run beside the chosen one
    this.element = element("nav", { class: "runs", "aria-label": "Runs" }, element("header", "runs-head", this.title, this.tableButton), this.search, this.filterNote, this.list.element, this.errors);
    /** @type {RunRow[]} */
    this.runs = [];
    /** @type {RunRow[]} */
    this.shown = [];
    /** @type {string | null} */
    this.chosen = null;
  }

  /** Whether TensorBoard's filter, where it is heard, lets a run through. @param {string} run */
  lets(run) {
    return this.filter.text === this.asideFrom || this.filter.lets(run);
  }

  /** How a run is ticked, and in which colour. @param {string} run */
  #tick(run) {
    return this.runs.length < 2 ? "" : `${run === this.chosen ? "chosen" : this.over.has(run) ? "on" : "off"} ${this.over.has(run) || run === this.chosen ? this.colorOf(run) : ""}`;
  }

  /** @param {RunTable} table @param {string | null} chosen @param {{over: Set<string>, colorOf: (run: string) => string, filter: {text: string, lets: (run: string) => boolean}}} more */
  show(table, chosen, { over, colorOf, filter }) {
    Object.assign(this, { over, colorOf, filter });
    this.runs = table.runs;
    this.tableButton.hidden = table.runs.length < 2;
    this.chosen = chosen;
    this.title.textContent = table.runs.length > 1 ? `Runs (${formatCount(table.runs.length)})` : "Runs";
    this.search.hidden = table.runs.length < 8;
    this.errors.replaceChildren(...table.errors.slice(0, 20).map(({ run, reason }) => element("p", "problem", element("strong", {}, run), ` ${reason}`)));
    this.#filter();
  }

  #filter() {
    const parts = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = this.runs.filter(({ run }) => run === this.chosen || this.lets(run));
    this.filterNote.hidden = kept.length === this.runs.length;
    this.filterText.textContent = `TensorBoard's filter hides ${counted(this.runs.length - kept.length, "run")}`;
    this.filterText.title = this.filter.text;
    this.shown = this.search.hidden ? kept : kept.filter((row) => parts.every((part) => row.run.toLowerCase().includes(part)));
    this.list.show(this.shown.length, this.shown.findIndex((row) => row.run === this.chosen));
  }
}

/** Whether a run never used tbnum: what it says of skips is inferred. @param {{source?: string}} run */
export function isPlain(run) {
  return run.source === "tensorboard";
}

/** How a run is called where people read it: `.` is the logdir itself. @param {string} run */
export function runTitle(run) {
  return run === "." ? "(logdir)" : run;
}

/** @param {RunRow} run @param {HTMLElement} row @param {string} tick */
function drawRun(run, row, tick) {
  const [how, color = ""] = tick.split(" ");
  const { state, text } = statusOf(run, Date.now() / 1000);
  row.title = `${runTitle(run.run)}: ${text}${isPlain(run) ? ", inferred from TensorBoard scalars" : ""}`;
  const facts = run.steps == null ? [isPlain(run) ? "TensorBoard scalars" : "reading …"] : [
    `${formatCompact(run.steps)} ${run.steps === 1 ? "step" : "steps"}`,
    run.skipped_steps == null ? "skips unknown" : counted(run.skipped_steps, "skip"),
    run.last_loss_scale == null ? "" : `scale ${formatScaleShort(run.last_loss_scale)}`,
  ];
  row.append(
    element("span", "run-name", element("span", { class: `dot ${state}`, title: text }), element("span", "run-text", runTitle(run.run)), ...(how && (how !== "chosen" || color) ? [
      element("span", { class: `run-tick ${how}`, "data-tick": "", style: color && `--color: ${color}`, title: how === "chosen" ? "The current run" : "In the charts beside the current run (O)" }),
      ...(how === "on" ? [element("span", "visually-hidden", "in the charts")] : []),
    ] : [])),
    element("span", "run-facts", ...facts.map((one) => element("span", {}, one))),
  );
}

const NOTHING_SO_FAR = "No skip, no change of the scale, nothing to report so far.";
const NOTHING_KNOWN = "Nothing is known of skips: the log has no loss scale. If it is under a tag of its own, start TensorBoard with --tbnum_map loss_scale=TAG.";

/** The events of a run, filtered by the legend's kinds and by words. */
export class EventList {
  /** @param {(event: TbnumEvent) => void} choose @param {() => void} filtered */
  constructor(choose, filtered) {
    this.title = element("h2", {}, "Events");
    this.search = searchField("Filter events", () => { this.#filter(); filtered(); });
    this.nothing = element("p", "nothing");
    this.list = new RowList({
      label: "Events", rowHeight: 56,
      key: (index) => this.shown[index],
      draw: (index, row) => drawEvent(this.shown[index], row),
      choose: (index) => choose(this.shown[index]),
    });
    this.element = element(
      "section", { class: "events", "aria-label": "Events" },
      element("header", "events-head", this.title, this.search), this.nothing, this.list.element,
    );
    /** @type {TbnumEvent[]} */
    this.events = [];
    /** @type {TbnumEvent[]} */
    this.shown = [];
    /** @type {TbnumEvent | null} */
    this.selected = null;
    /** @type {number | null} */
    this.total = null;
  }

  /** @param {TbnumEvent[]} events those that the legend lets through, in order of step @param {number | null} total null: not told yet @param {TbnumEvent | null} selected */
  show(events, total, selected) {
    if (events === this.events && total === this.total && selected === this.selected) return;
    this.events = events;
    this.total = total;
    this.selected = selected;
    this.#filter();
  }

  /** Whether the log can tell of skips: plain scalars may lack a loss scale. */
  known = true;

  #filter() {
    const parts = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = parts.length ? this.events.filter((event) => matches(event, parts)) : this.events;
    const all = this.shown.length === this.total ? "" : ` of ${formatCount(this.total)}`;
    this.title.textContent = this.total === null ? "Events" : `Events (${formatCount(this.shown.length)}${all})`;
    this.nothing.hidden = this.shown.length > 0;
    this.nothing.textContent = this.total === null ? "Being worked out …" : this.total ? "No event matches the filter." : this.known ? NOTHING_SO_FAR : NOTHING_KNOWN;
    this.list.element.hidden = this.shown.length === 0;
    this.list.show(this.shown.length, this.selected ? this.shown.indexOf(this.selected) : -1);
  }
}

/** @param {TbnumEvent} event @param {string[]} parts */
function matches(event, parts) {
  const text = `${words(event.kind)} ${words(event.cause)} ${event.message} ${typeset(event.message)} ${event.step} ${event.optimizer ?? ""}`.toLowerCase();
  return parts.every((part) => text.includes(part));
}

/** @param {string} kind */
function laneKind(kind) {
  return /** @type {LaneKind} */ (LANES.find((lane) => lane.id === laneOf(kind)));
}

/** @param {string} kind */
export function eventTitle(kind) {
  const text = kind === "nonfinite_loss" ? "non-finite loss" : words(kind);
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** @param {TbnumEvent} event @param {HTMLElement} row */
function drawEvent(event, row) {
  row.classList.add("event-row", `severity-${event.severity}`);
  row.dataset.step = String(event.step);
  row.dataset.kind = event.kind;
  row.title = typeset(event.message);
  row.append(
    element(
      "span", "event-line", icon(laneKind(event.kind)), element("span", "event-kind", eventTitle(event.kind)),
      ...causeChip(event.cause), element("span", "event-step", `step ${formatCount(event.step)}`),
    ),
    element("span", "event-message", typeset(event.message) || scaleChange(event.data) || ""),
  );
}

/** @param {string | null} cause */
function causeChip(cause) {
  return cause ? [element("span", `cause cause-${cause}`, words(cause))] : [];
}

/** @param {Record<string, any>} data */
function scaleChange(data) {
  const before = data.old_scale ?? data.loss_scale;
  const after = data.new_scale;
  return before != null && after != null ? `${formatScale(before)} → ${formatScale(after)}` : null;
}

/** How facts of an event and values of a step are called and written. @type {Record<string, [string, (value: any) => string]>} */
const FACTS = {
  loss: ["Loss", formatNumber],
  loss_scale: ["Loss scale", formatScale],
  grad_norm: ["Gradient norm", formatNumber],
  grad_norm_clipped: ["… after clipping", formatNumber],
  clip_coef: ["Clip coefficient", formatNumber],
  max_norm: ["Threshold", formatNumber],
  lr: ["Learning rate", formatNumber],
  micro_batches: ["Micro-batches", formatNumber],
  growth_tracker: ["Growth tracker", formatNumber],
  nonfinite_tensors: ["Non-finite tensors", formatNumber],
  param_norm: ["Parameter norm", formatNumber],
  update_norm: ["Update norm", formatNumber],
  skipped: ["Skipped", (value) => (value ? "yes" : "no")],
  tensors: ["Tensors with a gradient", formatNumber],
  params_nonfinite: ["Parameters finite", (value) => (value ? "no" : "yes")],
  injected: ["Injected", (value) => (value ? "on purpose" : "no")],
};

/** @param {string} name @param {any} value @returns {[string, string]} */
function fact(name, value) {
  const known = FACTS[name];
  const plain = revived(value);
  if (known) return [known[0], known[1](plain)];
  const label = words(name).replace(/^./, (letter) => letter.toUpperCase());
  if (plain == null || typeof plain === "number") return [label, formatNumber(plain)];
  if (typeof plain === "string") return [label, plain];
  if (typeof plain === "boolean") return [label, plain ? "yes" : "no"];
  return [label, JSON.stringify(plain)];
}

/** Facts that the card has a place of its own for. */
const PLACED = new Set(["ranks", "old_scale", "new_scale", "loss_scale", "evidence", "sentinel", "nonfinite_names", "tensors", "nonfinite_tensors"]);

/**
 * What an event states and what speaks for it, in the order in which one asks: scale, recovery, loss, the rest.
 * @param {TbnumEvent} event @returns {[string, string][]}
 */
export function eventFacts({ data }) {
  /** @type {[string, string][]} */
  const rows = [];
  const evidence = data.evidence ?? {};
  const change = scaleChange(data);
  if (change) rows.push(["Loss scale", change]);
  else if (data.loss_scale != null) rows.push(fact("loss_scale", data.loss_scale));
  if (evidence.recovered_after !== undefined) rows.push(["Scale back after", evidence.recovered_after === null ? "not in this log" : counted(evidence.recovered_after, "step")]);
  if (evidence.held_steps !== undefined) rows.push(["Held before it", counted(evidence.held_steps, "step")]);
  if (evidence.held_before_growth !== undefined) rows.push(["… at the scale below", counted(evidence.held_before_growth, "step")]);
  if (evidence.held_before_probe !== undefined) rows.push([`… before a probe of ${formatScale(evidence.failed_probe)}`, counted(evidence.held_before_probe, "step")]);
  if (evidence.skips_in_row > 1) rows.push(["Skips in a row", formatCount(evidence.skips_in_row)]);
  if (data.nonfinite_tensors != null) rows.push(["Non-finite tensors", formatNumber(revived(data.nonfinite_tensors)) + (data.tensors ? ` of ${formatNumber(data.tensors)}` : "")]);
  for (const [name, value] of Object.entries(data)) {
    if (PLACED.has(name) || value == null || value === "") continue;
    rows.push(fact(name, value));
    if (name === "loss" && evidence.recent_loss != null) rows.push(["… recent median", formatNumber(revived(evidence.recent_loss))]);
  }
  if (evidence.nonfinite_since != null) rows.push(["Parameters not finite since", `step ${formatCount(evidence.nonfinite_since)}`]);
  if (evidence.largest_finite != null) rows.push(["Largest finite gradient", formatNumber(revived(evidence.largest_finite))]);
  if (evidence.largest_finite_scaled != null) rows.push(["… times the scale", formatNumber(revived(evidence.largest_finite_scaled))]);
  if (evidence.norm_ratio != null) rows.push(["Finite gradients", `${formatNumber(Number(Number(evidence.norm_ratio).toPrecision(3)))} × their usual length`]);
  rows.push(...lossOfRanks(data.ranks));
  if (evidence.began?.modules?.length) rows.push(["Began in", evidence.began.modules.join("\n")]);
  return rows;
}

/** The loss of each rank, those at fault marked. @param {Record<string, any> | null | undefined} ranks @returns {[string, string][]} */
function lossOfRanks(ranks) {
  if (!ranks?.numbers?.length) return [];
  const mark = ranks.how === "part" ? "its part of the gradients is not finite" : "at fault";
  const lines = ranks.numbers.map((/** @type {number} */ rank, /** @type {number} */ at) => {
    const loss = ranks.losses[at] == null ? "unknown" : formatNumber(revived(ranks.losses[at]));
    return `rank ${rank}: ${loss}${ranks.guilty.includes(rank) ? `  ← ${mark}` : ""}`;
  });
  const shown = lines.length <= 16 ? lines : lines.filter((/** @type {string} */ line, /** @type {number} */ at) => at < 8 || line.includes("←")).concat(`… of ${lines.length} ranks`);
  return [["Loss by rank", shown.join("\n")]];
}

/** The sentence that a sentinel's finding makes. @param {Record<string, any> | null | undefined} seen @returns {string} */
export function sentinelText(seen) {
  if (!seen) return "";
  const where = seen.module == null ? "a tensor of no module" : seen.module === "" ? "the model itself" : seen.module;
  const what = `${seen.what ?? "tensor"} of ${where}`;
  const shape = Array.isArray(seen.shape) && seen.shape.length ? ` (${seen.shape.join(" × ")}, ${seen.dtype})` : seen.dtype ? ` (${seen.dtype})` : "";
  const largest = seen.largest == null ? "" : `; the largest that went before it was ${formatNumber(revived(seen.largest))}${seen.limit == null ? "" : `, the limit is ${formatNumber(revived(seen.limit))}`}`;
  return `Going ${seen.phase ?? "forward"}, the first that was not finite was the ${what}${shape}${largest}.`;
}

/** The tensors at fault with their counts, where those are known. @param {TbnumEvent} event @returns {{name: string, nan: number | null, inf: number | null}[]} */
export function tensorsAtFault({ data }) {
  if (Array.isArray(data.evidence?.nonfinite)) return data.evidence.nonfinite;
  return Array.isArray(data.nonfinite_names) ? data.nonfinite_names.map((name) => ({ name: String(name), nan: null, inf: null })) : [];
}

/**
 * An event and its step's record as text, for a bug report: every value in full.
 * @param {string} run @param {TbnumEvent} event @param {StepValues | null} step @param {string} address
 */
export function eventText(run, event, step, address) {
  const lines = [`tbnum: ${words(event.kind)} at step ${event.step} of ${runTitle(run)}${event.cause ? ` (${words(event.cause)})` : ""}`];
  if (event.message) lines.push(event.message);
  if (event.remedy) lines.push(`What to do: ${event.remedy}`);
  const seen = sentinelText(event.data.sentinel);
  if (seen) lines.push(seen);
  lines.push("", ...eventFacts(event).map(([name, value]) => `${name}: ${value.replaceAll("\n", ", ")}`));
  const faults = tensorsAtFault(event);
  if (faults.length) lines.push("", "Tensors at fault:", ...faults.map(({ name, nan, inf }) => `  ${name}${nan === null ? "" : `  NaN ${nan}  inf ${inf}`}`));
  if (step && step.step === event.step) lines.push("", ...recordText(step));
  lines.push("", address);
  return lines.join("\n");
}

/** Every value of a step in full, as text. @param {StepValues} step */
function recordText({ values }) {
  const width = Math.max(...Object.keys(values).map((name) => name.length));
  return ["The step's record:", ...Object.entries(values).map(([name, value]) => `  ${name.padEnd(width)}  ${value ?? "unknown"}`)];
}

/** A step as text, for a bug report. @param {string} run @param {StepValues} step @param {string} address */
export function stepText(run, step, address) {
  const events = step.events.map(({ kind, cause, message }) => `${eventTitle(kind)}${cause ? ` (${words(cause)})` : ""}: ${message}`);
  return [`tbnum: step ${step.step} of ${runTitle(run)}`, ...events, "", ...recordText(step), "", address].join("\n");
}

/** What is known of the chosen event. */
export class EventCard {
  /**
   * @param {{close: () => void, go: (by: 1 | -1) => void, link: () => string, text: () => string, openTensor: (name: string) => void}} callbacks
   *   `openTensor`: shows a tensor beyond this card
   */
  constructor(callbacks) {
    this.element = element("article", { class: "card", hidden: true, tabindex: -1, "aria-label": "Chosen event" });
    this.callbacks = callbacks;
    /** Whether the log has tensors, so that a name leads somewhere. */
    this.hasTensors = false;
    /** @type {TbnumEvent | null} */
    this.event = null;
    this.values = element("div");
  }

  /** @param {TbnumEvent | null} event @param {{index: number, count: number}} place among its kind */
  show(event, { index, count }) {
    this.element.hidden = event === null;
    const drawn = `${index}/${count}/${this.hasTensors}`;
    if (event === null || (event === this.event && this.element.dataset.place === drawn)) {
      if (event === null) this.values = element("div");
      this.event = event;
      return;
    }
    this.event = event;
    this.element.dataset.place = drawn;
    this.element.className = `card severity-${event.severity}`;
    const { close, go, link, text } = this.callbacks;
    const title = eventTitle(event.kind);
    const where = [
      `Step ${formatCount(event.step)}`,
      event.elapsed == null ? "" : `${formatElapsed(event.elapsed)} after the start`,
      event.optimizer === "optimizer" ? "" : event.optimizer,
    ];
    /** @type {Node[]} */
    const parts = [
      element(
        "header", "card-head", icon(laneKind(event.kind)), element("h2", {}, title),
        element(
          "div", "card-buttons",
          iconButton("‹", `Previous ${title.toLowerCase()} (P)`, () => go(-1), { disabled: index === 0 || !count }),
          element("span", "card-place", `${index < 0 ? "–" : formatCount(index + 1)} / ${formatCount(count)}`),
          iconButton("›", `Next ${title.toLowerCase()} (N)`, () => go(1), { disabled: index >= count - 1 }),
          iconButton("✕", "Close (Esc)", () => close()),
        ),
      ),
      element("p", "card-where", where.filter(Boolean).join(" · ")),
      ...causeChip(event.cause).map((chip) => element("p", "card-cause", chip)),
    ];
    if (event.message) parts.push(element("p", "card-message", typeset(event.message)));
    const seen = sentinelText(event.data.sentinel);
    if (seen) parts.push(element("p", "card-sentinel", seen));
    if (event.remedy) parts.push(element("div", "card-remedy", element("h3", {}, "What to do"), element("p", {}, typeset(event.remedy))));
    const rows = eventFacts(event);
    if (rows.length) parts.push(factTable(rows));
    parts.push(...this.#tensors(event));
    if (this.values.dataset.step !== String(event.step)) this.values = element("div", "card-values");
    const copies = element(
      "div", "card-copies", copyButton("Copy link", "The address of this event in this view", link),
      copyButton("Copy as text", "What is known of this step, for a bug report", text),
    );
    this.element.replaceChildren(...parts, this.values, copies);
    this.element.scrollTop = 0;
  }

  /** The tensors at fault, and the finite ones beside them. @param {TbnumEvent} event @returns {Node[]} */
  #tensors(event) {
    const name = (/** @type {string} */ text) => (this.hasTensors
      ? element("button", { class: "link", type: "button", title: `Open ${text}`, onclick: () => this.callbacks.openTensor(text) }, text) : text);
    const parts = [];
    const faults = tensorsAtFault(event);
    const number = event.data.nonfinite_tensors;
    const more = typeof number === "number" && number > faults.length ? `, ${faults.length} of ${formatCount(number)}` : "";
    if (faults.length && faults[0].nan === null) parts.push(table("small-table", ["Tensor"], faults.map((fault) => [name(fault.name)]), `Not finite${more}`));
    else if (faults.length) {
      parts.push(table("small-table", ["Tensor", "NaN", "∞"], faults.map((fault) => [name(fault.name), formatCount(fault.nan), formatCount(fault.inf)]), `Not finite${more}, in order of the backward pass`));
    }
    const beside = event.data.evidence?.finite_neighbours;
    if (Array.isArray(beside) && beside.length) {
      parts.push(table(
        "small-table", ["Tensor", "Norm", "Usually"],
        beside.map((one) => [name(String(one.name)), ...[one.grad_norm, one.usual].map((value) => formatNumber(typeof value === "number" ? Number(value.toPrecision(4)) : revived(value)))]), "Finite, computed just before",
      ));
    }
    return parts;
  }

  /** Adds what the step's record has beyond the event's facts. @param {TbnumEvent} event @param {StepValues} step */
  addValues(event, step) {
    if (event !== this.event || step.step !== event.step) return;
    const told = new Set(["step", "wall_time", "skipped", ...Object.keys(event.data)]);
    const rows = Object.entries(step.values).filter(([name, value]) => value != null && !told.has(name)).map(([name, value]) => fact(name, value));
    this.values.dataset.step = String(step.step);
    if (rows.length) this.values.replaceChildren(element("h3", {}, "The step's record"), factTable(rows));
  }
}

/** How much a value is above another, in brackets; of scales how often. @param {any} value @param {any} other @param {boolean} times */
export function differenceText(value, other, times) {
  if (typeof value !== "number" || typeof other !== "number" || !Number.isFinite(value - other)) return "";
  if (times) return value === other || !other ? "" : value > other ? ` (× ${formatNumber(value / other)})` : ` (÷ ${formatNumber(other / value)})`;
  const difference = Number((value - other).toPrecision(3));
  return difference === 0 ? " (same)" : ` (${difference > 0 ? "+" : ""}${formatNumber(difference)})`;
}

/** The card that follows the cursor with the exact values of its step. */
export class CursorCard {
  constructor() {
    this.element = element("div", { class: "cursor-card", hidden: true, "aria-hidden": "true" }); // the charts' aria-valuetext says the same
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param {number} step
   * @param {StepValues | null} known null while it is being fetched
   * @param {{prefix: string, elapsed: number | null, events: TbnumEvent[], bucket: string | null, pinned: StepValues | null, beside: {element: HTMLElement, text: string, many: boolean} | null, title: string}} more
   *   `pinned`: the step that this one is held against
   * @returns {string} the same as one line of text
   */
  show(step, known, { prefix, elapsed, events, bucket, pinned, beside, title }) {
    const value = (/** @type {string} */ name) => /** @type {any} */ (known ? known.values[name] ?? null : undefined);
    const own = (/** @type {string} */ name) => value(prefix + name);
    const other = (/** @type {string} */ name) => /** @type {any} */ (pinned && pinned.step !== step ? pinned.values[name] : undefined);
    const write = (/** @type {any} */ raw, /** @type {(value: any) => string} */ format, /** @type {string} */ name = "") => (raw === undefined ? "…" : format(raw) + differenceText(raw, other(name), name === "loss_scale"));
    const skipped = value(`${prefix}skipped`) ?? value("skipped");
    const [norm, clipped] = [own("grad_norm"), own("grad_norm_clipped")];
    const coefficient = own("clip_coef");
    const didClip = typeof coefficient === "number" && coefficient < 1;
    /** @type {[string, string][]} */
    const rows = [
      ["Loss", write(value("loss"), formatNumber, "loss")],
      ["Loss scale", write(value("loss_scale"), formatScale, "loss_scale")],
      ["Gradient norm", write(norm, formatNumber, `${prefix}grad_norm`)],
      ["… clipped", write(clipped, formatNumber) + (didClip ? ` (× ${formatNumber(Number(coefficient.toPrecision(3)))})` : "")],
      ["Threshold", write(own("max_norm"), formatNumber)],
      ["Learning rate", write(own("lr"), formatNumber, `${prefix}lr`)],
      ["Micro-batches", write(value("micro_batches"), formatNumber)],
      ["Skipped", skipped === undefined ? "…" : skipped ? "yes" : "no"],
    ];
    this.element.replaceChildren(
      element("header", {}, element("strong", {}, title || `Step ${formatCount(known?.step ?? step)}`), element("span", {}, formatElapsed(elapsed))),
      ...(beside ? [beside.element] : []),
      ...(beside?.many || (known && !Object.keys(known.values).length) ? [] : [factTable(rows)]),
      ...events.slice(0, 3).map(({ kind, cause }) => element("p", "cursor-event", icon(laneKind(kind)), eventTitle(kind) + (cause ? `: ${words(cause)}` : ""))),
      ...(bucket ? [element("p", "cursor-bucket", bucket)] : []),
      ...(pinned && pinned.step !== step ? [element("p", "cursor-bucket", `Differences are from step ${formatCount(pinned.step)}, ${counted(Math.abs(step - pinned.step), "step")} ${step > pinned.step ? "before" : "after"}`)] : []),
    );
    this.element.classList.toggle("skipped", skipped === true);
    this.element.hidden = false;
    return `Step ${formatCount(step)}, ${beside ? `${beside.text}; ` : ""}${rows.map(([name, text]) => `${name} ${text}`).join(", ")}`;
  }

  /** Beside the cursor, within the window. @param {number} x @param {number} y of the window */
  place(x, y) {
    placeBeside(this.element, x, y - this.element.offsetHeight / 3);
  }
}

/** Chips that turn marks on and off, by kind and by cause. */
export class Legend {
  /** @param {(id: string) => void} toggle */
  constructor(toggle) {
    this.element = element("div", { class: "legend", role: "group", "aria-label": "Kinds of marks" });
    this.toggle = toggle;
    this.drawn = "";
    /** What there is, counted once: drawings ask again and again. @type {{lanes: Lane[] | null, text: string}} */
    this.counted = { lanes: null, text: "" };
  }

  /** @param {Lane[]} lanes @param {Set<string>} hidden */
  show(lanes, hidden) {
    if (lanes !== this.counted.lanes) this.counted = { lanes, text: JSON.stringify(lanes.map((lane) => [lane.kind.id, lane.steps.length, causesOf(lane)])) };
    const drawn = JSON.stringify([this.counted.text, ...hidden]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = /** @type {HTMLElement | null} */ (this.element.contains(document.activeElement) ? document.activeElement : null)?.dataset.lane;
    const chip = (/** @type {string} */ id, /** @type {string} */ what, /** @type {number} */ count, /** @type {(string | Node)[]} */ name, /** @type {boolean} */ off) => element(
      "button", {
        class: "chip", type: "button", "data-lane": id, "aria-pressed": String(!hidden.has(id)), disabled: off,
        title: `${hidden.has(id) ? "Show" : "Hide"} ${what}`, onclick: () => this.toggle(id),
      },
      ...name, element("span", "chip-count", formatCount(count)),
    );
    this.element.replaceChildren(...lanes.flatMap((lane) => {
      const { kind, steps } = lane;
      return [
        chip(kind.id, kind.plural, steps.length, [icon(kind), kind.label], false),
        ...causesOf(lane).map(([cause, count]) => chip(causeId(lane, cause), `${kind.plural} of the cause ${words(cause)}`, count, [words(cause)], hidden.has(kind.id))),
      ];
    }));
    if (focused) /** @type {HTMLElement | null} */ (this.element.querySelector(`[data-lane="${focused}"]`))?.focus();
  }
}

/** What a run's skips were, in a line: "7 skips (0.01 %): 5 scale warmup, 2 bad batch". `known`: whether the log can tell. @param {TbnumEvent[]} events @param {number} steps @param {boolean} [known] */
export function skipSummary(events, steps, known = true) {
  const skips = events.filter((event) => event.kind === "skip");
  if (!skips.length) return known ? "no skips" : "skips unknown";
  /** @type {Map<string, number>} */
  const causes = new Map();
  for (const { cause, data } of skips) causes.set(cause ?? "unknown", (causes.get(cause ?? "unknown") ?? 0) + Number(data.at_least ?? 1));
  const parts = [...causes].sort((a, b) => b[1] - a[1]).map(([cause, count]) => `${formatCount(count)} ${words(cause)}`);
  if (skips[0].data.inferred) {
    return `at least ${counted([...causes.values()].reduce((sum, count) => sum + count, 0), "skip")}: ${parts.join(", ")}`;
  }
  return `${counted(skips.length, "skip")} (${formatShare(skips.length, steps)}): ${parts.join(", ")}`;
}

/** The events that the legend lets through, in order of step. @param {Lane[]} lanes @param {Set<string>} hidden */
export function listedEvents(lanes, hidden) {
  const order = new Map(LANES.map((lane, index) => [lane.id, index]));
  return shownLanes(lanes, hidden).flatMap((lane) => lane.events).sort((a, b) => a.step - b.step
    || (order.get(laneOf(a.kind)) ?? 0) - (order.get(laneOf(b.kind)) ?? 0));
}

/** Events whose marks stand at a step. @param {Lane[]} lanes @param {number} step @param {(sorted: ArrayLike<number>, value: number) => number} find */
export function eventsAt(lanes, step, find) {
  return lanes.flatMap((lane) => {
    const found = [];
    for (let index = find(lane.steps, step); index < lane.steps.length && lane.steps[index] === step; index++) found.push(eventAt(lane, index));
    return found;
  });
}

// ---- When there is nothing to draw

const WRAP_LINE = 'monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/first")';

/** @param {string} logdir @param {boolean} scanning */
export function emptyState(logdir, scanning) {
  const folder = element("code", {}, logdir || "the logdir");
  if (scanning) return notice("Looking for runs …", element("p", {}, "Reading ", folder, "."));
  return notice(
    "No run recorded here yet",
    element("p", {}, "No tbnum log was found below ", folder, ". The folder is looked at again every few seconds."),
    element("p", {}, "Record one with one line in the training script, after optimizer and scaler are made:"),
    codeLine(`import tbnum\n${WRAP_LINE}`),
    element("p", "quiet", "and start TensorBoard with the folder above it, here runs, as --logdir."),
  );
}

/** @param {string} title @param {string} text */
export function problemState(title, text) {
  return alerting(notice(title, element("p", {}, text)));
}

/** @param {string} title @param {...Node} content */
function notice(title, ...content) {
  return element("div", "notice", element("h2", {}, title), ...content);
}

/** @param {HTMLElement} box */
function alerting(box) {
  box.setAttribute("role", "alert");
  return box;
}

/** @param {string} code */
function codeLine(code) {
  const text = element("pre", {}, code);
  return element("div", "code-line", text, copyButton("Copy", "", () => code));
}

/** @param {string} label @param {() => void} changed */
function searchField(label, changed) {
  return element("input", { class: "search", type: "search", placeholder: label, "aria-label": label, spellcheck: "false", oninput: changed });
}
