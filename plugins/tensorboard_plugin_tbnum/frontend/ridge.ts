/** The histograms of all steps as a ridge: a row for each step, the first one on top. */

import { pin } from "./actions.ts";
import { FONT, element, sized, styled } from "./elements.ts";
import { formatCount, formatPower } from "./format.ts";
import { exponentRange, exponentTicks } from "./losses.ts";

import type { HistogramAnswer, RidgeAnswer } from "./answers.ts";
import type { PanelStore } from "./state.ts";

// pixels above the first row, for its peak, and below the last one, for the axis, and beside both
const [HEAD, FOOT, LEFT, RIGHT] = [42, 20, 58, 12];

/** Where things stand, in pixels. */
type Frame = { x: (exponent: number) => number; from: number; to: number; width: number; height: number; gap: number };

export class RidgeView {
  ridge: RidgeAnswer | null = null;
  /** whose row is brought out */
  step = 0;
  canvas = element("canvas", { class: "ridge", role: "img", tabindex: 0,
    "aria-label": "Histograms over time; arrow keys move between them" });
  title = element("p", "histogram-title");
  box = element("div", "ridge-box", this.canvas);
  element = element("div", "histogram-part", this.title, this.box);

  constructor(readonly store: PanelStore) {
    this.canvas.addEventListener("click", (event) => this.#pick(event.offsetY));
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param now the loss scale */
  show({ step: chosen, edges: { upper_exponent: upper }, formats }: HistogramAnswer, ridge: RidgeAnswer | null,
    now: number) {
    this.ridge = ridge;
    this.title.textContent = ridge?.step.length ? titleOf(ridge) : "";
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    const context = sized(this.canvas, width, height);
    if (!ridge?.step.length || !width || !height) return;
    this.step = nearest(ridge.step, chosen);
    const ratio = devicePixelRatio || 1;
    context.scale(ratio, ratio);
    context.font = `11px ${FONT}`;
    const { used, most } = usedBins(ridge);
    const [from, to] = exponentRange(used.length ? used : [100], upper);
    const x = (exponent: number) => LEFT + ((exponent - from) / (to - from)) * (width - LEFT - RIGHT);
    const frame = { x, from, to, width, height, gap: this.#gap(ridge, height) };
    drawAxis(context, frame);
    this.#drawRows(context, ridge, frame, [used[0] ?? 1, used[used.length - 1] ?? 1], upper, most);
    const float16 = formats.find(({ name }) => name === "float16");
    if (float16) drawLimits(context, frame, [float16.flushes_to, float16.overflows_from].map((at) => at / now));
  }

  clear() {
    this.title.textContent = "";
  }

  #gap({ step }: RidgeAnswer, height: number) {
    return (height - FOOT - HEAD) / Math.max(1, step.length - 1);
  }

  #drawRows(context: CanvasRenderingContext2D, { step, counts, bins }: RidgeAnswer, { x, from, to, gap }: Frame,
    [first, last]: [number, number], upper: number, most: number) {
    const colour = styled();
    const tall = Math.max(26, Math.min(4 * gap, HEAD - 2));
    context.textAlign = "right";
    context.textBaseline = "middle";
    let written = -Infinity;
    for (let row = 0; row < step.length; row++) {
      const base = HEAD + row * gap;
      const chosen = step[row] === this.step;
      context.beginPath();
      context.moveTo(x(from), base);
      context.lineTo(x(first + upper - 1), base); // what is beyond the bins is nothing: no slope leads to it
      for (let bin = first; bin <= last; bin++) {
        const y = base - (counts[row * bins + bin] / (most || 1)) * tall;
        context.lineTo(x(bin + upper - 1), y);
        context.lineTo(x(bin + upper), y);
      }
      context.lineTo(x(last + upper), base);
      context.lineTo(x(to), base);
      context.fillStyle = colour("--raised");
      context.globalAlpha = 0.82;
      context.fill();
      context.globalAlpha = 1;
      context.strokeStyle = colour(chosen ? "--selected" : "--norm");
      context.lineWidth = chosen ? 2.25 : 1;
      context.stroke();
      if (base - written < 13) continue;
      context.fillStyle = colour(chosen ? "--selected" : "--text-2");
      context.fillText(formatCount(step[row]), LEFT - 8, base);
      written = base;
    }
  }

  #hold(row: number) {
    const steps = this.ridge?.step ?? [];
    const step = steps[Math.max(0, Math.min(steps.length - 1, row))];
    if (step !== this.store.state.pin) pin(this.store, step);
  }

  #pick(y: number) {
    if (!this.ridge?.step.length) return;
    const gap = this.#gap(this.ridge, this.box.clientHeight);
    this.#hold(Math.round((y - HEAD + gap / 2) / gap));
  }

  #key(event: KeyboardEvent) {
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (!this.ridge?.step.length || by === undefined) return;
    event.preventDefault();
    this.#hold(this.ridge.step.indexOf(this.step) + by);
  }
}

function titleOf({ step }: RidgeAnswer) {
  const where = step.length > 1
    ? `Steps ${formatCount(step[0])} (top) to ${formatCount(step[step.length - 1])}`
    : `Step ${
      formatCount(step[0])
    } is the only one with a histogram here: tbnum.wrap(…, histogram_interval=N) records one every N steps`;
  return `${where}; dashed: float16`;
}

/** The step that is nearest to one. */
function nearest(steps: Float64Array, step: number) {
  return steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), steps[0]);
}

/** The bins that count anything in any row, but for zeros, and the greatest count. */
function usedBins({ bins, counts, step }: RidgeAnswer) {
  const used = [];
  let most = 0;
  for (let bin = 1; bin < bins; bin++) {
    let here = 0;
    for (let row = 0; row < step.length; row++) here = Math.max(here, counts[row * bins + bin]);
    if (here > 0) used.push(bin);
    most = Math.max(most, here);
  }
  return { used, most };
}

function drawAxis(context: CanvasRenderingContext2D, { x, from, to, width, height }: Frame) {
  const colour = styled();
  context.fillStyle = colour("--text-2");
  context.strokeStyle = colour("--grid");
  context.textAlign = "center";
  for (const tick of exponentTicks(from, to, width - LEFT)) {
    context.fillText(formatPower(2, tick), x(tick), height - 5);
    drawUpright(context, x(tick), height);
  }
}

function drawLimits(context: CanvasRenderingContext2D, { x, from, to, height }: Frame, limits: number[]) {
  context.strokeStyle = styled()("--skip");
  context.setLineDash([4, 3]);
  context.lineWidth = 1;
  for (const at of limits.map(Math.log2)) if (at >= from && at <= to) drawUpright(context, x(at), height);
}

function drawUpright(context: CanvasRenderingContext2D, x: number, height: number) {
  context.beginPath();
  context.moveTo(x, 4);
  context.lineTo(x, height - FOOT);
  context.stroke();
}
