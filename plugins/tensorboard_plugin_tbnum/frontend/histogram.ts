/**
 * The histogram of a tensor by exponents: how much of it a number format would flush to zero or let overflow, at the
 * loss scale of the step and at another one; and the histograms of all steps as a ridge.
 *
 * Gradients are counted unscaled, so a format's range stands at its limits divided by the scale.
 */

import { element, svg } from "./elements.ts";
import { formatCount, formatPower } from "./format.ts";
import { drawBars } from "./histogrambars.ts";
import { lossesTable, lossesText } from "./losses.ts";
import { RidgeView } from "./ridge.ts";

import type { HistogramAnswer, RidgeAnswer } from "./answers.ts";
import type { PanelStore } from "./state.ts";

export type HistogramState = {
  names: string[];
  sources: string[];
  name: string;
  source: string;
  histogram: HistogramAnswer | null;
  ridge: RidgeAnswer | null;
  waiting: boolean;
};

const SLIDER = { least: -20, most: 40 };

export class HistogramView {
  state: HistogramState | null = null;
  /** log2 of the other scale; null: as the step's */
  exponent = (null as number | null);
  nameSelect: HTMLSelectElement;
  sourceSelect: HTMLSelectElement;
  slider = element("input", { type: "range", ...{ min: SLIDER.least, max: SLIDER.most }, step: 1,
    "aria-label": "Another loss scale", oninput: () => {
      this.exponent = Number(this.slider.value);
      this.#draw();
    } });
  scaleText = element("output");
  title = element("p", "histogram-title");
  picture = svg("svg", { class: "histogram", role: "img", tabindex: 0, "aria-describedby": "summary-histogram" });
  losses = element("div", "losses");
  summary = element("p", { class: "visually-hidden", id: "summary-histogram" });
  pictureBox = element("div", "histogram-box", this.picture);
  ridge: RidgeView;
  element: HTMLElement;

  /** @param choose another tensor, or what of it */
  constructor(store: PanelStore, choose: (name: string, source: string) => void) {
    this.ridge = new RidgeView(store);
    const onchange = () => choose(this.nameSelect.value, this.sourceSelect.value);
    this.nameSelect = element("select", { class: "small", "aria-label": "Tensor", onchange });
    this.sourceSelect = element("select", { class: "small", "aria-label": "Histogram of", onchange });
    this.element = element(
      "section",
      { class: "histograms", "aria-label": "Histograms" },
      element("header", "dock-tools", this.nameSelect, this.sourceSelect,
        element("label", "slider-label", "Another scale", this.slider, this.scaleText)),
      element("div", "histogram-parts",
        element("div", "histogram-part", this.title, this.pictureBox, this.losses), this.ridge.element),
      this.summary,
    );
  }

  show(state: HistogramState) {
    const before = this.state;
    this.state = state;
    if (before?.names !== state.names || before?.sources !== state.sources) {
      this.nameSelect.replaceChildren(element("option", { value: "*" }, "the whole model"), ...state.names.map((name) =>
        element("option", { value: name }, name)
      ));
      this.sourceSelect.replaceChildren(
        ...state.sources.map((source) => element("option", { value: source }, source.replaceAll("_", " "))),
      );
    }
    this.nameSelect.value = state.name;
    this.sourceSelect.value = state.source;
    this.#draw();
  }

  #draw() {
    const { state } = this;
    if (!state) return;
    const { histogram, ridge } = state;
    if (!histogram) {
      this.title.textContent = state.waiting ? "Loading …" : "No histogram was recorded of this";
      for (const part of [this.picture, this.losses]) part.replaceChildren();
      this.ridge.clear();
      return;
    }
    const now = histogram.loss_scale ?? 1;
    const other = this.exponent === null ? null : 2 ** this.exponent;
    const exponent = this.exponent ?? Math.round(Math.log2(now));
    this.slider.value = String(exponent);
    this.scaleText.textContent = formatPower(2, exponent);
    const where = state.name === "*" ? "the whole model" : state.name;
    const [first, last, steps] = histogram.steps_available;
    this.title.title = `${formatCount(steps)} histograms, steps ${formatCount(first)} to ${
      formatCount(last)
    }; the nearest before the cursor is shown`;
    this.title.textContent = `Step ${formatCount(histogram.step)}: ${
      state.source.replaceAll("_", " ")
    } of ${where}, by magnitude`;
    this.losses.replaceChildren(...lossesTable(histogram, now, other));
    this.summary.textContent = `${this.title.textContent}. ${lossesText(histogram, now)}`;
    this.picture.setAttribute("aria-label", this.title.textContent);
    drawBars(this.picture, this.pictureBox, histogram, now, other); // into the room that the table leaves
    this.ridge.show(histogram, ridge, now);
  }
}
