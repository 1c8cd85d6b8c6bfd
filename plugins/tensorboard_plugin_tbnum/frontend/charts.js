/**
 * The linked charts: one x axis, one cursor, one zoom. uPlot draws lines; bands of skipped steps, marks and lanes are ours.
 *
 * `CHARTS` says what is drawn; a further chart is a further entry. What turns a `Series` into numbers to draw is
 * pure (`plotData`, `smoothed`, `TimeAxis`); the rest is the class `Charts`.
 *
 * uPlot draws nothing where a series starts with NaN or holds an infinity, and bridges other NaNs. So it gets
 * finite numbers and `null` only; what was not finite is drawn as a tick at the upper edge.
 */

import uPlot from "uplot";

import {
  counted, formatCount, formatNumber, formatScale, formatShare,
  linearLabels, linearTicks, log10Labels, log10Ticks, log2Labels, log2Ticks, stepLabels, timeLabels, timeTicks,
} from "./format.js";
import { FONT, button, element, iconButton, styled, svg } from "./host.js";
import { cluster, glyph, lowerBound, onCurve, pillWidth, shownLanes } from "./marks.js";

/** @import { Series } from "./api.js" */
/** @import { Overlay } from "./overlay.js" */
/** @import { ChartCallbacks, ChartSpec, Cluster, Edge, Geometry, Lane, LineSpec, Model, Pane, SeriesLike, Values, Views, Plot, PlotOptions, PlotSeries, Scale } from "./types.js" */

/** Every view there is, in its first order. @type {ChartSpec[]} */
export const CHARTS = [
  {
    id: "loss", title: "Loss", scale: "linear", weight: 3.2, minHeight: 150, canLog: true,
    lines: [{ column: "loss", label: "loss", color: "--loss", width: 1.75, smooth: true, spread: ["loss/rank_min", "loss/rank_max"] }],
    beside: ["loss/rank_min", "loss/rank_max"],
  },
  {
    id: "scale", title: "Loss scale", scale: "log2", weight: 1.35, minHeight: 80,
    lines: [{ column: "loss_scale", label: "loss scale", color: "--scale", width: 1.75, stepped: true }],
  },
  {
    id: "norm", title: "Gradient norm", scale: "log10", weight: 2, minHeight: 104, ofOptimizer: true, canLog: true,
    lines: [
      { column: "grad_norm", label: "before clipping", color: "--norm", width: 1.25 },
      { column: "grad_norm_clipped", label: "after clipping", color: "--clipped", width: 1.25, only: "max" },
      { column: "max_norm", label: "threshold", color: "--threshold", width: 1.25, dash: [6, 4], only: "last" },
    ],
  },
  {
    id: "clip", title: "Clipping", scale: "linear", weight: 1, minHeight: 72, ofOptimizer: true, canLog: true, optional: true,
    lines: [{ column: "clip_coef", label: "gradients times", color: "--clipped", width: 1.25, average: true }], beside: ["clipped"],
  },
  {
    id: "lr", title: "Learning rate", scale: "linear", weight: 1, minHeight: 72, ofOptimizer: true, canLog: true, optional: true,
    lines: [{ column: "lr", label: "learning rate", color: "--lr", width: 1.75, stepped: true }],
  },
  {
    id: "ratio", title: "Update ratio", scale: "log10", weight: 1.2, minHeight: 80, ofOptimizer: true, canLog: true, optional: true,
    lines: [{ column: "update_ratio", label: "update norm / parameter norm", color: "--ratio", width: 1.5, sparse: true }],
  },
  {
    id: "headroom", title: "Headroom", scale: "linear", weight: 1.2, minHeight: 80, ofTensors: "headroom", optional: true,
    lines: [{ column: "headroom/float16", label: "doublings to float16's maximum", color: "--headroom", width: 1.5, sparse: true }],
  },
];

/** The chosen tensor's: not to be chosen from the list of views. @type {ChartSpec} */
export const TENSOR_CHART = {
  id: "tensor", title: "Tensor", scale: "log10", weight: 1.6, minHeight: 96, ofTensors: "tensor", canLog: true, optional: true,
  lines: [
    { column: "grad_norm", label: "gradient norm", color: "--norm", width: 1.5, sparse: true },
    { column: "update_norm", label: "update norm", color: "--ratio", width: 1.5, sparse: true },
    { column: "param_norm", label: "parameter norm", color: "--scale", width: 1.5, sparse: true },
  ],
};

// ---- Which views are shown, in which order, how high, on which axis

/** @returns {Views} */
export function firstViews() {
  return { order: CHARTS.map(({ id }) => id), hidden: new Set(CHARTS.filter(({ optional }) => optional).map(({ id }) => id)), heights: new Map(), log: new Map() };
}

/**
 * Views as a short text, for the address and the browser's memory: `loss.log,norm*180,-scale` is the loss on a
 * logarithmic axis, the norm 180 pixels high, and the scale hidden. "" where all is as at first.
 * @param {Views} views
 */
export function formatViews({ order, hidden, heights, log }) {
  const text = (/** @type {Views} */ views) => views.order.map((id) => {
    const height = views.heights.get(id);
    const axis = views.log.get(id);
    return `${views.hidden.has(id) ? "-" : ""}${id}${axis === undefined ? "" : axis ? ".log" : ".lin"}${height === undefined ? "" : `*${Math.round(height)}`}`;
  }).join(",");
  const all = text({ order, hidden, heights, log });
  return all === text(firstViews()) ? "" : all;
}

/** What it does not name stands at the end, as at first; what it names and nobody knows is passed over. @param {string} text @returns {Views} */
export function parseViews(text) {
  const first = firstViews();
  /** @type {Views} */
  const views = { order: [], hidden: new Set(), heights: new Map(), log: new Map() };
  for (const part of text.split(",")) {
    const [, off, id, axis, height] = /^(-?)([a-z]+)(\.log|\.lin)?(?:\*(\d{1,4}))?$/.exec(part) ?? [];
    if (!first.order.includes(id) || views.order.includes(id)) continue;
    views.order.push(id);
    if (off) views.hidden.add(id);
    if (axis) views.log.set(id, axis === ".log");
    if (height) views.heights.set(id, Math.max(SMALLEST_PLOT, Number(height)));
  }
  for (const id of first.order) {
    if (views.order.includes(id)) continue;
    views.order.push(id);
    if (first.hidden.has(id)) views.hidden.add(id);
  }
  if (views.hidden.size === views.order.length) views.hidden.delete(views.order[0]);
  return views;
}

/** The columns that the shown views need, of those that a run has. @param {string[]} columns @param {string} prefix of an optimizer @param {Set<string>} [hidden] */
export function neededColumns(columns, prefix, hidden = firstViews().hidden) {
  const shown = CHARTS.filter(({ id, ofTensors }) => !hidden.has(id) && !ofTensors);
  const wanted = new Set(shown.flatMap(({ lines, beside = [], ofOptimizer }) => [...lines.map(({ column }) => column), ...beside].map((name) => (ofOptimizer ? prefix : "") + name)));
  for (const own of ["loss", `${prefix}nonfinite_tensors`]) wanted.add(own); // marks stand on the loss; the other tells a measured NaN from an unknown one
  return [...wanted].filter((column) => columns.includes(column));
}

/** A line's values in a series. @param {ChartSpec} spec @param {LineSpec} line @param {SeriesLike} series @param {string} prefix */
export function lineOf(spec, line, series, prefix) {
  return series.line((spec.ofOptimizer ? prefix : "") + line.column);
}

/**
 * Exponential moving average that starts without a bias, as TensorBoard's scalars: `weight` in [0, 1).
 * What is `null` stays `null` and leaves the average as it is.
 *
 * @param {(number | null)[]} values @param {number} weight
 */
