/**
 * The histogram of a tensor by exponents: how much of it a number format would flush to zero or let overflow, at the
 * loss scale of the step and at another one; and the histograms of all steps as a ridge.
 *
 * Gradients are counted unscaled, so a format's range stands at its limits divided by the scale.
 */

import { pin } from "./actions.ts";
import { FONT, element, sized, styled, svg } from "./elements.ts";
import { formatCount, formatNumber, formatPower, formatScale } from "./format.ts";

import type { FormatLimits, HistogramAnswer, RidgeAnswer } from "./answers.ts";
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

const LABELS = { float16: "float16", bfloat16: "bfloat16", float8_e4m3fn: "float8 e4m3", float8_e5m2: "float8 e5m2" };
const SLIDER = { least: -20, most: 40 };

/**
 * What of a histogram a format at a scale turns to zero, and what overflows: shares of all elements, infinities among
 * those that overflow. Exact where the scale is a power of two; else the bin that a limit cuts counts in proportion.
 */
export function lost({ counts, zero, inf, nan, edges }: HistogramAnswer, format: FormatLimits, scale: number) {
  const total = counts.reduce((sum, [, count]) => sum + count, zero + inf + nan);
  if (!total) return { zero: 0, overflow: 0 };
  const [low, high] = [Math.log2(format.flushes_to / scale), Math.log2(format.overflows_from / scale)];
  let [flushed, over] = [0, 0];
  for (const [bin, count] of counts) {
    const upper = bin + edges.upper_exponent;
    flushed += count * Math.max(0, Math.min(1, low - (upper - 1)));
    // The least that overflows lies just above the bin's edge, or a rounding below a power of two.
    over += count * Math.max(0, Math.min(1, upper - high > 0.999 ? 1 : upper - high < 0.001 ? 0 : upper - high));
  }
  return { zero: flushed / total, overflow: (over + inf) / total };
}

/** The exponents worth showing: all that are counted, and where formats give up, with room. @param upper of bin 0 */
export function exponentRange(bins: number[], upper: number): [number, number] {
  const [low, high] = [Math.min(...bins) + upper - 1, Math.max(...bins) + upper];
  return [Math.min(low, -34) - 2, Math.max(high, 4) + 2];
}

/** A share in percent as exact as it is worth. */
export function percent(share: number) {
  if (share === 0) return "0 %";
  if (share < 1e-6) return "< 0.0001 %";
  return `${formatNumber(Number((100 * share).toPrecision(3)))} %`;
}

/** From the least to the greatest that was counted: as measured, else by the edges of their bins. */
export function magnitudes({ counts, edges, low, high }: HistogramAnswer) {
  if (!counts.length) return "";
  const bins = counts.map(([bin]) => bin);
  const text = (value: number | null,
    exponent: number) => (value === null ? formatPower(2, exponent + edges.upper_exponent)
      : formatNumber(Number(value.toPrecision(3))));
  return `; magnitudes ${text(low, Math.min(...bins) - 1)} to ${text(high, Math.max(...bins))}`;
}

// pixels above the first row, for its peak, and below the last one, for the axis
const [RIDGE_HEAD, RIDGE_FOOT] = [42, 20];

