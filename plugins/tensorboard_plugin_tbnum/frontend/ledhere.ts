/** What led to a step: the quantities that left their usual before it, furthest first. Loaded when it is opened. */

import { goToStep } from "./actions.ts";
import { RouteError, Unreachable } from "./api.ts";
import { dock, element, headRow, iconButton, scroller } from "./elements.ts";
import { counted, formatCount, formatNumber, words } from "./format.ts";
import { sparkline } from "./sparkline.ts";

import type { LedAnswer, LedQuantity } from "./answers.ts";
import type { Api } from "./api.ts";
import type { PanelStore } from "./state.ts";

const [WIDTH, HEIGHT] = [240, 34];
const HEADS = ["Quantity", "In the steps before", "Furthest", "Usually", "How far"];

/** How many times its usual deviation a value is away: "12 ×", "> 1,000 ×". */
export function farText(deviations: number) {
  if (!Number.isFinite(deviations)) return "beyond measure";
  return deviations > 1000 ? "> 1,000 ×" : `${formatNumber(Number(deviations.toPrecision(2)))} ×`;
}

/** A quantity's name as people say it. */
export function quantityTitle({ name, optimizer, tensor, rank }: LedQuantity) {
  const what = tensor ? `norm of ${tensor}` : name === "lr" ? "learning rate" : words(name);
  const whose = [...(optimizer ? [optimizer] : []), ...(rank === null ? [] : [`rank ${rank}`])];
  return whose.length ? `${what} (${whose.join(", ")})` : what;
}

/** Which samples a step was made of. */
export function samplesText({ step, samples, samples_total: total }: Pick<LedAnswer, "step" | "samples"
  | "samples_total">) {
  if (!samples?.length || total === null) return "";
  const more = total - samples.length;
  return `Step ${formatCount(step)} was made of ${counted(total, "sample")}: ${samples.join(", ")}${
    more > 0 ? ` and ${formatCount(more)} more` : ""
  }.`;
}

export class LedHere {
  title = element("h2", {}, "What led here");
  message = element("p", { class: "dock-message", role: "status" });
  body = element("tbody");
  missing = element("p", "led-missing");
  samples = element("p", "led-missing");
  element: HTMLElement;
  shown = "";

  constructor(readonly api: Api, readonly store: PanelStore) {
    const heads = HEADS.map((head) => element("th", { scope: "col" }, head));
    this.element = dock("What led here", [this.title, this.message],
      iconButton("✕", "Close what led here", () => store.set({ dock: null })),
      scroller("Quantities before the step", element("table", "data-table led-table", headRow(heads), this.body),
        this.samples, this.missing));
  }

  async show() {
    const { loaded, led } = this.store.state;
    if (!loaded || led === null) return;
    const shown = `${loaded.run} ${loaded.info.version} ${led}`;
    if (shown === this.shown) return;
    this.shown = shown;
    try {
      const answer = await this.api.led(loaded.run, led);
      const { step, first_step: first, quantities, not_recorded: missing } = answer;
      if (this.shown !== shown) return;
      this.title.textContent = `What led to step ${formatCount(step)}`;
      this.message.textContent = `Steps ${formatCount(first)} to ${
        formatCount(step - 1)
      }, furthest from their usual first`;
      this.body.replaceChildren(...quantities.map((one) => this.#row(one, first, step)));
      this.samples.textContent = samplesText(answer);
      this.missing.textContent = missing.length
        ? `Too few values in these steps to be ranked: ${missing.map(words).join(", ")}.` : "";
    } catch (error) {
      if (!(error instanceof RouteError) && !(error instanceof Unreachable)) throw error;
      if (this.shown !== shown) return;
      this.message.textContent = error.message;
      this.body.replaceChildren();
      this.missing.textContent = this.samples.textContent = "";
    }
  }

  #row(quantity: LedQuantity, first: number, step: number) {
    const { usual, value, at_step: at, deviations, steps, values } = quantity;
    const go = element("button", { class: "link", type: "button", onclick: () => goToStep(this.store, at) },
      `step ${formatCount(at)}`);
    return element("tr", deviations >= 6 ? "far" : "", element("th", { scope: "row" }, quantityTitle(quantity)),
      element("td", {},
        sparkline(steps, values, { width: WIDTH, height: HEIGHT, from: first, to: step - 1, usual, at })),
      element("td", {}, `${formatNumber(Number(value.toPrecision(4)))} at `, go),
      element("td", "number", formatNumber(Number(usual.toPrecision(4)))),
      element("td", "number", farText(deviations)));
  }
}
