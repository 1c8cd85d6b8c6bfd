/** The legend of runs beside each other: their colours and names, and what they are held against. */

import { chooseRun, say } from "./actions.ts";
import { element, iconButton } from "./elements.ts";
import { counted, runTitle } from "./format.ts";
import { DASHES, groupName, linesOf, shortNames, swatch } from "./runlines.ts";

import type { Against } from "./baseline.ts";
import type { Charts } from "./charts.ts";
import type { OverlayData } from "./overlaydata.ts";
import type { PanelStore } from "./state.ts";

/** How a line is called. @param runs that it stands for */
export function lineName(runs: string[]) {
  return runs.length > 1 ? groupName(runs) : runs[0] === undefined ? "a run that is gone" : runTitle(runs[0]);
}

export class OverlayLegend {
  /** what it was drawn from */
  drawn = "";
  /** runs that are asked for and let through */
  others: string[] = [];
  /** For a picture of it. */
  named: { text: string; color: string; dash: number[] }[] = [];
  /** Values as they are, or held against the baseline. */
  againstSelect = element("select", { class: "small", hidden: true,
    "aria-label": "How runs are held against each other",
    onchange: () => this.store.set({ against: this.againstSelect.value as Against }) });
  list = element("ul", { class: "overlay-runs", "aria-label": "Runs in the charts" });
  group: HTMLButtonElement;
  element: HTMLElement;

  /** @param look brings a line out among the others; null: none */
  constructor(readonly store: PanelStore, readonly charts: Charts, readonly data: OverlayData,
    readonly look: (at: number | null) => void) {
    this.group = element("button", { class: "small", type: "button",
      title: "Runs that differ in the seed alone become their mean and its range", onclick: () => this.#regroup() },
      "Group seeds");
    this.element = element("section", { class: "overlay-bar", "aria-label": "Runs beside each other" }, this.list,
      this.againstSelect, this.group);
  }

  /** @param settings of every run there is */
  show(others: string[], settings: Map<string, string | null>) {
    const { data } = this;
    if (!data.scene) return;
    const { current, grouped } = data.scene;
    this.others = others;
    this.element.hidden = !data.active;
    this.group.hidden = linesOf(current, others, (run) => settings.get(run), true).every((runs) => runs.length < 2);
    this.group.setAttribute("aria-pressed", String(grouped));
    this.#showAgainst();
    this.#drawList();
  }

  #regroup() {
    this.store.set({ grouped: !this.store.state.grouped });
    say(this.store, this.charts.summaries[0] ?? "");
  }

  #remove(runs: string[]) {
    this.store.set({ over: this.store.state.over.filter((run) => !runs.includes(run)) });
  }

  #showAgainst() {
    const { baseline, against, run, over } = this.store.state;
    const there = baseline !== null && (baseline === run || over.includes(baseline));
    this.againstSelect.hidden = !there;
    const name = lineName(this.data.held);
    if (!there || this.againstSelect.dataset.of === name) {
      this.againstSelect.value = against;
      return;
    }
    this.againstSelect.dataset.of = name;
    this.againstSelect.replaceChildren(element("option", { value: "off" }, "Values"),
      element("option", { value: "difference" }, `Difference from ${name}`),
      element("option", { value: "ratio" }, `Ratio to ${name}`));
    this.againstSelect.value = against;
  }

  /** Holds a run as what others are held against, or lets go of it. */
  #hold(run: string) {
    const { baseline, against } = this.store.state;
    if (baseline === run) this.store.set({ baseline: null, against: "off" });
    else this.store.set({ baseline: run, against: against === "off" ? "difference" : against });
  }

  #drawList() {
    const { scene, lines } = this.data;
    if (!scene) return;
    const items = [[scene.current], ...lines];
    const { baseline } = this.store.state;
    const key = JSON.stringify([items, baseline, this.data.dark, items.map(([run]) => this.data.colorOf(run)),
      scene.others.length - this.others.length]);
    if (key === this.drawn) return;
    this.drawn = key;
    const names = shortNames(items.map((runs) => lineName(runs)));
    const seen = new Map() as Map<string, number>;
    this.named = [];
    const focused = this.list.contains(document.activeElement) ? (document.activeElement as HTMLElement).dataset.run
      : undefined;
    this.list.replaceChildren(...items.map((runs, at) => {
      const color = this.data.colorOf(runs[0]);
      const repeat = seen.get(color) ?? 0;
      seen.set(color, repeat + 1);
      const dash = DASHES[repeat % DASHES.length];
      this.named.push({ text: `${at + 1}  ${names[at]}`, color, dash });
      const title = runs.length > 1 ? runs.join("\n") : lineName(runs);
      const look = (on: boolean) => this.look(on && at > 0 ? at - 1 : null);
      const open = runs.length > 1 || at === 0
        ? element("span", { class: "overlay-name", title: at === 0 ? `${title} (current)` : title }, names[at])
        : element("button", { class: "overlay-name", type: "button", title: `${title}: make it the current run`,
          "data-run": runs[0], onclick: () => chooseRun(this.store, runs[0]) }, names[at]);
      return element(
        "li",
        { class: at === 0 ? "overlay-run current" : "overlay-run", onmouseenter: () => look(true),
          onmouseleave: () => look(false), onfocusin: () => look(true), onfocusout: () => look(false) },
        element("span", "run-number", String(at + 1)),
        swatch(color, dash),
        open,
        this.#holder(runs),
        ...(at > 0
          ? [iconButton("✕", `Take ${lineName(runs)} out of the charts`, () => this.#remove(runs))] : []),
      );
    }));
    const left = scene.others.length - this.others.length;
    if (left > 0)
      this.list.append(
        element("li", "overlay-more", `${counted(left, "run")} not shown: gone, or left out by TensorBoard's filter`),
      );
    if (focused) this.list.querySelector<HTMLElement>(`[data-run="${CSS.escape(focused)}"]`)?.focus();
  }

  /** The button that holds a run as the baseline of the others. */
  #holder(runs: string[]) {
    const held = runs.includes(this.store.state.baseline ?? "");
    const name = lineName(runs);
    const made = iconButton("⚓", held ? `Let go of ${name} as the baseline` : `Hold the others against ${name}`,
      () => this.#hold(runs[0]));
    made.setAttribute("aria-pressed", String(held));
    return made;
  }
}
