/** The list of events beside the charts: those that the legend lets through, filtered by words. */

import { element } from "./elements.ts";
import { eventTitle, scaleChange } from "./events.ts";
import { formatCount, typeset, words } from "./format.ts";
import { LANES, icon, laneOf } from "./marks.ts";
import { RowList, searchField } from "./rowlist.ts";

import type { TbnumEvent } from "./answers.ts";
import type { LaneKind } from "./marks.ts";

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
  events: TbnumEvent[] = [];
  shown: TbnumEvent[] = [];
  selected: TbnumEvent | null = null;
  total: number | null = null;

  constructor(choose: (event: TbnumEvent) => void, filtered: () => void) {
    this.search = searchField("Filter events", () => {
      this.#filter();
      filtered();
    });
    this.list = new RowList({ label: "Events", rowHeight: 56, key: (index) => this.shown[index],
      draw: (index, row) => drawEvent(this.shown[index], row), choose: (index) => choose(this.shown[index]) });
    this.element = element(
      "section",
      { class: "events", "aria-label": "Events" },
      element("header", "events-head", this.title, this.search),
      this.nothing,
      this.list.element,
    );
  }

  /** @param events those that the legend lets through, in order of step @param total null: not told yet */
  show(events: TbnumEvent[], total: number | null, selected: TbnumEvent | null) {
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
    this.nothing.textContent = this.total === null ? "Being worked out …"
      : this.total ? "No event matches the filter." : this.known ? NOTHING_SO_FAR : NOTHING_KNOWN;
    this.list.element.hidden = this.shown.length === 0;
    this.list.show(this.shown.length, this.selected ? this.shown.indexOf(this.selected) : -1);
  }
}

function matches(event: TbnumEvent, parts: string[]) {
  const text = `${words(event.kind)} ${words(event.cause)} ${event.message} ${typeset(event.message)} ${event.step} ${
    event.optimizer ?? ""
  }`.toLowerCase();
  return parts.every((part) => text.includes(part));
}

function drawEvent(event: TbnumEvent, row: HTMLElement) {
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
      ...causeChip(event.cause),
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