/** Why there is nothing to draw a histogram of. */
export function nothingFinite({ inf, nan }: HistogramAnswer) {
  return inf || nan ? `No finite value but zero: ∞ ${formatCount(inf)}, NaN ${formatCount(nan)}`
    : "Every value is zero";
}

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
  ridge = element("canvas", { class: "ridge", role: "img", tabindex: 0,
    "aria-label": "Histograms over time; arrow keys move between them" });
  ridgeTitle = element("p", "histogram-title");
  summary = element("p", { class: "visually-hidden", id: "summary-histogram" });
  pictureBox = element("div", "histogram-box", this.picture);
  ridgeBox = element("div", "ridge-box", this.ridge);
  element: HTMLElement;

  /** @param choose another tensor, or what of it */
  constructor(readonly store: PanelStore, choose: (name: string, source: string) => void) {
    this.nameSelect = element("select", { class: "small", "aria-label": "Tensor",
      onchange: () => choose(this.nameSelect.value, this.sourceSelect.value) });
    this.sourceSelect = element("select", { class: "small", "aria-label": "Histogram of",
      onchange: () => choose(this.nameSelect.value, this.sourceSelect.value) });
    this.ridge.addEventListener("click", (event) => this.#pick(event.offsetY));
    this.ridge.addEventListener("keydown", (event) => this.#key(event));
    this.element = element(
      "section",
      { class: "histograms", "aria-label": "Histograms" },
      element("header", "dock-tools", this.nameSelect, this.sourceSelect,
        element("label", "slider-label", "Another scale", this.slider, this.scaleText)),
      element(
        "div",
        "histogram-parts",
        element("div", "histogram-part", this.title, this.pictureBox, this.losses),
        element("div", "histogram-part", this.ridgeTitle, this.ridgeBox),
      ),
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
      this.ridgeTitle.textContent = "";
      return;
    }
    const now = histogram.loss_scale ?? 1;
    const exponent = this.exponent ?? Math.round(Math.log2(now));
    const other = this.exponent === null ? null : 2 ** this.exponent;
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
    this.#drawLosses(histogram, now, other);
    this.#drawPicture(histogram, now, other); // into the room that the table leaves
    this.#drawRidge(histogram, ridge, now);
  }

  #drawPicture(histogram: HistogramAnswer, now: number, other: number | null) {
    const { counts, edges, formats } = histogram;
    const width = Math.max(280, this.pictureBox.clientWidth);
    const rows = formats.length * 24;
    const height = Math.max(96, this.pictureBox.clientHeight - rows - 4);
    const [left, right, foot] = [92, 12, 20];
    const [from, to] = exponentRange(counts.length ? counts.map(([bin]) => bin) : [100], edges.upper_exponent);
    const x = (exponent: number) =>
      left + ((Math.max(from, Math.min(to, exponent)) - from) / (to - from)) * (width - left - right);
    const most = Math.max(1, ...counts.map(([, count]) => count));
    const floor = height - foot;
    const parts = [];
    const stride = [2, 4, 8, 16].find((step) => (to - from) / step < (width - left) / 44) ?? 32;
    for (let tick = Math.ceil(from / stride) * stride; tick <= to; tick += stride) {
      parts.push(svg("line", { class: "grid-line", x1: x(tick), x2: x(tick), y1: 6, y2: height + rows }),
        svg("text", { class: "tick", x: x(tick), y: height - 5, "text-anchor": "middle" }, formatPower(2, tick)));
    }
    for (const [bin, count] of counts) {
      const upper = bin + edges.upper_exponent;
      const tall = Math.max(1, (count / most) * (floor - 8));
      parts.push(
        svg("rect", { class: "bar-count", x: x(upper - 1) + 0.5, y: floor - tall,
          width: Math.max(1, x(upper) - x(upper - 1) - 1), height: tall },
          svg("title", {}, `${formatPower(2, upper - 1)} to ${formatPower(2, upper)}: ${formatCount(count)} elements`)),
      );
    }
    parts.push(svg("text", { class: "tick", x: left - 8, y: floor - 2, "text-anchor": "end" }, "elements"));
    if (!counts.length)
      parts.push(
        svg("text", { class: "nothing-finite", x: (left + width) / 2, y: floor / 2, "text-anchor": "middle" },
          nothingFinite(histogram)),
      );
    formats.forEach((format, row) => {
      const top = height + 2 + row * 24;
      const label = LABELS[format.name as keyof typeof LABELS] ?? format.name;
      parts.push(svg("text", { class: "format-label", x: left - 8, y: top + 14, "text-anchor": "end" }, label));
      for (const [scale, name, y]
        of ([[now, "now", top + 3], [other, "other", top + 13]] as [number | null, string, number][])) {
        if (scale === null || (name === "other" && other === now)) continue;
        const [low, normal, high] = [format.flushes_to, format.smallest_normal, format.overflows_from].map((limit) =>
          x(Math.log2(limit / scale))
        );
        const say = `${label} at a scale of ${formatScale(scale)}: flushes to zero up to ${
          formatNumber(format.flushes_to / scale)
        }, loses precision up to ${formatNumber(format.smallest_normal / scale)}, overflows from ${
          formatNumber(format.overflows_from / scale)
        }`;
        parts.push(
          svg("g", { class: `range range-${name}` },
            svg("rect", { class: "range-faint", x: low, y, width: Math.max(0, normal - low), height: 7 }),
            svg("rect", { class: "range-full", x: normal, y, width: Math.max(0, high - normal), height: 7 }),
            svg("title", {}, say)),
        );
      }
    });
    const float16 = formats.find(({ name }) => name === "float16");
    if (float16) {
      for (const limit of [float16.flushes_to, float16.overflows_from]) {
        const at = x(Math.log2(limit / now));
        parts.push(svg("line", { class: "limit", x1: at, x2: at, y1: 6, y2: height + 4 }));
      }
    }
    this.picture.setAttribute("width", String(width));
    this.picture.setAttribute("height", String(height + rows + 2));
    this.picture.setAttribute("aria-label", this.title.textContent ?? "");
    this.picture.replaceChildren(...parts);
  }

  #drawLosses(histogram: HistogramAnswer, now: number, other: number | null) {
    const { counts, zero, inf, nan, formats } = histogram;
    const scales = other === null ? [now] : [now, other];
    const total = counts.reduce((sum, [, count]) => sum + count, zero + inf + nan);
    const words: string[] = [];
    const rows = formats.map((format) => {
      const losses = scales.map((scale) => lost(histogram, format, scale));
      const label = LABELS[format.name as keyof typeof LABELS] ?? format.name;
      words.push(`${label}: ${percent(losses[0].zero)} to zero, ${percent(losses[0].overflow)} overflow`);
      const cell = (share: number) => element("td", share > 0.01 ? "much" : "", percent(share));
      return element("tr", { "data-format": format.name }, element("th", { scope: "row" }, label),
        ...losses.flatMap(({ zero: flushed, overflow }) => [cell(flushed), cell(overflow)]));
    });
    const head = (kind: string, scale: number) =>
      element("th", { colspan: 2, scope: "colgroup" }, element("span", `range-key range-key-${kind}`),
        `at ${formatScale(scale)}`);
    const column = (text: string) => element("th", { scope: "col" }, text);
    this.losses.replaceChildren(
      element(
        "table",
        "small-table losses-table",
        element("thead", {},
          element("tr", {}, element("td"), ...scales.map((scale, at) => head(at ? "other" : "now", scale))),
          element("tr", {}, element("td"), ...scales.flatMap(() => [column("to zero"), column("overflow")]))),
        element("tbody", {}, ...rows),
      ),
      element("p", "histogram-more",
        `${formatCount(total)} elements; zero already ${percent(total ? zero / total : 0)}; ∞ ${
          formatCount(inf)
        }, NaN ${formatCount(nan)}${magnitudes(histogram)}`),
    );
    this.summary.textContent = `${this.title.textContent}. At the loss scale ${formatScale(now)}: ${words.join("; ")}.`;
  }

  // ---- The ridge

  #drawRidge(histogram: HistogramAnswer, ridge: RidgeAnswer | null, now: number) {
    const { ridge: canvas, ridgeBox } = this;
    this.ridgeTitle.textContent = ridge?.step.length
      ? `${
        ridge.step.length > 1
          ? `Steps ${formatCount(ridge.step[0])} (top) to ${formatCount(ridge.step[ridge.step.length - 1])}`
          : `Step ${
            formatCount(ridge.step[0])
          } is the only one with a histogram here: tbnum.wrap(…, histogram_interval=N)`
            + " records one every N steps"
      }; dashed: float16` : "";
    const ratio = devicePixelRatio || 1;
    const [width, height] = [ridgeBox.clientWidth, ridgeBox.clientHeight];
    const context = sized(canvas, width, height);
    if (!ridge?.step.length || !width || !height) return;
    context.scale(ratio, ratio);
    const colour = styled();
    const { bins, counts, step } = ridge;
    const used = [];
    for (let bin = 1; bin < bins; bin++)
      for (let row = 0; row < step.length; row++)
        if (counts[row * bins + bin] > 0) {
          used.push(bin);
          break;
        }
    const upper = histogram.edges.upper_exponent;
    const [from, to] = exponentRange(used.length ? used : [100], upper);
    const [left, right, foot, head] = [58, 12, RIDGE_FOOT, RIDGE_HEAD];
    const x = (exponent: number) => left + ((exponent - from) / (to - from)) * (width - left - right);
    const gap = (height - foot - head) / Math.max(1, step.length - 1);
    let most = 0;
    for (let row = 0; row < step.length; row++)
      for (let bin = 1; bin < bins; bin++) most = Math.max(most, counts[row * bins + bin]);
    const tall = Math.max(26, Math.min(4 * gap, head - 2));
    context.font = `11px ${FONT}`;
    context.fillStyle = colour("--text-2");
    context.textAlign = "center";
    const stride = [4, 8, 16].find((size) => (to - from) / size < (width - left) / 44) ?? 32;
    for (let tick = Math.ceil(from / stride) * stride; tick <= to; tick += stride) {
      context.fillText(formatPower(2, tick), x(tick), height - 5);
      context.strokeStyle = colour("--grid");
      context.beginPath();
      context.moveTo(x(tick), 4);
      context.lineTo(x(tick), height - foot);
      context.stroke();
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    let written = -Infinity;
    for (let row = 0; row < step.length; row++) {
      const base = head + row * gap;
      const chosen = step[row] === this.#ridgeStep(ridge, histogram.step);
      context.beginPath();
      context.moveTo(x(from), base);
      const [firstBin, lastBin] = [used[0] ?? 1, used[used.length - 1] ?? 1];
      context.lineTo(x(firstBin + upper - 1), base); // what is beyond the bins is nothing: no slope leads to it
      for (let bin = firstBin; bin <= lastBin; bin++) {
        const y = base - (counts[row * bins + bin] / (most || 1)) * tall;
        context.lineTo(x(bin + upper - 1), y);
        context.lineTo(x(bin + upper), y);
      }
      context.lineTo(x(lastBin + upper), base);
      context.lineTo(x(to), base);
      context.fillStyle = colour("--raised");
      context.globalAlpha = 0.82;
      context.fill();
      context.globalAlpha = 1;
      context.strokeStyle = colour(chosen ? "--selected" : "--norm");
      context.lineWidth = chosen ? 2.25 : 1;
      context.stroke();
      if (base - written >= 13 || chosen) {
        context.fillStyle = colour(chosen ? "--selected" : "--text-2");
        if (base - written >= 13) context.fillText(formatCount(step[row]), left - 8, base);
        written = Math.max(written, base);
      }
    }
    const float16 = histogram.formats.find(({ name }) => name === "float16");
    if (!float16) return;
    context.strokeStyle = colour("--skip");
    context.setLineDash([4, 3]);
    context.lineWidth = 1;
    for (const limit of [float16.flushes_to, float16.overflows_from]) {
      const at = Math.log2(limit / now);
      if (at < from || at > to) continue;
      context.beginPath();
      context.moveTo(x(at), 4);
      context.lineTo(x(at), height - foot);
      context.stroke();
    }
  }

  /** The row's step that is nearest to a step. */
  #ridgeStep(ridge: RidgeAnswer, step: number) {
    return ridge.step.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best), ridge.step[0]);
  }

  #hold(step: number) {
    if (step !== this.store.state.pin) pin(this.store, step);
  }

  #pick(y: number) {
    const ridge = this.state?.ridge;
    if (!ridge?.step.length) return;
    const gap = (this.ridgeBox.clientHeight - RIDGE_HEAD - RIDGE_FOOT) / Math.max(1, ridge.step.length - 1);
    this.#hold(
      ridge.step[Math.max(0, Math.min(ridge.step.length - 1, Math.round((y - RIDGE_HEAD + gap / 2) / gap)))],
    );
  }

  #key(event: KeyboardEvent) {
    const { ridge, histogram } = this.state ?? {};
    const by = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1 }[event.key];
    if (!ridge?.step.length || !histogram || by === undefined) return;
    event.preventDefault();
    const at = ridge.step.indexOf(this.#ridgeStep(ridge, histogram.step));
    this.#hold(ridge.step[Math.max(0, Math.min(ridge.step.length - 1, at + by))]);
  }

  resize() {
    this.#draw();
  }
}
