/**
 * The events beside the charts: the legend that filters them, their list, the card of the chosen one, and the way to
 * the next.
 */

import { EventCard } from "./eventcard.ts";
import { EventList } from "./eventlist.ts";
import { listedEvents } from "./events.ts";
import { Legend } from "./legend.ts";
import { laneOf } from "./marks.ts";

import type { TbnumEvent } from "./answers.ts";
import type { Loaded } from "./rundata.ts";

/** What the events beside the charts tell. */
export type SelectionCallbacks = {
  choose: (event: TbnumEvent | null, zoomToIt: boolean) => void;
  go: (by: 1 | -1) => void;
  filtered: () => void;
  link: () => string;
  text: () => string;
  openTensor: (name: string) => void;
};

export class Selection {
  callbacks: SelectionCallbacks;
  event: TbnumEvent | null = null;
  /** Kinds and causes of marks that the legend turned off. */
  hidden: Set<string> = new Set();
  legend = new Legend((id) => this.#toggle(id));
  list: EventList;
  card: EventCard;
  /** Those that the legend lets through, and what that followed from. */
  listed: TbnumEvent[] = [];
  listedFrom: unknown[] = [];

  constructor(callbacks: SelectionCallbacks) {
    this.callbacks = callbacks;
    this.list = new EventList((event) => callbacks.choose(event, true), () => this.#showCard());
    this.card = new EventCard({ close: () => callbacks.choose(null, false), go: callbacks.go, link: callbacks.link,
      text: callbacks.text, openTensor: callbacks.openTensor });
  }

  /** @param event its kind and cause are shown from now on */
  choose(event: TbnumEvent | null) {
    this.event = event;
    if (event) {
      for (const id of [laneOf(event.kind), `${laneOf(event.kind)}/${event.cause ?? "unknown"}`])
        this.hidden.delete(id);
    }
  }

  #toggle(id: string) {
    if (!this.hidden.delete(id)) this.hidden.add(id);
    this.callbacks.filtered();
  }

  /** Before the charts are drawn: what may be in them. */
  showLegend({ lanes }: Loaded) {
    this.legend.show(lanes, this.hidden);
  }

  show({ lanes, eventsAnswer, info }: Loaded) {
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
   * The next or previous event in the list; where none of it is open, from the cursor, or into the view from its start
   * (back: its end).
   */
  neighbour(by: 1 | -1, [from, to]: [number, number], cursor: number | null) {
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
