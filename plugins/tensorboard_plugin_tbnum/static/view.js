/**
 * What stands around the charts: the list of runs, the list of events, the card of a chosen event, the card at the
 * cursor, and what is said when there is nothing to draw. Every text from outside is set as text, never as markup.
 */

import { revived } from "./api.js";
import { element, eventAt } from "./charts.js";
import {
  counted, formatCompact, formatCount, formatElapsed, formatNumber, formatScale, formatScaleShort, formatShare, statusOf, words,
} from "./format.js";
import { icon, LANES, laneOf } from "./marks.js";

/**
 * @typedef {import("./api.js").RunRow} RunRow
 * @typedef {import("./api.js").RunTable} RunTable
 * @typedef {import("./api.js").TbnumEvent} TbnumEvent
 * @typedef {import("./marks.js").Lane} Lane
 */

/** A list of which only the rows in sight exist, however long it is; a listbox by keyboard and for screen readers. */
export class RowList {
  /**
   * @param {{label: string, rowHeight: number, key: (index: number) => unknown, draw: (index: number, row: HTMLElement) => void, choose: (index: number) => void}} options
   *   `key`: a row whose key is the same as before is left as it is, so that nothing changes under a pointer
   */
  constructor({ label, rowHeight, key, draw, choose }) {
    this.key = key;
    this.rowHeight = rowHeight;
    this.draw = draw;
    this.choose = choose;
    this.count = 0;
    this.chosen = -1;
    this.active = -1;
    this.prefix = `row-${label.toLowerCase().replaceAll(" ", "-")}`;
    this.element = element("div", "rows");
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "listbox");
    this.element.setAttribute("aria-label", label);
    this.inner = element("div", "rows-inner");
    this.inner.setAttribute("role", "presentation");
    this.element.append(this.inner);
    this.element.addEventListener("scroll", () => this.#render(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.#key(event));
    this.element.addEventListener("click", (event) => {
      const row = /** @type {HTMLElement} */ (event.target).closest("[data-index]");
      if (row instanceof HTMLElement) this.#pick(Number(row.dataset.index));
    });
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
    }
  }
}

/** The runs, with a field to search them where they are many. */
export class RunList {
  /** @param {(run: string) => void} choose */
  constructor(choose) {
    this.element = element("nav", "runs");
    this.element.setAttribute("aria-label", "Runs");
    this.title = element("h2", "", "Runs");
    this.search = searchField("Find a run");
    this.search.addEventListener("input", () => this.#filter());
    this.errors = element("div", "run-errors");
    this.list = new RowList({
      label: "Runs", rowHeight: 52,
      key: (index) => `${JSON.stringify(this.shown[index])} ${statusOf(this.shown[index], Date.now() / 1000).text}`,
      draw: (index, row) => drawRun(this.shown[index], row),
      choose: (index) => choose(this.shown[index].run),
    });
    this.element.append(this.title, this.search, this.list.element, this.errors);
    /** @type {RunRow[]} */
    this.runs = [];
    /** @type {RunRow[]} */
    this.shown = [];
    /** @type {string | null} */
    this.chosen = null;
  }

  /** @param {RunTable} table @param {string | null} chosen */
  show(table, chosen) {
    this.runs = table.runs;
    this.chosen = chosen;
    this.title.textContent = table.runs.length > 1 ? `Runs (${formatCount(table.runs.length)})` : "Runs";
    this.search.hidden = table.runs.length < 8;
    this.errors.replaceChildren(...table.errors.slice(0, 20).map(({ run, reason }) => {
      const problem = element("p", "problem");
      problem.append(element("strong", "", run), ` ${reason}`);
      return problem;
    }));
    this.#filter();
  }

  #filter() {
    const parts = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.search.hidden ? this.runs : this.runs.filter((row) => parts.every((part) => row.run.toLowerCase().includes(part)));
    this.list.show(this.shown.length, this.shown.findIndex((row) => row.run === this.chosen));
  }
}

