/** The skips of runs beside the current one: a lane each, below the marks of the current run. */

import { element } from "./elements.ts";
import { formatCount } from "./format.ts";
import { MOST_NAMED_LANES, drawSkips } from "./overlaycanvas.ts";
import { lineName } from "./overlaylegend.ts";
import { PADDING_RIGHT } from "./plot.ts";
import { shortNames } from "./runlines.ts";

import type { OverlayData } from "./overlaydata.ts";

export class SkipStrip {
  element = element("canvas", { class: "overlay-skips", role: "img", height: 0 });
  /** the line that a person looks at */
  looked: number | null = null;

  constructor(readonly data: OverlayData) {}

  /** Which lines have a lane: those that skipped at all. */
  get #skipping() {
    return this.data.active ? this.data.whole.flatMap((line, at) => (line.skips ? [at] : [])) : [];
  }

  get #lane() {
    const { length } = this.#skipping;
    return length <= MOST_NAMED_LANES ? 14 : Math.max(3, Math.min(8, Math.floor(60 / length)));
  }

  get height() {
    const { length } = this.#skipping;
    return length ? Math.max(14, length * this.#lane + 6) : 0;
  }

  /** Makes room. @param width pixels of the plots @returns whether its height changed */
  layout(left: number, width: number): boolean {
    const { element: canvas, height } = this;
    const ratio = devicePixelRatio || 1;
    const [across, high] = [Math.round((left + width + PADDING_RIGHT) * ratio), Math.round(height * ratio)];
    const changed = canvas.height !== high;
    if (!changed && canvas.width === across) return false;
    [canvas.width, canvas.height] = [across, high];
    canvas.style.width = `${left + width + PADDING_RIGHT}px`;
    canvas.style.height = `${height}px`;
    return changed;
  }

  /** @param width pixels of the plots @param picture where it is drawn in place of the page */
  draw(left: number, width: number, picture: CanvasRenderingContext2D | null = null) {
    const { element: canvas, height, looked, data: { scene } } = this;
    const context = picture ?? canvas.getContext("2d");
    if (!context || !scene || !height) return;
    const ratio = devicePixelRatio || 1;
    const skipping = this.#skipping;
    const lines = skipping.map((at) => this.data.shown[at]);
    if (!picture) context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const names = shortNames(lines.map(({ runs }) => lineName(runs))).map((name, row) =>
      `${skipping[row] + 2} ${name}`
    );
    const counts = drawSkips(context, lines, names, (row) => looked !== null && looked !== skipping[row], { left, width,
      full: left + width + PADDING_RIGHT, height, lane: this.#lane, range: scene.range(), dark: this.data.dark });
    const said = lines.map((line, row) =>
      `${lineName(line.runs)} ${line.size > 1 ? "in " : ""}${formatCount(counts[row])}${line.size > 1 ? " places" : ""}`
    );
    canvas.setAttribute("aria-label", `Skipped steps of the other runs in view: ${said.join(", ")}`);
  }
}