export function smoothed(values, weight) {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

/** @type {Record<Scale, (value: number) => number | null>} */
export const ONTO_AXIS = {
  linear: (value) => (Number.isFinite(value) ? value : null),
  log2: (value) => (value > 0 && Number.isFinite(value) ? Math.log2(value) : null),
  log10: (value) => (value > 0 && Number.isFinite(value) ? Math.log10(value) : null),
};

/**
 * What uPlot gets for one chart: x, then for each line its maxima, minima and values (and the smoothed ones).
 *
 * @param {ChartSpec} spec
 * @param {SeriesLike} series
 * @param {{scale: Scale, prefix: string, smoothing: number, xOf: (step: number) => number, beside?: boolean}} options
 *   `beside`: other runs are drawn too, so that single steps would cover them: plain lines are smoothed, what they were is faint
 * @returns {{data: (number | null)[][], edge: Edge}}
 *   `edge`: where the first line was not finite
 */
export function plotData(spec, series, { scale, prefix, smoothing, xOf, beside = false }) {
  const { length } = series;
  const map = ONTO_AXIS[scale];
  const convert = (/** @type {ArrayLike<number>} */ values) => Array.from(values, map);
  const nothing = () => new Array(length).fill(null);
  const x = new Array(length);
  for (let index = 0; index < length; index++) {
    x[index] = xOf(series.exact ? series.step[index] : (series.step[index] + series.stepLast[index]) / 2);
  }
  const data = [x];
  for (const line of spec.lines) {
    const column = lineOf(spec, line, series, prefix);
    const values = column ? convert((line.average && column.mean) || column.last) : nothing();
    const reduced = column !== null && !series.exact && line.only !== "last";
    const averaged = smoothing > 0 && (line.smooth || ((reduced || beside) && !line.stepped && !line.dash && !line.sparse && !line.average));
    const raw = averaged && !reduced && !line.smooth ? values : nothing();
    const [least, greatest] = (line.spread ?? []).map((name) => series.line(name));
    if (least && greatest) data.push(convert(greatest.max ?? greatest.last), convert(least.min ?? least.last)); // of all ranks
    else data.push(reduced ? convert(column.max) : raw, reduced && line.only !== "max" ? convert(column.min) : nothing());
    if (line.smooth) data.push(averaged && !reduced ? values : nothing()); // raw, behind; reduced, the band is that
    data.push(averaged ? smoothed(values, smoothing) : values);
  }
  return { data, edge: nonfiniteEdge(spec, series, prefix) };
}

/** @param {ChartSpec} spec @param {SeriesLike} series @param {string} prefix */
function nonfiniteEdge(spec, series, prefix) {
  /** @type {Edge} */
  const edge = { step: [], infinite: [] };
  const [{ column: name }] = spec.lines;
  const column = spec.ofOptimizer ? series.line(prefix + name) : null;
  if (!column) return edge;
  const measured = series.exact && name === "grad_norm" ? series.line(`${prefix}nonfinite_tensors`)?.last : null;
  for (let index = 0; index < series.length; index++) {
    const value = column.last[index];
    const infinite = column.inf ? column.inf[index] > 0 : value === Infinity || value === -Infinity;
    const nan = column.nan ? column.nan[index] > 0 : Number.isNaN(value) && !!measured && !Number.isNaN(measured[index]);
    if (!infinite && !nan) continue;
    edge.step.push((series.step[index] + series.stepLast[index]) / 2);
    edge.infinite.push(infinite);
  }
  return edge;
}

/** Steps to seconds since the start and back, by what is known of when steps closed. A clock set back stands still. */
export class TimeAxis {
  /** @param {Series} series of the whole run @param {Values} [updates] to these in place of seconds: updates done by the end of each entry */
  constructor(series, updates) {
    this.steps = Float64Array.from(updates ? series.stepLast : series.step);
    this.seconds = new Float64Array(series.length);
    const origin = updates ? 0 : series.wallTime[0] ?? 0;
    const known = updates ?? series.wallTime;
    let latest = 0;
    for (let index = 0; index < series.length; index++) {
      latest = Math.max(latest, known[index] - origin);
      this.seconds[index] = latest;
    }
  }

  /** @param {number} step */
  xOf(step) {
    return interpolated(this.steps, this.seconds, step);
  }

  /** @param {number} x */
  stepOf(x) {
    return interpolated(this.seconds, this.steps, x);
  }
}

/** Linear between known points; beyond them as from the first to the last. @param {Float64Array} from @param {Float64Array} to @param {number} at */
function interpolated(from, to, at) {
  if (!from.length) return at;
  if (from.length === 1) return to[0];
  const last = from.length - 1;
  if ((at < from[0] || at > from[last]) && from[last] > from[0]) {
    const end = at > from[last] ? last : 0;
    return to[end] + ((at - from[end]) / (from[last] - from[0])) * (to[last] - to[0]);
  }
  const right = Math.max(1, Math.min(last, lowerBound(from, at)));
  const span = from[right] - from[right - 1];
  if (span <= 0) return to[right];
  return to[right - 1] + ((at - from[right - 1]) / span) * (to[right] - to[right - 1]);
}

const STEPS_AXIS = { xOf: (/** @type {number} */ step) => step, stepOf: (/** @type {number} */ x) => x };

/** Index of the entry of a series that holds a step, -1 if none. @param {Series} series @param {number} step */
export function indexOfStep(series, step) {
  const after = lowerBound(series.step, step + 1);
  return after > 0 && series.stepLast[after - 1] >= step ? after - 1 : -1;
}

const SMALLEST_PLOT = 48;
const GUTTER = 82;
const PADDING_RIGHT = 30;
const GRIP_HEIGHT = 6;
const LANE_HEIGHT = 20;
const CROWDED_SHARE = 0.07; // of the width that bands of skipped steps may cover
const X_TICKS_HEIGHT = 24;
const X_LABEL_HEIGHT = 20;
const X_AXIS_HEIGHT = X_TICKS_HEIGHT + X_LABEL_HEIGHT;

export class Charts {
  /** @param {HTMLElement} root @param {ChartCallbacks} callbacks */
  constructor(root, callbacks) {
    this.root = root;
    this.callbacks = callbacks;
    /** @type {Model | null} */
    this.model = null;
    /** @type {{xOf: (step: number) => number, stepOf: (x: number) => number}} */
    this.xAxis = STEPS_AXIS;
    /** @type {Record<string, string>} */
    this.colors = {};
    /** @type {number | null} */
    this.cursorStep = null;
    /** Other runs in the same charts. @type {Overlay | null} */
    this.overlay = null;
    this.lanes = svg("svg", { class: "lanes", role: "group", "aria-label": "Marks by kind" });
    /** @type {{lane: Lane, clusters: Cluster[]}[]} */
    this.clusters = [];
    this.drawnMarks = "";
    this.optimizerSelect = element("select", {
      class: "small", hidden: true, "aria-label": "Optimizer whose gradient norm is shown",
      onchange: () => callbacks.optimizer(this.optimizerSelect.selectedIndex),
    });
    /** All of them. @type {Pane[]} */
    this.every = [...CHARTS, TENSOR_CHART].map((spec) => this.#pane(spec));
    this.gutter = GUTTER;
    /** Of all of it, in pixels, when it was drawn last. */
    this.room = { width: root.clientWidth, height: root.clientHeight };
    /** Of the plots, until the room or what stands above them changes. @type {{width: number, height: number}[] | null} */
    this.sizes = null;
    /** Whether the chosen tensor has a chart. */
    this.withTensor = false;
    /** Those that are shown, from top to bottom. @type {Pane[]} */
    this.panes = [];
    this.views = firstViews();
    this.setViews(this.views);
    this.lanes.addEventListener("keydown", (event) => this.#moveFocus(event));
  }

  /** Shows other views, in another order or height. @param {Views} views */
  setViews(views) {
    const focused = document.activeElement;
    const before = this.panes;
    this.views = views;
    this.panes = [...(this.withTensor ? [TENSOR_CHART.id] : []), ...views.order.filter((id) => !views.hidden.has(id))]
      .map((id) => /** @type {Pane} */ (this.every.find((pane) => pane.spec.id === id)));
    this.drawnMarks = "";
    if (before.length === this.panes.length && before.every((pane, at) => pane === this.panes[at])) {
      this.resize();
      return;
    }
    for (const pane of this.every) {
      pane.plot?.destroy(); // the x axis stands below the last one, whichever that is
      pane.plot = null;
      pane.made = [];
    }
    this.root.replaceChildren(this.lanes, ...(this.overlay ? [this.overlay.strip] : []), ...this.panes.flatMap((pane) => [pane.element, pane.grip]));
    if (focused instanceof HTMLElement && this.root.contains(focused)) focused.focus();
    this.resize();
  }

  /** Room for longer names beside the plots, and a chart of a tensor. @param {number} gutter @param {boolean} withTensor */
  setTensors(gutter, withTensor) {
    if (gutter === this.gutter && withTensor === this.withTensor) return;
    const rebuild = gutter !== this.gutter;
    this.gutter = gutter;
    this.withTensor = withTensor;
    if (rebuild) this.panes = [];
    this.setViews(this.views);
  }

  /** The x axis, for what stands below the charts. @returns {Geometry} */
  get geometry() {
    const [min, max] = this.#xRange();
    const { xAxis, gutter, plotWidth } = this;
    return { left: gutter, width: plotWidth, time: this.shown.axis === "time", min, max, xOf: (step) => xAxis.xOf(step), stepOf: (x) => xAxis.stepOf(x) };
  }

  /** The lines that are drawn of the steps' own series. */
  get lines() {
    const { series, prefix } = this.shown;
    return this.panes.filter(({ spec }) => !spec.ofTensors).flatMap(({ spec }) => spec.lines.flatMap((line) => {
      const column = lineOf(spec, line, series, prefix);
      return column ? [{ spec, line, column }] : [];
    }));
  }

  /** @param {Overlay} overlay */
  setOverlay(overlay) {
    this.overlay = overlay;
    this.lanes.after(overlay.strip);
  }

  /** The view at a height of the window, the first where there is none. @param {number} y */
  specAt(y) {
    const found = this.panes.find(({ element: { offsetHeight }, element: box }) => y <= box.getBoundingClientRect().top + offsetHeight) ?? this.panes[0];
    return found.spec;
  }

  /** As CSS takes it: beside other runs, a view's first line has its run's colour. @param {ChartSpec} spec @param {LineSpec} line */
  #cssColor(spec, line) {
    return this.overlay?.active && line === spec.lines[0] && spec !== TENSOR_CHART ? this.overlay.currentColor : `var(${line.color})`;
  }

  /** Beside other runs, a second plain line would be taken for one of theirs. @param {ChartSpec} spec @param {LineSpec} line */
  #isLeftOut(spec, line) {
    return !!this.overlay?.active && line !== spec.lines[0] && !line.dash && spec !== TENSOR_CHART;
  }

  /** @param {ChartSpec} spec @param {LineSpec} line @param {number} [alpha] */
  #color(spec, line, alpha = 1) {
    if (this.#isLeftOut(spec, line)) return "#0000";
    const css = this.#cssColor(spec, line);
    return withAlpha(css.startsWith("#") ? css : this.colors[line.color], alpha);
  }

  /** What a person changed of the views. @param {(views: Views) => void} change */
  #changeViews(change) {
    const { order, hidden, heights, log } = this.views;
    const views = { order: [...order], hidden: new Set(hidden), heights: new Map(heights), log: new Map(log) };
    change(views);
    this.callbacks.views(views);
  }

  /** @param {string} id @param {1 | -1} by past the next one that is shown */
  #move(id, by) {
    const shown = this.panes.map(({ spec }) => spec.id);
    const other = shown[shown.indexOf(id) + by];
    if (other === undefined) return;
    this.#changeViews((views) => {
      views.order.splice(views.order.indexOf(id), 1);
      views.order.splice(views.order.indexOf(other) + (by > 0 ? 1 : 0), 0, id);
    });
  }

  /** The bar below a view: dragged, or moved by keys, it makes the view higher. @param {ChartSpec} spec */
  #grip(spec) {
    const grip = element("div", {
      class: "grip", role: "separator", tabindex: 0, "aria-orientation": "horizontal", "aria-label": `Height of ${spec.title}`,
      "aria-valuemin": SMALLEST_PLOT, "aria-valuemax": 2000, title: "Drag, or use the arrow keys; double click: as at first",
    });
    const height = () => Number(grip.getAttribute("aria-valuenow"));
    const set = (/** @type {number | null} */ pixels) => this.#changeViews(({ heights }) => {
      if (pixels === null) heights.delete(spec.id);
      else heights.set(spec.id, Math.max(SMALLEST_PLOT, Math.min(2000, Math.round(pixels))));
    });
    grip.addEventListener("keydown", (event) => {
      const by = { ArrowUp: -16, ArrowDown: 16, PageUp: -64, PageDown: 64 }[event.key];
      if (by === undefined && event.key !== "Home") return;
      event.preventDefault();
      set(by === undefined ? null : height() + by);
    });
    grip.addEventListener("dblclick", () => set(null));
    grip.addEventListener("pointerdown", (event) => {
      const [start, before] = [event.clientY, height()];
      grip.setPointerCapture(event.pointerId);
      const drag = (/** @type {PointerEvent} */ moved) => { if (moved.clientY !== start) set(before + moved.clientY - start); };
      grip.addEventListener("pointermove", drag);
      grip.addEventListener("lostpointercapture", () => grip.removeEventListener("pointermove", drag), { once: true });
    });
    return grip;
  }

  /** The model, once there is one. */
  get shown() {
    return /** @type {Model} */ (this.model);
  }

  /** @param {ChartSpec} spec @returns {Pane} */
  #pane(spec) {
    const legend = element("ul", "key");
    const title = element("h2", {}, spec.title);
    const tools = element("div", "chart-tools");
    const log = button("log", "Logarithmic axis", () => this.#changeViews((views) => views.log.set(spec.id, this.#scaleOf(spec) !== "log10")));
    log.setAttribute("aria-label", `Logarithmic axis of ${spec.title}`);
    if (spec !== TENSOR_CHART) tools.append(element(
      "span", "chart-order",
      iconButton("↑", `Move ${spec.title} up`, () => this.#move(spec.id, -1)), iconButton("↓", `Move ${spec.title} down`, () => this.#move(spec.id, 1)),
      iconButton("✕", `Hide ${spec.title}`, () => this.#changeViews(({ hidden }) => { if (this.panes.length > 1) hidden.add(spec.id); })),
    ));
    else tools.append(element("span", "chart-order", iconButton("✕", "Close the tensor", () => this.callbacks.closeTensor())));
    if (spec.canLog) tools.append(log);
    if (spec.id === "norm") tools.append(this.optimizerSelect);
    const summary = element("p", { class: "visually-hidden", id: `summary-${spec.id}` });
    const holder = element("div", {
      class: "plot", tabindex: 0, role: "slider", "aria-label": `${spec.title}: cursor`, "aria-describedby": summary.id,
      "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, onkeydown: (event) => this.callbacks.key(event),
    });
    const pane = element(
      "section", { class: "chart", "data-chart": spec.id },
      element("header", "chart-head", title, legend, tools),
      holder, summary,
    );
    const overlay = svg("svg", { class: "on-curve", "aria-hidden": "true" });
    return { spec, element: pane, grip: this.#grip(spec), log, title, holder, summary, legend, plot: null, empty: false, ranges: [], widths: [], made: [], data: [], edge: { step: [], infinite: [] }, overlay };
  }

  /** Names in the select of optimizers; hidden where there is one. @param {string[]} names @param {number} chosen */
  setOptimizers(names, chosen) {
    this.optimizerSelect.hidden = names.length < 2;
    this.optimizerSelect.replaceChildren(...names.map((name) => element("option", {}, name)));
    this.optimizerSelect.selectedIndex = chosen;
  }

  /** Draws a model. Costs about a millisecond for each thousand points. @param {Model} model */
  show(model) {
    const before = this.model;
    this.model = model;
    if (model.axis !== before?.axis || model.overview !== before.overview) {
      const updates = model.axis === "updates" ? model.overview.line("updates") : null;
      this.xAxis = model.axis === "time" ? new TimeAxis(model.overview) : updates ? new TimeAxis(model.overview, updates.max) : STEPS_AXIS;
    }
    for (const { log, spec } of this.panes) log.setAttribute("aria-pressed", String(this.#scaleOf(spec) === "log10"));
    this.room = { width: this.root.clientWidth, height: this.root.clientHeight }; // once, before what is written makes reading dear
    if (!this.room.width || !this.room.height) return; // hidden; `resize` draws when it is not
    if (!Object.keys(this.colors).length) this.#readColors();
    this.#layoutLanes();
    const fresh = this.panes.map((pane) => this.#prepare(pane));
    const sizes = (this.sizes ??= this.#sizes()); // after what stands above the plots has its height
    const [min, max] = this.#xRange();
    this.panes.forEach((pane, index) => {
      pane.plot ??= this.#plot(pane, index, sizes[index]);
      const { plot } = pane;
      plot.axes[0].label = this.#xLabel(index);
      pane.grip.setAttribute("aria-valuenow", String(sizes[index].height - this.#below(index)));
      if (plot.width !== sizes[index].width || plot.height !== sizes[index].height) plot.setSize(sizes[index]);
      plot.batch(() => {
        if (fresh[index]) plot.setData(/** @type {any} */ (pane.data), false);
        this.#setWidths(pane, plot);
        if (pane.empty && !fresh[index]) plot.redraw(false); // why may have changed
        plot.setScale("x", { min, max });
      });
    });
  }

  /**
   * Lines whose points crowd are drawn a pixel wide: where they go up and down in every pixel a wider one shows no more,
   * and takes fifty times as long to draw.
   * @param {Pane} pane @param {Plot} plot
   */
  #setWidths({ spec, widths }, plot) {
    const { step } = this.#seriesOf(spec);
    const [from, to] = this.shown.view;
    const crowded = 2 * (lowerBound(step, to) - lowerBound(step, from)) > this.plotWidth;
    plot.series.forEach((one, at) => { if (widths[at]) one.width = crowded ? 1 : widths[at]; });
  }

  /** Computes what a chart draws, where that has changed, and says it in words. @param {Pane} pane @returns {boolean} whether it has */
  #prepare(pane) {
    const { prefix, smoothing } = this.shown;
    const series = this.#seriesOf(pane.spec);
    const scale = this.#scaleOf(pane.spec);
    const beside = !!this.overlay?.active;
    const made = [series, scale, prefix, smoothing, this.xAxis, beside];
    const changed = made.some((part, at) => part !== pane.made[at]);
    if (changed) {
      const xOf = (/** @type {number} */ step) => this.xAxis.xOf(step);
      Object.assign(pane, { made }, plotData(pane.spec, series, { scale, prefix, smoothing, xOf, beside }));
    }
    this.#describe(pane);
    return changed;
  }

  /** @param {ChartSpec} spec @returns {SeriesLike} */
  #seriesOf(spec) {
    return spec.ofTensors ? this.shown.tensors[spec.ofTensors] ?? NOTHING : this.shown.series;
  }

  /** The room has changed, or the panel has become visible. */
  resize() {
    this.sizes = null;
    if (this.model) this.show(this.model);
  }

  /** Dark or light. */
  recolor() {
    this.#readColors();
    for (const { plot } of this.panes) plot?.redraw(false);
  }

  /** @param {number | null} step */
  setCursor(step) {
    this.cursorStep = step;
    for (const { plot, holder } of this.panes) {
      if (!plot) continue;
      const left = step === null ? -10 : plot.valToPos(this.xAxis.xOf(step), "x");
      const { width, height } = areaOf(plot);
      const inside = step !== null && left >= 0 && left <= width;
      plot.setCursor({ left: inside ? left : -10, top: inside ? height / 2 : -10 }, false);
      if (step !== null) holder.setAttribute("aria-valuenow", String(step));
    }
  }

  /** Says what the cursor is on, for screen readers. @param {string} text */
  setCursorText(text) {
    for (const { holder } of this.panes) holder.setAttribute("aria-valuetext", text);
  }

  /** Where a step stands in pixels of the window. @param {number} step */
  clientX(step) {
    const { plot } = this.panes[0];
    return plot ? plot.over.getBoundingClientRect().left + plot.valToPos(this.xAxis.xOf(step), "x") : 0;
  }

  /** Pixels across the plots. */
  get plotWidth() {
    return Math.max(100, this.room.width - this.gutter - PADDING_RIGHT);
  }

  #readColors() {
    const read = styled();
    const names = ["--text-2", "--grid", "--skip-band", "--skip-tick", "--selected", "--nonfinite", ...this.every.flatMap(({ spec }) => spec.lines.map((line) => line.color))];
    this.colors = Object.fromEntries(names.map((name) => [name, read(name)]));
  }

  /** @param {ChartSpec} spec @returns {Scale} */
  #scaleOf(spec) {
    const log = spec.canLog ? this.views.log.get(spec.id) : undefined;
    return log === undefined ? spec.scale : log ? "log10" : "linear";
  }

  /** @returns {[number, number]} */
  #xRange() {
    const { view } = this.shown;
    const [min, max] = [this.xAxis.xOf(view[0]), this.xAxis.xOf(view[1])];
    return max > min ? [min, max] : [min - 0.5, max + 0.5];
  }

  /** @returns {{width: number, height: number}[]} of each plot */
  #sizes() {
    const heads = this.panes.reduce((sum, pane) => {
      const head = /** @type {HTMLElement} */ (pane.element.firstElementChild);
      return sum + head.offsetHeight + parseFloat(getComputedStyle(pane.element).marginTop);
    }, 0);
    const laneHeight = Number(this.lanes.getAttribute("height")) + (this.overlay?.stripHeight ?? 0);
    const { heights } = this.views;
    const given = this.panes.reduce((sum, { spec }) => sum + (heights.get(spec.id) ?? 0), 0);
    const total = this.room.height - heads - laneHeight - X_AXIS_HEIGHT - 10 - given - GRIP_HEIGHT * this.panes.length;
    const weights = this.panes.reduce((sum, { spec }) => sum + (heights.has(spec.id) ? 0 : spec.weight), 0);
    return this.panes.map(({ spec }, index) => ({
      width: this.room.width,
      height: Math.round(heights.get(spec.id) ?? Math.max(spec.minHeight, (total * spec.weight) / weights)) + this.#below(index),
    }));
  }

  /** Pixels below what a view's height means: the last one has the x axis. @param {number} index */
  #below(index) {
    return index === this.panes.length - 1 ? X_AXIS_HEIGHT : 4;
  }

  /** @param {Pane} pane @param {number} index @param {{width: number, height: number}} size */
  #plot(pane, index, size) {
    const { spec } = pane;
    const last = index === this.panes.length - 1;
    const color = (/** @type {string} */ name) => () => this.colors[name];
    const stepped = uPlot.paths.stepped?.({ align: 1 });

    /** @type {PlotSeries[]} */
    const series = [{}];
    pane.ranges = [];
    for (const line of spec.lines) {
      const faint = (/** @type {number} */ alpha) => () => this.#color(spec, line, alpha);
      const full = faint(1);
      const edge = { stroke: faint(0.45), width: 1, points: { show: false } };
      series.push(edge, { ...edge });
      pane.ranges.push({ line, at: series.length - 2 });
      /** @type {PlotSeries} */
      const drawn = {
        stroke: full, width: line.width, dash: line.dash, spanGaps: line.sparse,
        paths: line.stepped ? stepped : undefined,
        points: { show: line.stepped || line.dash ? false : this.#showPoints, size: 5, filter: /** @type {any} */ (isolated), fill: full, stroke: full },
      };
      if (line.smooth) series.push({ ...drawn, stroke: faint(0.35), width: 1, points: { ...drawn.points, fill: faint(0.5), stroke: faint(0) } });
      series.push(drawn);
    }
    pane.widths = series.map(({ width = 0, dash, paths }) => (width > 1 && !dash && !paths ? width : 0));

    const axis = { stroke: color("--text-2"), font: `11px ${FONT}`, labelFont: `11px ${FONT}` };
    /** @type {PlotOptions} */
    const options = {
      ...size,
      padding: [8, PADDING_RIGHT, last ? 0 : 4, 0],
      legend: { show: false },
      series,
      scales: {
        x: { time: false, auto: false },
        y: { range: (_, min, max) => this.#yRange(spec, min, max) },
      },
      axes: [
        {
          ...axis,
          size: last ? X_TICKS_HEIGHT : 1,
          gap: 6,
          label: this.#xLabel(index),
          labelSize: X_LABEL_HEIGHT,
          labelGap: 0,
          space: 90,
          splits: (u, _, min, max) => this.#xTicks(u, min, max),
          values: (_, splits) => (last ? (this.model?.axis === "time" ? timeLabels(splits) : stepLabels(splits)) : splits.map(() => "")),
          grid: { stroke: color("--grid"), width: 1 },
          ticks: { show: last, stroke: color("--grid"), width: 1, size: 5 },
        },
        {
          ...axis,
          size: () => this.gutter,
          gap: 8,
          splits: (u, _, min, max) => this.#yTicks(spec, min, max, areaOf(u).height || size.height),
          values: (_, splits) => this.#yLabels(spec, splits),
          grid: { stroke: color("--grid"), width: 1 },
          ticks: { show: false },
        },
      ],
      cursor: {
        y: false,
        sync: { key: "tbnum", scales: ["x", null] },
        // A cursor that snaps looks like a drag to uPlot, which would swallow the click.
        drag: { x: true, y: false, setScale: false, dist: 5, click: () => {} },
        move: (u, left, top) => [this.#snapped(u, left), top],
        dataIdx: (u, _, hovered, x) => (this.model?.series.exact && x <= u.data[0][u.data[0].length - 1] ? hovered : /** @type {any} */ (null)),
        points: {
          size: 7,
          show: (u, at) => /** @type {any} */ ((u.series[at].width ?? 0) <= 1 ? false : element("div", "cursor-point")),
          width: 0,
        },
        bind: { dblclick: () => () => { this.callbacks.reset(); return null; } },
      },
      hooks: {
        drawClear: [(u) => this.#drawBands(u)],
        drawAxes: [(u) => this.#drawRanges(u, pane), (u) => this.overlay?.drawLines(u, spec, this.#scaleOf(spec))],
        draw: [(u) => this.#drawn(u, pane)],
        setCursor: [(u) => this.#hovered(u)],
        setSelect: [(u) => this.#selected(u)],
      },
    };
    const plot = new uPlot(options, /** @type {any} */ (pane.data), pane.holder);
    plot.over.append(pane.overlay);
    plot.over.addEventListener("wheel", (event) => this.#wheel(event, plot), { passive: false });
    let pressed = NaN;
    plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      if (event.target === plot.over && Math.abs(event.clientX - pressed) < 4) this.callbacks.pin(this.#stepAt(plot, event.clientX - plot.over.getBoundingClientRect().left));
    });
    plot.over.addEventListener("mouseleave", () => this.callbacks.hover(null));
    return plot;
  }

  /** Dots where steps are far enough apart to be told from each other. @param {Plot} plot @param {number} _ @param {number} from @param {number} to */
  #showPoints = (plot, _, from, to) => !!this.model?.series.exact && (to - from + 1) * 9 < areaOf(plot).width;

  /** @param {ChartSpec} spec @param {number | null} min @param {number | null} max @returns {[number, number]} */
  #yRange(spec, min, max) {
    const pane = /** @type {Pane} */ (this.panes.find((candidate) => candidate.spec === spec));
    const others = this.overlay?.range(spec, this.#scaleOf(spec));
    if (others) [min, max] = [Math.min(min ?? Infinity, others[0]), Math.max(max ?? -Infinity, others[1])];
    pane.empty = min === null || max === null;
    if (min === null || max === null) return spec.scale === "log2" ? [0, 4] : [0, 1];
    switch (this.#scaleOf(spec)) {
      case "log2": {
        const [low, high] = [Math.floor(min) - 0.7, Math.ceil(max) + 0.7];
        return [low, high];
      }
      case "log10": {
        const pad = Math.max(0.08, (max - min) * 0.08);
        return [min - pad, max + pad];
      }
      default: {
        const span = max - min || Math.abs(max) * 0.2 || 1;
        return [min - span * 0.07, max + span * 0.1];
      }
    }
  }

  /** @param {ChartSpec} spec @param {number} min @param {number} max @param {number} height */
  #yTicks(spec, min, max, height) {
    if (this.panes.find((pane) => pane.spec === spec)?.empty) return [];
    const count = Math.max(3, Math.floor(height / 28));
    switch (this.#scaleOf(spec)) {
      case "log2": return log2Ticks(min, max, count);
      case "log10": return log10Ticks(min, max, count);
      default: return linearTicks(min, max, count);
    }
  }

  /** @param {ChartSpec} spec @param {number[]} ticks */
  #yLabels(spec, ticks) {
    switch (this.#scaleOf(spec)) {
      case "log2": return log2Labels(ticks);
      case "log10": return log10Labels(ticks);
      default: return linearLabels(ticks);
    }
  }

  /** @param {Plot} plot @param {number} min @param {number} max */
  #xTicks(plot, min, max) {
    const count = Math.max(2, Math.floor(areaOf(plot).width / 100));
    return this.model?.axis === "time" ? timeTicks(min, max, count) : linearTicks(min, max, count, 1);
  }

  /** The pixel of the step nearest to a pixel. @param {Plot} plot @param {number} left */
  #snapped(plot, left) {
    if (!this.model || left < 0) return left;
    const at = plot.valToPos(this.xAxis.xOf(this.#stepAt(plot, left)), "x");
    return Math.max(0, Math.min(areaOf(plot).width, at));
  }

  /** @param {Plot} plot @param {number} left */
  #stepAt(plot, left) {
    const { view } = this.shown;
    const step = Math.round(this.xAxis.stepOf(plot.posToVal(left, "x")));
    return Math.max(Math.ceil(view[0]), Math.min(Math.floor(view[1]), step));
  }

  /** @param {Plot} plot */
  #hovered(plot) {
    const left = plot.cursor.left ?? -1;
    if (!this.model || left < 0 || !plot.cursor.event) return;
    const step = this.#stepAt(plot, left);
    if (step === this.cursorStep) return;
    this.cursorStep = step;
    this.callbacks.hover(step);
  }

  /** @param {Plot} plot */
  #selected(plot) {
    const { left, width } = plot.select;
    if (width < 2) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (!plot.cursor.event) return; // the other charts only show what is selected in this one
    const [from, to] = [left, left + width].map((at) => this.xAxis.stepOf(plot.posToVal(at, "x")));
    this.callbacks.zoom(from, to);
  }

  /** @param {WheelEvent} event @param {Plot} plot */
  #wheel(event, plot) {
    if (!this.model) return;
    const stepAt = (/** @type {number} */ x) => this.xAxis.stepOf(plot.posToVal(x - plot.over.getBoundingClientRect().left, "x"));
    wheelZoom(event, this.model.view, areaOf(plot).width, stepAt, this.callbacks.zoom);
  }

  // ---- What is ours on the canvas

  /** uPlot has drawn, so its scales are settled: what hangs on them follows. @param {Plot} plot @param {Pane} pane */
  #drawn(plot, pane) {
    this.#drawEdge(plot, pane);
    if (pane.empty) this.#drawNothing(plot, pane);
    this.overlay?.drawNumbers(plot, pane.spec); // above all lines
    if (pane !== this.panes[this.panes.length - 1] || this.panes.some(({ plot: other }) => !other)) return;
    this.#drawMarks();
    this.overlay?.drawStrip(this.gutter, this.plotWidth);
    this.setCursor(this.cursorStep);
  }

  /** Grey bands at skipped steps, or ticks at the lower edge where bands would flood the chart, and the selected event's line, below everything else. @param {Plot} plot */
  #drawBands(plot) {
    if (!this.model) return;
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const [min, max] = this.#xRange();
    const perPixel = (max - min) / bbox.width;
    const at = (/** @type {number} */ step) => bbox.left + (this.xAxis.xOf(step) - min) / perPixel;
    const skips = this.model.lanes.find((lane) => lane.kind.id === "skip")?.steps ?? [];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = this.colors["--skip-band"];
    const { view } = this.model;
    const inView = lowerBound(skips, view[1] + 1) - lowerBound(skips, view[0]);
    const crowded = inView * 1.5 * ratio > bbox.width * CROWDED_SHARE && inView > 20;
    const top = crowded ? bbox.top + bbox.height - 6 * ratio : bbox.top;
    const thinnest = (crowded ? 1 : 1.5) * ratio;
    if (crowded) ctx.fillStyle = this.colors["--skip-tick"];
    let drawnTo = -Infinity;
    for (let index = lowerBound(skips, view[0] - 1); index < skips.length && skips[index] <= view[1] + 1; ) {
      const step = skips[index];
      const [left, right] = [at(step - 0.5), at(step + 0.5)];
      const width = Math.min(Math.max(right - left, thinnest), 14 * ratio);
      const start = Math.max(drawnTo, (left + right - width) / 2);
      const end = (left + right + width) / 2;
      if (end > start) ctx.fillRect(start, top, end - start, bbox.top + bbox.height - top);
      drawnTo = end;
      const next = lowerBound(skips, Math.max(step + 1, this.xAxis.stepOf(min + (end - width / 2 - bbox.left) * perPixel)));
      index = Math.max(index + 1, next);
    }
    ctx.fillStyle = this.colors["--selected"];
    if (this.model.selected) ctx.fillRect(Math.round(at(this.model.selected.step)) - ratio / 2, bbox.top, Math.max(1, ratio), bbox.height);
    if (this.model.pinned !== null) {
      ctx.strokeStyle = this.colors["--text-2"];
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(at(this.model.pinned), bbox.top);
      ctx.lineTo(at(this.model.pinned), bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  /** From the least to the greatest of each bucket, as bars that touch: an outline that is filled takes ten times as long. @param {Plot} plot @param {Pane} pane */
  #drawRanges(plot, { spec, ranges }) {
    const { ctx, bbox, data } = plot;
    const [first, last] = plot.series[0].idxs ?? [0, -1];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const { line, at } of ranges) {
      const [highs, lows] = [data[at], data[at + 1]];
      ctx.fillStyle = this.#color(spec, line, 0.2);
      let [left, high, low] = [NaN, -Infinity, Infinity];
      for (let index = first; index <= last; index++) {
        high = Math.max(high, highs[index] ?? -Infinity);
        low = Math.min(low, lows[index] ?? Infinity);
        const right = Math.round(plot.valToPos((data[0][index] + data[0][Math.min(index + 1, data[0].length - 1)]) / 2, "x", true));
        if (right === left) continue; // buckets in one pixel are one bar
        if (high >= low) {
          const top = plot.valToPos(high, "y", true);
          ctx.fillRect(left || right - 1, top, right - (left || right - 1), Math.max(1, plot.valToPos(low, "y", true) - top));
        }
        [left, high, low] = [right, -Infinity, Infinity];
      }
    }
    ctx.restore();
  }

  /** Ticks at the upper edge where the first line was not finite: a triangle for infinity, a cross for NaN. @param {Plot} plot @param {Pane} pane */
  #drawEdge(plot, pane) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const [min, max] = this.#xRange();
    const size = 4 * ratio;
    ctx.save();
    ctx.fillStyle = ctx.strokeStyle = this.colors["--nonfinite"];
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([]); // uPlot leaves that of its last line
    let drawnTo = -Infinity;
    for (let index = lowerBound(pane.edge.step, this.shown.view[0]); index < pane.edge.step.length; index++) {
      const x = bbox.left + ((this.xAxis.xOf(pane.edge.step[index]) - min) / (max - min)) * bbox.width;
      if (x > bbox.left + bbox.width + 1) break;
      if (x < drawnTo + 2 * size) continue; // crosses that overlap are none
      drawnTo = x;
      const top = bbox.top + 1 * ratio;
      ctx.beginPath();
      if (pane.edge.infinite[index]) {
        ctx.moveTo(x, top);
        ctx.lineTo(x + size, top + 1.7 * size);
        ctx.lineTo(x - size, top + 1.7 * size);
        ctx.closePath();
        ctx.fill();
      } else {
        ctx.moveTo(x - size, top);
        ctx.lineTo(x + size, top + 2 * size);
        ctx.moveTo(x + size, top);
        ctx.lineTo(x - size, top + 2 * size);
        ctx.stroke();
      }
    }
    ctx.restore();
  }

  /** @param {ChartSpec} spec */
  #emptyText(spec) {
    const series = this.#seriesOf(spec);
    const recorded = spec.lines.some((line) => lineOf(spec, line, series, this.shown.prefix)?.last.some(Number.isFinite));
    return recorded ? "no finite value in view" : this.shown.whyEmpty(spec);
  }

  /** @param {Plot} plot @param {Pane} pane */
  #drawNothing({ ctx, bbox }, { spec }) {
    const text = this.#emptyText(spec);
    ctx.save();
    ctx.fillStyle = this.colors["--text-2"];
    ctx.font = `${12 * (devicePixelRatio || 1)}px ${FONT}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillText(text, bbox.left + bbox.width / 2, bbox.top + bbox.height / 2);
    ctx.restore();
  }

  // ---- Marks

  #shownLanes() {
    const { lanes, hidden } = this.shown;
    return shownLanes(lanes, hidden);
  }

  #layoutLanes() {
    const { length } = this.#shownLanes();
    const height = String(length * LANE_HEIGHT + (length ? 6 : 0));
    if (this.overlay?.layStrip(this.gutter, this.plotWidth) || this.lanes.getAttribute("height") !== height) this.sizes = null;
    this.lanes.setAttribute("height", height);
    this.lanes.setAttribute("width", String(this.room.width));
  }

  #drawMarks() {
    const model = this.shown;
    const { plot } = this.panes[0];
    const curve = this.every[0];
    if (!plot) return;
    const { left, width } = areaOf(plot);
    const [min, max] = this.#xRange();
    const lanes = this.#shownLanes();
    this.clusters = lanes.map((lane) => {
      const positions = model.axis !== "step" ? lane.steps.map((step) => this.xAxis.xOf(step)) : lane.steps;
      return { lane, clusters: cluster(positions, { min, max, width }) };
    });
    const key = JSON.stringify([width, curve.plot && areaOf(curve.plot).height, left, min, max, model.selected?.step, model.selected?.kind, model.series.header.version,
      lanes.map((lane) => [lane.kind.id, lane.steps.length]), curve.plot?.scales.y.min, curve.plot?.scales.y.max, model.series.bucketSteps]);
    if (key === this.drawnMarks) return;
    this.drawnMarks = key;

    const focused = /** @type {SVGElement | null} */ (this.lanes.contains(document.activeElement) ? document.activeElement : null);
    const focusKey = focused?.dataset.key;
    const rows = this.clusters.map(({ lane, clusters }, row) => this.#laneRow(lane, clusters, row, left, width));
    this.lanes.replaceChildren(...rows);
    const marks = /** @type {NodeListOf<SVGElement>} */ (this.lanes.querySelectorAll(".mark"));
    let target = marks[0];
    for (const mark of marks) if (mark.dataset.key === focusKey) target = mark;
    target?.setAttribute("tabindex", "0");
    if (focusKey !== undefined) target?.focus();

    const drawn = curve.plot;
    if (!drawn) return;
    curve.overlay.replaceChildren(...onCurve(this.clusters.map(({ clusters }) => clusters), width).map(({ lane, cluster: placed }) => {
      const { lane: source } = this.clusters[lane];
      const event = eventAt(source, placed.first);
      const y = this.#curveY(drawn, source, placed.first);
      const mark = svg(
        "g", { class: `mark lane-${source.kind.id}${event === model.selected ? " selected" : ""}`, transform: `translate(${placed.x.toFixed(1)} ${y.toFixed(1)})` },
        svg("circle", { class: "halo", r: 10 }), svg("circle", { class: "hit", r: 12 }), glyph(source.kind),
      );
      this.#wire(mark, source, placed);
      return mark;
    }));
  }

  /** Where on the loss curve an event stands; at the upper edge where the loss was not finite. @param {Plot} plot @param {Lane} lane @param {number} index */
  #curveY(plot, lane, index) {
    const { series } = this.shown;
    const step = lane.steps[index];
    const at = indexOfStep(series, step);
    const line = series.line("loss");
    const known = eventAt(lane, index).data.loss;
    let value = series.exact && line && at >= 0 ? line.last[at] : known ?? (line && at >= 0 ? line.last[at] : null);
    if (lane.kind.id === "nonfinite_loss" || typeof value !== "number" || !Number.isFinite(value)) value = Infinity;
    const mapped = ONTO_AXIS[this.#scaleOf(CHARTS[0])](value);
    const y = mapped === null ? 0 : plot.valToPos(mapped, "y");
    return Math.max(8, Math.min(areaOf(plot).height - 8, y));
  }

  /** @param {Lane} lane @param {Cluster[]} clusters @param {number} row @param {number} left @param {number} width */
  #laneRow(lane, clusters, row, left, width) {
    const middle = row * LANE_HEIGHT + LANE_HEIGHT / 2 + 1;
    return svg(
      "g", { class: `lane lane-${lane.kind.id}`, "data-lane": lane.kind.id, role: "group", "aria-label": counted(lane.steps.length, lane.kind.name, lane.kind.plural) },
      svg("text", { class: "lane-label", x: 18, y: middle + 4, "aria-hidden": "true" }, lane.kind.label),
      svg("line", { class: "lane-line", x1: left, x2: left + width, y1: middle, y2: middle }),
      ...clusters.map((one) => this.#laneMark(lane, one, left, middle)),
    );
  }

  /** @param {Lane} lane @param {Cluster} one @param {number} left @param {number} middle */
  #laneMark(lane, one, left, middle) {
    const event = eventAt(lane, one.first);
    const { selected } = this.shown;
    const steps = [lane.steps[one.first], lane.steps[one.first + one.count - 1]];
    const chosen = one.single ? event === selected
      : selected && selected.step <= steps[1] && (selected.data.last_step ?? selected.step) >= steps[0] && lane.events.includes(selected);
    const what = one.count === 1
      ? `${lane.kind.name} at step ${formatCount(steps[0])}`
      : `${formatCount(one.count)} ${lane.kind.plural}, ${one.single ? `step ${formatCount(steps[0])}` : `steps ${formatCount(steps[0])} to ${formatCount(steps[1])}`}`;
    const mark = svg("g", {
      class: `mark lane-${lane.kind.id}${chosen ? " selected" : ""}`, role: "button", tabindex: -1, "aria-label": what,
      transform: `translate(${(left + one.x).toFixed(1)} ${middle})`,
      "data-key": `${lane.kind.id}:${steps[0]}`, "data-step": steps[0], "data-count": one.count, "data-kind": lane.kind.id,
    });
    if (one.count === 1) {
      mark.append(svg("circle", { class: "halo", r: 9 }), svg("rect", { class: "hit", x: -8, y: -LANE_HEIGHT / 2, width: 16, height: LANE_HEIGHT }), glyph(lane.kind));
    } else {
      const width = pillWidth(one.count);
      mark.append(
        svg("rect", { class: "pill", x: -width / 2, y: -8, width, height: 16, rx: 8 }),
        svg("text", { class: "pill-count", y: 3.8, "text-anchor": "middle" }, formatCount(one.count)),
      );
    }
    this.#wire(mark, lane, one);
    return mark;
  }

  /** @param {SVGElement} mark @param {Lane} lane @param {Cluster} one */
  #wire(mark, lane, one) {
    const event = eventAt(lane, one.first);
    const step = lane.steps[one.first]; // within the event's stretch, for a non-finite loss
    const activate = () => {
      if (one.single) return this.callbacks.select(event);
      const [first, last] = [lane.steps[one.first], lane.steps[one.first + one.count - 1]];
      const around = Math.max(2, (last - first) * 0.15);
      this.callbacks.zoom(first - around, last + around);
    };
    mark.addEventListener("mousedown", (press) => press.stopPropagation());
    mark.addEventListener("click", (press) => {
      press.stopPropagation(); // the plot below would pin the step
      activate();
    });
    mark.addEventListener("keydown", (press) => {
      if (press.key !== "Enter" && press.key !== " ") return;
      press.preventDefault();
      activate();
    });
    const look = () => {
      this.setCursor(step);
      this.callbacks.hover(step);
    };
    mark.addEventListener("mouseenter", look);
    mark.addEventListener("focus", () => { if (mark.matches(":focus-visible")) look(); });
    mark.addEventListener("mouseleave", () => this.callbacks.hover(null));
    mark.addEventListener("blur", () => this.callbacks.hover(null));
  }

  /** Arrows move between marks: left and right in a lane, up and down between lanes. @param {KeyboardEvent} event */
  #moveFocus(event) {
    const from = /** @type {SVGElement} */ (event.target);
    const row = from.parentElement;
    if (!row || !from.classList.contains("mark")) return;
    /** @type {Element | null | undefined} */
    let to;
    if (event.key === "ArrowRight") to = from.nextElementSibling;
    else if (event.key === "ArrowLeft") to = from.previousElementSibling;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const other = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
      const marks = /** @type {SVGElement[]} */ ([...(other?.querySelectorAll(".mark") ?? [])]);
      const at = from.getBoundingClientRect().left;
      to = marks.sort((a, b) => Math.abs(a.getBoundingClientRect().left - at) - Math.abs(b.getBoundingClientRect().left - at))[0];
    } else return;
    event.preventDefault();
    if (!to?.classList.contains("mark")) return;
    from.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    /** @type {SVGElement} */ (to).focus();
  }

  // ---- In words

  /** @param {Pane} pane */
  #describe(pane) {
    const { spec, holder, legend, summary } = pane;
    const model = this.shown;
    const [from, to] = [Math.ceil(model.view[0]), Math.floor(model.view[1])];
    holder.setAttribute("aria-valuemin", String(from));
    holder.setAttribute("aria-valuemax", String(to));
    const series = this.#seriesOf(spec);
    if (spec === TENSOR_CHART) pane.title.textContent = model.tensors.name;
    const present = spec.lines.filter((line) => lineOf(spec, line, series, model.prefix) && !this.#isLeftOut(spec, line));
    const own = this.#cssColor(spec, spec.lines[0]);
    const edge = pane.edge.step.some((step) => step >= from && step <= to);
    const items = present.length > 1 || spec.optional ? present.map((line) => legendItem(line.label, `line${line.dash ? " dashed" : ""}`, this.#cssColor(spec, line))) : [];
    if (spec.id === "loss" && model.smoothing > 0) {
      items.push(legendItem("smoothed", "line", own));
      if (model.series.exact) items.push(legendItem("raw", "line faint", own));
    }
    if (spec.id === "clip" && present.length) items.push(legendItem(clippedText(model.series, model.prefix, from, to), "", ""));
    const spread = spec.lines.some((line) => line.spread?.every((name) => series.line(name)));
    if (spread) items.push(legendItem("min to max of the ranks", "band", own));
    else if (!series.exact && present.length) items.push(legendItem(`min to max of ${formatCount(series.bucketSteps)} steps`, "band", own));
    if (edge) items.push(legendItem("▲ ∞  ✕ NaN", "", "", "nonfinite-key"));
    const text = own + items.map((item) => item.textContent).join();
    if (legend.dataset.text !== text) {
      legend.dataset.text = text;
      this.sizes = null;
      legend.replaceChildren(...items);
    }
    summary.textContent = this.#summary(pane, from, to);
  }

  /** @param {Pane} pane @param {number} from @param {number} to */
  #summary({ spec }, from, to) {
    const model = this.shown;
    const format = spec.scale === "log2" ? formatScale : formatNumber;
    const where = `${spec.title}, steps ${formatCount(from)} to ${formatCount(to)}`;
    const series = this.#seriesOf(spec);
    const line = lineOf(spec, spec.lines[0], series, model.prefix);
    if (!line || !series.length) return `${where}: ${this.#emptyText(spec)}.`;
    let [first, last, low, high] = [NaN, NaN, Infinity, -Infinity];
    for (let index = 0; index < series.length; index++) {
      if (series.stepLast[index] < from || series.step[index] > to) continue;
      const value = line.last[index];
      if (Number.isFinite(value)) {
        if (Number.isNaN(first)) first = value;
        last = value;
      }
      if (Number.isFinite(line.min[index])) low = Math.min(low, line.min[index]);
      if (Number.isFinite(line.max[index])) high = Math.max(high, line.max[index]);
    }
    if (low > high) return `${where}: ${this.#emptyText(spec)}.`;
    const skips = model.lanes.find((lane) => lane.kind.id === "skip")?.steps ?? [];
    const inView = lowerBound(skips, to + 1) - lowerBound(skips, from);
    return `${where}: from ${format(first)} to ${format(last)}, lowest ${format(low)}, highest ${format(high)}; ${counted(inView, "skip")}.${this.overlay?.summary(spec, this.#scaleOf(spec)) ?? ""}`;
  }

  /** The texts that describe what is in view, one a chart. */
  get summaries() {
    return this.panes.map((pane) => pane.summary.textContent ?? "");
  }

  /** What is written below the x axis of the last chart. @param {number} index of the chart */
  #xLabel(index) {
    if (index < this.panes.length - 1) return undefined;
    return { step: "Step", time: "Time since the first step", updates: "Updates done, skipped steps left out" }[this.model?.axis ?? "step"];
  }
}

