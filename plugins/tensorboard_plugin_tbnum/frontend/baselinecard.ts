/** Beside the events: how the runs in the charts differ from what they are held against. */

import { goToStep } from "./actions.ts";
import { element, iconButton, table } from "./elements.ts";
import { counted, formatCount, sentenceCase } from "./format.ts";
import { lineName } from "./overlaylegend.ts";
import { shortNames } from "./runlines.ts";

import type { Judged } from "./judged.ts";
import type { OverlayData } from "./overlaydata.ts";
import type { PanelStore } from "./state.ts";

const MOST_RUNS = 3;

export class BaselineCard {
  element = element("section", { class: "baseline-card", hidden: true, "aria-label": "Difference from the baseline" });
  drawn = "";

  constructor(readonly store: PanelStore, readonly data: OverlayData, readonly judged: Judged) {}

  show() {
    const { data } = this;
    const { held } = data;
    const runs = data.active && held.length ? data.singles.slice(0, MOST_RUNS) : [];
    this.element.hidden = !runs.length;
    if (!runs.length) return;
    if (!data.scene?.rows.some(({ run }) => run === held[0])) return this.#draw(held, [element("p", "apart",
      "This run is not there: it may have been moved or deleted. Nothing is held against it.")]);
    const parts = runs.map((run) => ({ run, apart: this.judged.apartOf(run), band: this.judged.bandOf(run) }));
    const drawn = JSON.stringify([held, parts, data.singles.length]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const left = data.singles.length - runs.length;
    this.#draw(held, [...runs.flatMap((run) => this.#part(run, held)),
      ...(left > 0 ? [element("p", "quiet", `${counted(left, "more run")} in the charts`)] : [])]);
  }

  #draw(held: string[], content: HTMLElement[]) {
    const close = iconButton("✕", "Let go of the baseline", () => this.store.set({ baseline: null, against: "off" }));
    const head = element("header", "card-head", element("h2", {}, `Held against ${lineName(held)}`), close);
    this.element.replaceChildren(head, ...content);
  }

  #part(run: string, held: string[]) {
    const apart = this.judged.apartOf(run);
    const [first, second] = shortNames([held[0], run]);
    if (!apart) return [element("p", "quiet", `Comparing ${lineName([run])} …`)];
    const settings = held.length > 1 ? apart.settings.filter(([name]) => name !== "seed") : apart.settings;
    const band = held.length > 1 ? this.#bandText(run) : null;
    return [
      element("p", "apart", ...(band ?? [sentenceCase(apart.sentence), ...this.#linkTo(apart.first_step, "Go there")])),
      ...(settings.length ? [table("small-table differences", ["Setting", first, second], settings)]
        : apart.steps ? [element("p", "quiet", "Their settings are the same.")] : []),
    ];
  }

  /** Where a run leaves the band of the seeds, column by column. */
  #bandText(run: string): (string | Node)[] {
    const answer = this.judged.bandOf(run);
    if (!answer) return ["Comparing …"];
    const left = Object.entries(answer.columns).flatMap(([column, { leaves }]) =>
      leaves === null ? [] : [{ column: column.replaceAll("_", " "), leaves }]
    );
    if (answer.seeds.length < 2) return ["A band wants two seeds at least beside the run."];
    if (!left.length) return [`${lineName([run])} stays within the band of ${counted(answer.seeds.length, "seed")}.`];
    return [`${lineName([run])} leaves the band of ${counted(answer.seeds.length, "seed")}: `,
      ...left.flatMap(({ column, leaves }, at) => [`${at ? ", " : ""}${column}`, ...this.#linkTo(leaves)])];
  }

  #linkTo(step: number | null, text = `from step ${formatCount(step)}`) {
    if (step === null) return [];
    return [" ", element("button", { class: "link", type: "button", onclick: () => goToStep(this.store, step) }, text)];
  }
}
