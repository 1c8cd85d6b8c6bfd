/** What led to a step: the quantities that left their usual before it, furthest first. Loaded when it is opened. */

import { goToStep } from "./actions.ts";
import { RouteError, Unreachable } from "./api.ts";
import { dock, element, headRow, iconButton, scroller, svg } from "./elements.ts";
import { formatCount, formatNumber, words } from "./format.ts";

import type { LedQuantity } from "./answers.ts";
import type { Api } from "./api.ts";
import type { PanelStore } from "./state.ts";

const [WIDTH, HEIGHT, MARGIN] = [240, 34, 4];
const HEADS = ["Quantity", "In the steps before", "Furthest", "Usually", "How far"];

/** How many times its usual deviation a value is away: "12 ×", "> 1,000 ×". */
export function farText(deviations: number) {
  if (!Number.isFinite(deviations)) return "beyond measure";
  return deviations > 1000 ? "> 1,000 ×" : `${formatNumber(Number(deviations.toPrecision(2)))} ×`;
}

/** A quantity's name as people say it. */
export function quantityTitle({ name, optimizer, tensor }: LedQuantity) {
  const what = tensor ? `norm of ${tensor}` : name === "lr" ? "learning rate" : words(name);
  return optimizer ? `${what} (${optimizer})` : what;
}

export class LedHere {
  title = element("h2", {}, "What led here");
  message = element("p", { class: "dock-message", role: "status" });
  body = element("tbody");
  missing = element("p", "led-missing");
  element: HTMLElement;
  shown = "";

  constructor(readonly api: Api, readonly store: PanelStore) {
    const heads = HEADS.map((head) => element("th", { scope: "col" }, head));
    this.element = dock("What led here", [this.title, this.message],
      iconButton("✕", "Close what led here", () => store.set({ dock: null })),
      scroller("Quantities before the step", element("table", "data-table led-table", headRow(heads), this.body),
        this.missing));
  }

  async show() {
    const { loaded, led } = this.store.state;
    if (!loaded || led === null) return;
    const shown = `${loaded.run} ${loaded.info.version} ${led}`;
    if (shown === this.shown) return;
    this.shown = shown;
    try {
      const { step, first_step: first, quantities, not_recorded: missing } = await this.api.led(loaded.run, led);
      if (this.shown !== shown) return;
      this.title.textContent = `What led to step ${formatCount(step)}`;
      this.message.textContent = `Steps ${formatCount(first)} to ${
        formatCount(step - 1)
      }, furthest from their usual first`;
      this.body.replaceChildren(...quantities.map((one) => this.#row(one, first, step)));
      this.missing.textContent = missing.length
        ? `Not recorded in these steps, and not ranked: ${missing.map(words).join(", ")}.` : "";
    } catch (error) {
      if (!(error instanceof RouteError) && !(error instanceof Unreachable)) throw error;
      if (this.shown !== shown) return;
      this.message.textContent = error.message;
      this.body.replaceChildren();
      this.missing.textContent = "";
    }
  }

  #row(quantity: LedQuantity, first: number, step: number) {
    const { usual, value, at_step: at, deviations } = quantity;
    const go = element("button", { class: "link", type: "button", onclick: () => goToStep(this.store, at) },
      `step ${formatCount(at)}`);
    return element("tr", deviations >= 6 ? "far" : "", element("th", { scope: "row" }, quantityTitle(quantity)),
      element("td", {}, sparkline(quantity, first, step)),
      element("td", {}, `${formatNumber(Number(value.toPrecision(4)))} at `, go),
      element("td", "number", formatNumber(Number(usual.toPrecision(4)))),
      element("td", "number", farText(deviations)));
  }
}

/** The values as a line, with what is usual, and the one that is furthest from it. */
function sparkline({ steps, values, usual, at_step: at }: LedQuantity, first: number, last: number) {
  const [least, most] = [Math.min(usual, ...values), Math.max(usual, ...values)];
  const room = Math.max(0, 0.1 * Math.abs(usual) - (most - least)) / 2; // what hardly varies is drawn so
  const [low, high] = [least - room, most + room];
  const x = (step: number) => MARGIN + ((step - first) / Math.max(1, last - 1 - first)) * (WIDTH - 2 * MARGIN);
  const y = (value: number) => HEIGHT - MARGIN - ((value - low) / (high - low || 1)) * (HEIGHT - 2 * MARGIN);
  const points = steps.map((step, index) => `${x(step).toFixed(1)},${y(values[index]).toFixed(1)}`);
  const worst = steps.indexOf(at);
  return svg("svg", { class: "sparkline", width: WIDTH, height: HEIGHT, "aria-hidden": "true" },
    svg("line", { class: "usual", x1: MARGIN, x2: WIDTH - MARGIN, y1: y(usual), y2: y(usual) }),
    svg("polyline", { points: points.join(" ") }),
    ...(worst < 0 ? [] : [svg("circle", { cx: x(at), cy: y(values[worst]), r: 3 })]));
}
