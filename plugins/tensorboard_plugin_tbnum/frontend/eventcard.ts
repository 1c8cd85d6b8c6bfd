/** The card of the chosen event: cause, sentence, evidence, remedy, the tensors at fault, and its step's record. */

import { goOn, openTensor, select, showWhatLed, textOfEvent } from "./actions.ts";
import { revived } from "./api.ts";
import { button, copyButton, element, factTable, iconButton, table } from "./elements.ts";
import { causeChip, laneKind } from "./eventlist.ts";
import { eventFacts, eventTitle, fact, sentinelText, tensorsAtFault } from "./events.ts";
import { formatCount, formatElapsed, formatNumber, typeset } from "./format.ts";
import { addressOf } from "./host.ts";
import { icon } from "./marks.ts";
import { placeOf } from "./state.ts";

import type { StepValues, TbnumEvent } from "./answers.ts";
import type { PanelStore } from "./state.ts";

/** What is known of the chosen event. */
export class EventCard {
  element = element("article", { class: "card", hidden: true, tabindex: -1, "aria-label": "Chosen event" });
  event: TbnumEvent | null = null;
  values = element("div");

  constructor(readonly store: PanelStore) {}

  /** @param place among its kind */
  show(event: TbnumEvent | null, { index, count }: { index: number; count: number }) {
    this.element.hidden = event === null;
    const drawn = `${index}/${count}/${this.#hasTensors}`;
    if (event === null || (event === this.event && this.element.dataset.place === drawn)) {
      if (event === null) this.values = element("div");
      this.event = event;
      return;
    }
    this.event = event;
    this.element.dataset.place = drawn;
    this.element.className = `card severity-${event.severity}`;
    const { store } = this;
    const parts: Node[] = [
      ...this.#head(event, index, count),
      ...causeChip(event.cause).map((chip) => element("p", "card-cause", chip)),
    ];
    if (event.message) parts.push(element("p", "card-message", typeset(event.message)));
    const seen = sentinelText(event.data.sentinel);
    if (seen) parts.push(element("p", "card-sentinel", seen));
    if (event.remedy)
      parts.push(
        element("div", "card-remedy", element("h3", {}, "What to do"), element("p", {}, typeset(event.remedy))),
      );
    const rows = eventFacts(event);
    if (rows.length) parts.push(factTable(rows));
    parts.push(...this.#tensors(event));
    if (this.values.dataset.step !== String(event.step)) this.values = element("div", "card-values");
    const led = button("What led here", "The steps before it: what left its usual first (W)",
      () => showWhatLed(store, event.step));
    const copies = element(
      "div",
      "card-copies",
      led,
      copyButton("Copy link", "The address of this event in this view", () => addressOf(placeOf(store.state))),
      copyButton("Copy as text", "What is known of this step, for a bug report", () => textOfEvent(store)),
    );
    this.element.replaceChildren(...parts, this.values, copies);
    this.element.scrollTop = 0;
  }

  /** What it is, its place among its kind, and where it was. */
  #head({ kind, step, elapsed, optimizer }: TbnumEvent, index: number, count: number) {
    const { store } = this;
    const title = eventTitle(kind);
    const where = [`Step ${formatCount(step)}`, elapsed == null ? "" : `${formatElapsed(elapsed)} after the start`,
      optimizer === "optimizer" ? "" : optimizer];
    const buttons = element("div", "card-buttons",
      iconButton("‹", `Previous ${title.toLowerCase()} (P)`, () => goOn(store, -1),
        { disabled: index === 0 || !count }),
      element("span", "card-place", `${index < 0 ? "–" : formatCount(index + 1)} / ${formatCount(count)}`),
      iconButton("›", `Next ${title.toLowerCase()} (N)`, () => goOn(store, 1), { disabled: index >= count - 1 }),
      iconButton("✕", "Close (Esc)", () => select(store, null)));
    return [element("header", "card-head", icon(laneKind(kind)), element("h2", {}, title), buttons),
      element("p", "card-where", where.filter(Boolean).join(" · "))];
  }

  /** Whether the log has tensors, so that a name leads somewhere. */
  get #hasTensors() {
    return (this.store.state.tensors.answer?.names.length ?? 0) > 0;
  }

  /** The tensors at fault, and the finite ones beside them. */
  #tensors(event: TbnumEvent): Node[] {
    const name = (text: string) => (this.#hasTensors
      ? element("button", { class: "link", type: "button", title: `Open ${text}`,
        onclick: () => openTensor(this.store, text, this.event?.step ?? null) }, text) : text);
    const parts = [];
    const faults = tensorsAtFault(event);
    const number = event.data.nonfinite_tensors;
    const more = typeof number === "number" && number > faults.length ? `, ${faults.length} of ${formatCount(number)}`
      : "";
    if (faults.length && faults[0].nan === null)
      parts.push(table("small-table", ["Tensor"], faults.map((fault) => [name(fault.name)]), `Not finite${more}`));
    else if (faults.length) {
      parts.push(
        table("small-table", ["Tensor", "NaN", "∞"],
          faults.map((fault) => [name(fault.name), formatCount(fault.nan), formatCount(fault.inf)]),
          `Not finite${more}, in order of the backward pass`),
      );
    }
    const beside = event.data.evidence?.finite_neighbours;
    if (Array.isArray(beside) && beside.length) {
      parts.push(table(
        "small-table",
        ["Tensor", "Norm", "Usually"],
        beside.map((
          one,
        ) => [name(String(one.name)), ...[one.grad_norm, one.usual].map((value) =>
          formatNumber(typeof value === "number" ? Number(value.toPrecision(4)) : revived(value))
        )]),
        "Finite, computed just before",
      ));
    }
    return parts;
  }

  /** Adds what the step's record has beyond the event's facts. */
  addValues(event: TbnumEvent, step: StepValues) {
    if (event !== this.event || step.step !== event.step) return;
    const shown = new Set(["step", "wall_time", "skipped", ...Object.keys(event.data)]);
    const rows = Object.entries(step.values).filter(([name, value]) => value != null && !shown.has(name)).map((
      [name, value],
    ) => fact(name, value));
    this.values.dataset.step = String(step.step);
    if (rows.length) this.values.replaceChildren(element("h3", {}, "The step's record"), factTable(rows));
  }
}