/** A view of tensors before they have arrived. @type {SeriesLike} */
const NOTHING = {
  exact: true, bucketSteps: 1, length: 0, step: new Float64Array(), stepLast: new Float64Array(), line: () => null,
};

/** Where a plot draws its lines, in pixels of the page, as uPlot knows it: the page's own measures wait for its layout. @param {Plot} plot */
function areaOf({ bbox }) {
  const ratio = devicePixelRatio || 1;
  return { left: bbox.left / ratio, width: bbox.width / ratio, height: bbox.height / ratio };
}

/**
 * With ctrl (as a pinch on a touch pad comes) zooms about the pointer, sideways moves; else the page scrolls.
 * @param {WheelEvent} event @param {[number, number]} view steps @param {number} width pixels of the view
 * @param {(x: number) => number} stepAt at a pixel of the window @param {(from: number, to: number) => void} zoom
 */
export function wheelZoom(event, [from, to], width, stepAt, zoom) {
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const at = stepAt(event.clientX);
    const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01);
    zoom(at - (at - from) * factor, at + (to - at) * factor);
  } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
    event.preventDefault();
    const by = (sideways / width) * (to - from);
    zoom(from + by, to + by);
  }
}

/** The event behind a mark. @param {Lane} lane @param {number} index */
export function eventAt(lane, index) {
  return lane.events[lane.owner ? lane.owner[index] : index];
}