/** How a run is called where people read it: `.` is the logdir itself. @param {string} run */
export function runTitle(run) {
  return run === "." ? "(logdir)" : run;
}

/** @param {RunRow} run @param {HTMLElement} row */
function drawRun(run, row) {
  const { state, text } = statusOf(run, Date.now() / 1000);
  const name = element("span", "run-name");
  const dot = element("span", `dot ${state}`);
  dot.title = text;
  name.append(dot, element("span", "run-text", runTitle(run.run)));
  row.title = `${runTitle(run.run)}: ${text}`;
  const facts = element("span", "run-facts");
  if (run.steps == null) facts.textContent = "reading …";
  else {
    facts.append(element("span", "", `${formatCompact(run.steps)} ${run.steps === 1 ? "step" : "steps"}`), element("span", "", counted(run.skipped_steps ?? 0, "skip")));
    if (run.last_loss_scale != null) facts.append(element("span", "", `scale ${formatScaleShort(run.last_loss_scale)}`));
  }
  row.append(name, facts);
}

/** The events of a run, filtered by the legend's kinds and by words. */
export class EventList {
  /** @param {(event: TbnumEvent) => void} choose */
  constructor(choose) {
    this.element = element("section", "events");
    this.element.setAttribute("aria-label", "Events");
    const head = element("header", "events-head");
    this.title = element("h2", "", "Events");
    this.search = searchField("Filter events");
    this.search.addEventListener("input", () => this.#filter());
    head.append(this.title, this.search);
    this.nothing = element("p", "nothing");
    this.list = new RowList({
      label: "Events", rowHeight: 56,
      key: (index) => this.shown[index],
      draw: (index, row) => drawEvent(this.shown[index], row),
      choose: (index) => choose(this.shown[index]),
    });
    this.element.append(head, this.nothing, this.list.element);
    /** @type {TbnumEvent[]} */
    this.events = [];
    /** @type {TbnumEvent[]} */
    this.shown = [];
    /** @type {TbnumEvent | null} */
    this.selected = null;
    this.total = 0;
  }

  /** @param {TbnumEvent[]} events those that the legend lets through, in order of step @param {number} total @param {TbnumEvent | null} selected */
  show(events, total, selected) {
    this.events = events;
    this.total = total;
    this.selected = selected;
    this.#filter();
  }

  #filter() {
    const parts = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = parts.length ? this.events.filter((event) => matches(event, parts)) : this.events;
    this.title.textContent = this.shown.length === this.total ? `Events (${formatCount(this.total)})` : `Events (${formatCount(this.shown.length)} of ${formatCount(this.total)})`;
    this.nothing.hidden = this.shown.length > 0;
    this.nothing.textContent = this.total ? "No event matches the filter." : "No skip, no change of the scale, nothing to report so far.";
    this.list.element.hidden = this.shown.length === 0;
    this.list.show(this.shown.length, this.selected ? this.shown.indexOf(this.selected) : -1);
  }
}

/** @param {TbnumEvent} event @param {string[]} parts */
function matches(event, parts) {
  const text = `${words(event.kind)} ${words(event.cause)} ${event.message} ${event.step} ${event.optimizer ?? ""}`.toLowerCase();
  return parts.every((part) => text.includes(part));
}

