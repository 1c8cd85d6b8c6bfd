/** The legend of marks: a chip for each kind and cause, which turns its marks on and off. */

import { toggleMarks } from "./actions.ts";
import { element } from "./elements.ts";
import { formatCount, words } from "./format.ts";
import { causeId, causesOf, icon, severitiesOf, severityId } from "./marks.ts";

import type { Lane } from "./marks.ts";
import type { PanelStore } from "./state.ts";

/** Chips that turn marks on and off, by kind and by cause. */
export class Legend {
  element = element("div", { class: "legend", role: "group", "aria-label": "Kinds of marks" });
  drawn = "";
  /** What there is, counted once: drawings ask again and again. */
  counted: { lanes: Lane[] | null; text: string } = { lanes: null, text: "" };

  constructor(readonly store: PanelStore) {
    store.watch(["loaded", "hidden"], () => this.#show());
  }

  #show() {
    const { loaded, hidden } = this.store.state;
    if (!loaded) return;
    const { lanes } = loaded;
    if (lanes !== this.counted.lanes)
      this.counted = { lanes,
        text: JSON.stringify([severitiesOf(lanes),
          lanes.map((lane) => [lane.kind.id, lane.steps.length, causesOf(lane)])]) };
    const drawn = JSON.stringify([this.counted.text, ...hidden]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const focused =
      ((this.element.contains(document.activeElement) ? document.activeElement : null) as HTMLElement | null)?.dataset
        .lane;
    const chip = (id: string, what: string, count: number, name: (string | Node)[], off: boolean) =>
      element(
        "button",
        { class: "chip", type: "button", "data-lane": id, "aria-pressed": String(!hidden.has(id)), disabled: off,
          title: `${hidden.has(id) ? "Show" : "Hide"} ${what}`, onclick: () => toggleMarks(this.store, id) },
        ...name,
        element("span", "chip-count", formatCount(count)),
      );
    const severities = severitiesOf(lanes);
    const bySeverity = severities.length < 2 ? []
      : severities.map(([severity, count]) =>
        chip(severityId(severity), `events of the severity ${severity}`, count, [
          element("span", `severity-dot severity-${severity}`),
          severity,
        ], false)
      );
    this.element.replaceChildren(...bySeverity, ...lanes.flatMap((lane) => {
      const { kind, steps } = lane;
      return [
        chip(kind.id, kind.plural, steps.length, [icon(kind), kind.label], false),
        ...causesOf(lane).map(([cause, count]) =>
          chip(causeId(lane, cause), `${kind.plural} of the cause ${words(cause)}`, count, [words(cause)],
            hidden.has(kind.id))
        ),
      ];
    }));
    if (focused) this.element.querySelector<HTMLElement>(`[data-lane="${focused}"]`)?.focus();
  }
}