/**
 * In how many of the steps in view that were not skipped gradients were clipped; buckets at the edges count whole.
 * @param {SeriesLike} series @param {string} prefix @param {number} from @param {number} to
 */
export function clippedText(series, prefix, from, to) {
  const line = series.line(`${prefix}clipped`);
  let [known, clipped] = [0, 0];
  for (let index = 0; line && index < series.length; index++) {
    if (series.stepLast[index] < from || series.step[index] > to || Number.isNaN(line.last[index])) continue;
    const steps = line.known ? line.known[index] : 1;
    known += steps;
    clipped += line.mean ? Math.round(line.mean[index] * steps) : line.last[index];
  }
  return known ? `clipped in ${formatShare(clipped, known)} of ${counted(known, "update")}` : "";
}

/** Points that no line reaches, because both neighbours are gaps. @param {Plot} plot @param {number} at @param {boolean} all */
function isolated(plot, at, all) {
  if (all) return null;
  const values = plot.data[at];
  const [from, to] = plot.series[0].idxs ?? [0, values.length - 1];
  /** @type {number[]} */
  const alone = [];
  for (let index = from; index <= to; index++) {
    if (values[index] != null && values[index - 1] == null && values[index + 1] == null) alone.push(index);
  }
  return alone.length ? alone : null;
}

/** @param {string} label @param {string} shape @param {string} color @param {string} [more] class */
function legendItem(label, shape, color, more = "") {
  return element("li", more, ...(shape ? [element("span", { class: `swatch ${shape}`, style: `--color: ${color}` })] : []), label);
}

/** @param {string} color #rrggbb @param {number} alpha */
function withAlpha(color, alpha) {
  return color + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