/** @param {string} kind */
function laneKind(kind) {
  return /** @type {import("./marks.js").LaneKind} */ (LANES.find((lane) => lane.id === laneOf(kind)));
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
  const line = element("span", "event-line");
  line.append(icon(laneKind(event.kind)), element("span", "event-kind", eventTitle(event.kind)));
  if (event.cause) line.append(element("span", `cause cause-${event.cause}`, words(event.cause)));
  line.append(element("span", "event-step", `step ${formatCount(event.step)}`));
  const message = element("span", "event-message", event.message || scaleChange(event.data) || "");
  row.title = event.message;
  row.append(line, message);
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
  nonfinite_names: ["Non-finite in", (value) => (Array.isArray(value) ? value.join("\n") : String(value))],
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

/** @param {[string, string][]} rows */
function factTable(rows) {
  const list = element("dl", "facts");
  for (const [name, value] of rows) {
    const text = element("dd", "", value);
    list.append(element("dt", "", name), text);
  }
  return list;
}

/** What is known of the chosen event. */
export class EventCard {
  /** @param {{close: () => void, go: (by: 1 | -1) => void}} callbacks */
  constructor({ close, go }) {
    this.element = element("article", "card");
    this.element.hidden = true;
    this.element.tabIndex = -1;
    this.element.setAttribute("aria-label", "Chosen event");
    this.close = close;
    this.go = go;
    /** @type {TbnumEvent | null} */
    this.event = null;
    this.values = element("div");
  }

  /** @param {TbnumEvent | null} event @param {{index: number, count: number}} place among its kind */
  show(event, { index, count }) {
    this.element.hidden = event === null;
    if (event === null || (event === this.event && this.element.dataset.place === `${index}/${count}`)) {
      this.event = event;
      return;
    }
    this.event = event;
    this.element.dataset.place = `${index}/${count}`;
    this.element.className = `card severity-${event.severity}`;
    const head = element("header", "card-head");
    const title = element("h2", "", eventTitle(event.kind));
    const buttons = element("div", "card-buttons");
    buttons.append(
      iconButton("‹", `Previous ${eventTitle(event.kind).toLowerCase()} (P)`, () => this.go(-1), index <= 0),
      element("span", "card-place", `${formatCount(index + 1)} / ${formatCount(count)}`),
      iconButton("›", `Next ${eventTitle(event.kind).toLowerCase()} (N)`, () => this.go(1), index >= count - 1),
      iconButton("✕", "Close (Esc)", () => this.close()),
    );
    head.append(icon(laneKind(event.kind)), title, buttons);
    const where = element("p", "card-where", `Step ${formatCount(event.step)}`);
    if (event.elapsed != null) where.append(` · ${formatElapsed(event.elapsed)} after the start`);
    if (event.optimizer && event.optimizer !== "optimizer") where.append(` · ${event.optimizer}`);
    const parts = [head, where];
    if (event.cause) {
      const cause = element("p", "card-cause");
      cause.append(element("span", `cause cause-${event.cause}`, words(event.cause)));
      parts.push(cause);
    }
    if (event.message) parts.push(element("p", "card-message", event.message));
    if (event.remedy) {
      const remedy = element("div", "card-remedy");
      remedy.append(element("h3", "", "What to do"), element("p", "", event.remedy));
      parts.push(remedy);
    }
    const change = scaleChange(event.data);
    /** @type {[string, string][]} */
    const rows = change ? [["Loss scale", change]] : [];
    const told = new Set(change ? ["old_scale", "new_scale", "loss_scale"] : []);
    for (const [name, value] of Object.entries(event.data)) {
      if (told.has(name) || value == null || value === "") continue;
      rows.push(name === "nonfinite_tensors" && event.data.tensors ? ["Non-finite tensors", `${formatNumber(value)} of ${formatNumber(event.data.tensors)}`] : fact(name, value));
      if (name === "nonfinite_tensors") told.add("tensors");
    }
    if (rows.length) parts.push(factTable(rows));
    this.values = element("div", "card-values");
    parts.push(/** @type {any} */ (this.values));
    this.element.replaceChildren(...parts);
    this.element.scrollTop = 0;
  }

  /** Adds what the step's record has beyond the event's facts. @param {TbnumEvent} event @param {import("./api.js").StepValues} step */
  addValues(event, step) {
    if (event !== this.event || step.step !== event.step) return;
    const told = new Set(["step", "wall_time", "skipped", ...Object.keys(event.data)]);
    const rows = Object.entries(step.values).filter(([name, value]) => value != null && !told.has(name)).map(([name, value]) => fact(name, value));
    if (rows.length) this.values.replaceChildren(element("h3", "", "The step's record"), factTable(rows));
  }
}

/** The card that follows the cursor with the exact values of its step. */
export class CursorCard {
  constructor() {
    this.element = element("div", "cursor-card");
    this.element.hidden = true;
    this.element.setAttribute("aria-hidden", "true"); // the charts' aria-valuetext says the same
  }

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param {number} step
   * @param {import("./api.js").StepValues | null} known null while it is being fetched
   * @param {{prefix: string, elapsed: number | null, events: TbnumEvent[], bucket: string | null}} more
   * @returns {string} the same as one line of text
   */
  show(step, known, { prefix, elapsed, events, bucket }) {
    const value = (/** @type {string} */ name) => /** @type {any} */ (known ? known.values[name] ?? null : undefined);
    const own = (/** @type {string} */ name) => value(prefix + name);
    const write = (/** @type {any} */ raw, /** @type {(value: any) => string} */ format) => (raw === undefined ? "…" : format(raw));
    const skipped = value(`${prefix}skipped`) ?? value("skipped");
    const [norm, clipped] = [own("grad_norm"), own("grad_norm_clipped")];
    const coefficient = own("clip_coef");
    const didClip = typeof coefficient === "number" && coefficient < 1;
    /** @type {[string, string][]} */
    const rows = [
      ["Loss", write(value("loss"), formatNumber)],
      ["Loss scale", write(value("loss_scale"), formatScale)],
      ["Gradient norm", write(norm, formatNumber)],
      ["… clipped", write(clipped, formatNumber) + (didClip ? ` (× ${formatNumber(Number(coefficient.toPrecision(3)))})` : "")],
      ["Threshold", write(own("max_norm"), formatNumber)],
      ["Learning rate", write(own("lr"), formatNumber)],
      ["Micro-batches", write(value("micro_batches"), formatNumber)],
      ["Skipped", skipped === undefined ? "…" : skipped ? "yes" : "no"],
    ];
    const head = element("header", "");
    head.append(element("strong", "", `Step ${formatCount(known?.step ?? step)}`), element("span", "", formatElapsed(elapsed)));
    const parts = [head, factTable(rows)];
    for (const event of events.slice(0, 3)) {
      const line = element("p", "cursor-event");
      line.append(icon(laneKind(event.kind)), event.cause ? `${eventTitle(event.kind)}: ${words(event.cause)}` : eventTitle(event.kind));
      parts.push(/** @type {any} */ (line));
    }
    if (bucket) parts.push(/** @type {any} */ (element("p", "cursor-bucket", bucket)));
    this.element.replaceChildren(...parts);
    this.element.classList.toggle("skipped", skipped === true);
    this.element.hidden = false;
    return `Step ${formatCount(step)}, ${rows.map(([name, text]) => `${name} ${text}`).join(", ")}`;
  }

  /** Beside the cursor, within the window. @param {number} x @param {number} y of the window */
  place(x, y) {
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const gap = 18;
    const left = x + gap + width > innerWidth - 8 ? x - gap - width : x + gap;
    const top = Math.max(8, Math.min(innerHeight - height - 8, y - height / 3));
    this.element.style.transform = `translate(${Math.max(8, Math.round(left))}px, ${Math.round(top)}px)`;
  }
}

/** Chips that turn kinds of marks on and off. */
export class Legend {
  /** @param {(id: string) => void} toggle */
  constructor(toggle) {
    this.element = element("div", "legend");
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", "Kinds of marks");
    this.toggle = toggle;
    this.drawn = "";
  }

  /** @param {Lane[]} lanes @param {Set<string>} hidden */
  show(lanes, hidden) {
    const drawn = JSON.stringify([lanes.map((lane) => [lane.kind.id, lane.steps.length]), [...hidden]]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused = /** @type {HTMLElement | null} */ (this.element.contains(document.activeElement) ? document.activeElement : null)?.dataset.lane;
    this.element.replaceChildren(...lanes.map(({ kind, steps }) => {
      const chip = element("button", "chip");
      chip.type = "button";
      chip.dataset.lane = kind.id;
      const count = element("span", "chip-count", formatCount(steps.length));
      chip.setAttribute("aria-pressed", String(!hidden.has(kind.id)));
      chip.append(icon(kind), kind.label, count);
      chip.title = hidden.has(kind.id) ? `Show ${kind.plural}` : `Hide ${kind.plural}`;
      chip.addEventListener("click", () => this.toggle(kind.id));
      return chip;
    }));
    if (focused) /** @type {HTMLElement | null} */ (this.element.querySelector(`[data-lane="${focused}"]`))?.focus();
  }
}

/** What a run's skips were, in a line: "7 skips (0.01 %): 5 scale warmup, 2 bad batch". @param {TbnumEvent[]} events @param {number} steps */
export function skipSummary(events, steps) {
  const skips = events.filter((event) => event.kind === "skip");
  if (!skips.length) return "no skips";
  /** @type {Map<string, number>} */
  const causes = new Map();
  for (const { cause } of skips) causes.set(cause ?? "unknown", (causes.get(cause ?? "unknown") ?? 0) + 1);
  const parts = [...causes].sort((a, b) => b[1] - a[1]).map(([cause, count]) => `${formatCount(count)} ${words(cause)}`);
  return `${counted(skips.length, "skip")} (${formatShare(skips.length, steps)}): ${parts.join(", ")}`;
}

/** The events of lanes that are not hidden, in order of step. @param {Lane[]} lanes @param {Set<string>} hidden */
export function listedEvents(lanes, hidden) {
  const shown = lanes.filter((lane) => !hidden.has(lane.kind.id));
  const order = new Map(LANES.map((lane, index) => [lane.id, index]));
  return shown.flatMap((lane) => lane.events).sort((a, b) => a.step - b.step
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
  const box = notice(scanning ? "Looking for runs …" : "No run recorded here yet");
  const where = element("p");
  where.append(scanning ? "Reading " : "No tbnum log was found below ", element("code", "", logdir || "the logdir"), scanning ? "." : ". The folder is looked at again every few seconds.");
  box.append(where);
  if (!scanning) {
    box.append(element("p", "", "Record one with one line in the training script, after optimizer and scaler are made:"));
    box.append(codeLine(`import tbnum\n${WRAP_LINE}`));
    box.append(element("p", "quiet", "and start TensorBoard with the folder above it, here runs, as --logdir."));
  }
  return box;
}

/** @param {string} reason */
export function notBuilt(reason) {
  const box = notice("The panel's front end is not built");
  box.setAttribute("role", "alert");
  box.append(element("p", "", "The chart library uPlot, which the build puts beside the panel, is missing. In the checkout of tbnum run one of:"));
  box.append(codeLine("make frontend"), codeLine("pip install ."));
  box.append(element("p", "quiet", "Both need network access to the npm registry, once. Then reload this page."), element("p", "quiet", reason));
  return box;
}

/** @param {string} title @param {string} text */
export function problemState(title, text) {
  const box = notice(title);
  box.setAttribute("role", "alert");
  box.append(element("p", "", text));
  return box;
}

/** @param {string} title */
function notice(title) {
  const box = element("div", "notice");
  box.append(element("h2", "", title));
  return box;
}

/** @param {string} code */
function codeLine(code) {
  const line = element("div", "code-line");
  const copy = element("button", "small", "Copy");
  copy.type = "button";
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = "Copied";
    } catch {
      getSelection()?.selectAllChildren(/** @type {Node} */ (line.firstChild));
      copy.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { copy.textContent = "Copy"; }, 2000);
  });
  line.append(element("pre", "", code), copy);
  return line;
}

/** @param {string} label */
function searchField(label) {
  const field = element("input", "search");
  field.type = "search";
  field.placeholder = label;
  field.setAttribute("aria-label", label);
  field.spellcheck = false;
  return field;
}

/** @param {string} text @param {string} label @param {() => void} press @param {boolean} [disabled] */
function iconButton(text, label, press, disabled = false) {
  const button = element("button", "icon-button", text);
  button.type = "button";
  button.title = label;
  button.setAttribute("aria-label", label);
  button.disabled = disabled;
  button.addEventListener("click", press);
  return button;
}
