/** The list of events beside the charts: those that the legend lets through, filtered by words. */

import { fold, select } from "./actions.ts";
import { element, iconButton } from "./elements.ts";
import { backoffAt, eventTitle, listedEvents, listedTotal, scaleChange, withWords } from "./events.ts";
import { formatCount, typeset, words } from "./format.ts";
import { LANES, icon, laneOf } from "./marks.ts";
import { RowList, searchField } from "./rowlist.ts";
import { chosenEvent } from "./state.ts";

import type { TbnumEvent } from "./answers.ts";
import type { Lane, LaneKind } from "./marks.ts";
import type { PanelStore } from "./state.ts";

const NOTHING_SO_FAR = "No skip, no change of the scale, nothing to report so far.";
const NOTHING_KNOWN =
  "Nothing is known of skips: the log has no loss scale. If it is under a tag of its own, start TensorBoard with"
  + " --tbnum_map loss_scale=TAG.";

/** The events of a run, filtered by the legend's kinds and by words. */
export class EventList {
  title = element("h2", {}, "Events");
  search: HTMLInputElement;
  nothing = element("p", "nothing");
  list: RowList;
  element: HTMLElement;
  shown: TbnumEvent[] = [];

  constructor(readonly store: PanelStore) {
    this.search = searchField("Filter events", () => store.set({ find: this.search.value }));
    this.list = new RowList({ label: "Events", rowHeight: 56, key: (index) => this.shown[index],
      draw: (index, row) => drawEvent(this.shown[index], row, this.store.state.loaded?.lanes ?? []),
      choose: (index) => select(store, this.shown[index], true) });
    this.element = element(
      "section",
      { class: "events", "aria-label": "Events" },
      element("header", "events-head", iconButton("»", "Fold the events away", () => fold(store, "events")), this.title,
        this.search),
      this.nothing,
      this.list.element,
    );
  }

  watch() {
    this.store.watch(["loaded", "hidden", "event", "find"], () => this.#show());
  }

  #show() {
    const { state } = this.store;
    const { loaded, hidden } = state;
    if (!loaded) return;
    const { eventsAnswer, lanes, info } = loaded;
    const total = eventsAnswer && listedTotal(lanes);
    const selected = chosenEvent(state);
    const known = info.columns.includes("skipped"); // plain scalars may lack a loss scale
    if (this.search.value !== state.find) this.search.value = state.find; // from an address
    this.shown = withWords(listedEvents(lanes, hidden), state.find);
    const all = this.shown.length === total ? "" : ` of ${formatCount(total)}`;
    this.title.textContent = total === null ? "Events" : `Events (${formatCount(this.shown.length)}${all})`;
    this.nothing.hidden = this.shown.length > 0;
    this.nothing.textContent = total === null ? "Being worked out …"
      : total ? "No event matches the filter." : known ? NOTHING_SO_FAR : NOTHING_KNOWN;
    this.list.element.hidden = this.shown.length === 0;
    this.list.show(this.shown.length, selected ? this.shown.indexOf(selected) : -1);
  }
}

function drawEvent(event: TbnumEvent, row: HTMLElement, lanes: Lane[]) {
  const change = event.kind === "skip" ? backoffAt(lanes, event.step) : null;
  row.classList.add("event-row", `severity-${event.severity}`);
  row.dataset.step = String(event.step);
  row.dataset.kind = event.kind;
  row.title = typeset(event.message);
  row.append(
    element(
      "span",
      "event-line",
      icon(laneKind(event.kind)),
      element("span", "event-kind", eventTitle(event.kind)),
      ...(event.severity === "info" ? [] : [element("span", `severity severity-${event.severity}`, event.severity)]),
      ...causeChip(event.cause),
      ...(change ? [element("span", "event-change", change.replaceAll(/[\d,]+ \((.*?)\)/g, "$1"))] : []),
      element("span", "event-step", `step ${formatCount(event.step)}`),
    ),
    element("span", "event-message", typeset(event.message) || scaleChange(event.data) || ""),
  );
}

export function causeChip(cause: string | null) {
  return cause ? [element("span", `cause cause-${cause}`, words(cause))] : [];
}

export function laneKind(kind: string) {
  return (LANES.find((lane) => lane.id === laneOf(kind)) as LaneKind);
}
