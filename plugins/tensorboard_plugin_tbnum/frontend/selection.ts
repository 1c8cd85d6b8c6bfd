/** The events beside the charts: the legend that filters them, their list, and the card of the chosen one. */

import { reachable } from "./actions.ts";
import { EventCard } from "./eventcard.ts";
import { EventList } from "./eventlist.ts";
import { Legend } from "./legend.ts";
import { chosenEvent } from "./state.ts";

import type { PanelStore } from "./state.ts";

export class Selection {
  legend: Legend;
  list: EventList;
  card: EventCard;

  constructor(readonly store: PanelStore) {
    this.legend = new Legend(store); // before the charts are drawn: it may take room from them
    this.list = new EventList(store);
    this.card = new EventCard(store);
  }

  /** After the charts: what is listed, and the card of the open one. */
  watch() {
    this.list.watch();
    this.store.watch(["loaded", "event", "hidden", "tensors", "known", "find"], () => this.#showCard());
  }

  /** The card of the open event, and its place among those that keys go through. */
  #showCard() {
    const { state } = this.store;
    const event = chosenEvent(state);
    const events = reachable(state);
    this.card.show(event, { index: event ? events.indexOf(event) : -1, count: events.length });
    const values = event && state.known.steps.get(event.step);
    if (values) this.card.addValues(event, values);
  }
}
