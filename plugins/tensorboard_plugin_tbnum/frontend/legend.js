/** The legend of marks: a chip for each kind and cause, which turns its marks on and off. */

import { element } from "./elements.js";
import { formatCount, words } from "./format.js";
import { causeId, causesOf, icon } from "./marks.js";

/** @import { Lane } from "./types.js" */

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
