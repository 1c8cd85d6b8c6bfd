/** The events beside the charts: the legend that filters them, their list, the card of the chosen one, and the way to the next. */

import { EventCard } from "./eventcard.js";
import { EventList } from "./eventlist.js";
import { listedEvents } from "./events.js";
import { Legend } from "./legend.js";
import { laneOf } from "./marks.js";

/** @import { Loaded, SelectionCallbacks, TbnumEvent } from "./types.js" */

export class Selection {
  /** @param {SelectionCallbacks} callbacks */
  constructor(callbacks) {
    this.callbacks = callbacks;
    /** @type {TbnumEvent | null} */
    this.event = null;
    /** Kinds and causes of marks that the legend turned off. @type {Set<string>} */
    this.hidden = new Set();
    this.legend = new Legend((id) => this.#toggle(id));
    this.list = new EventList((event) => callbacks.choose(event, true), () => this.#showCard());
    this.card = new EventCard({ close: () => callbacks.choose(null, false), go: callbacks.go, link: callbacks.link, text: callbacks.text, openTensor: callbacks.openTensor });
    /** Those that the legend lets through, and what that followed from. @type {TbnumEvent[]} */
    this.listed = [];
    /** @type {unknown[]} */
    this.listedFrom = [];
  }

  /** @param {TbnumEvent | null} event its kind and cause are shown from now on */
  choose(event) {
    this.event = event;
    if (event) for (const id of [laneOf(event.kind), `${laneOf(event.kind)}/${event.cause ?? "unknown"}`]) this.hidden.delete(id);
  }

  /** @param {string} id */
  #toggle(id) {
    if (!this.hidden.delete(id)) this.hidden.add(id);
    this.callbacks.filtered();
  }

  /** Before the charts are drawn: what may be in them. @param {Loaded} loaded */
  showLegend({ lanes }) {
    this.legend.show(lanes, this.hidden);
  }

  /** @param {Loaded} loaded */
  show({ lanes, eventsAnswer, info }) {
    const listedFrom = [lanes, ...this.hidden];
    if (listedFrom.length !== this.listedFrom.length || listedFrom.some((part, at) => part !== this.listedFrom[at])) {
      this.listedFrom = listedFrom;
      this.listed = listedEvents(lanes, this.hidden);
    }
    const total = lanes.reduce((sum, lane) => sum + lane.events.length, 0);
    this.list.known = info.columns.includes("skipped");
    this.list.show(this.listed, eventsAnswer ? total : null, this.event);
    this.#showCard();
  }

  /** Those of the list that keys go through: of the open event's kind, or all. */
  get #reachable() {
    const { event, list: { shown } } = this;
    return event ? shown.filter(({ kind }) => laneOf(kind) === laneOf(event.kind)) : shown;
  }

  /**
   * The next or previous event in the list; where none of it is open, from the cursor, or into the view from its start (back: its end).
   * @param {1 | -1} by @param {[number, number]} view @param {number | null} cursor
   */
  neighbour(by, [from, to], cursor) {
    const events = this.#reachable;
    const open = this.event ? events.indexOf(this.event) : -1;
    const at = this.event?.step ?? cursor;
    if (open >= 0) return events[open + by];
    if (by > 0) return events.find(({ step }) => (at === null ? step >= from : step > at));
    return [...events].reverse().find(({ step }) => (at === null ? step <= to : step < at));
  }

  /** The card of the open event, and its place among those that keys go through. */
  #showCard() {
    const events = this.#reachable;
    this.card.show(this.event, { index: this.event ? events.indexOf(this.event) : -1, count: events.length });
  }
}
