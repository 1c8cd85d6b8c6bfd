/**
 * The linked charts: one x axis, one cursor, one zoom. uPlot draws their lines, with what `canvas.ts` and `overlay.ts`
 * add.
 *
 * What is drawn is in `views.ts`, as numbers in `plotdata.ts`; marks of events are in `lanes.ts`.
 */

import { areaOf, drawBands, drawEdge, drawInstead } from "./canvas.ts";
import { keyItems, stepsInView, summaryOf } from "./describe.ts";
import { element, styled } from "./elements.ts";
import { isPlain, linearTicks, stepLabels, timeLabels, timeTicks } from "./format.ts";
import { MarkLanes } from "./lanes.ts";
import { whyEmpty } from "./notices.ts";
import { makePane } from "./pane.ts";
import { Pointer } from "./pointer.ts";
import { PADDING_RIGHT, makePlot, xLabel } from "./plot.ts";
import { NOTHING, lineOf, missingAfter, missingBetween, plotData, sampledLine } from "./plotdata.ts";
import { below, plotSizes } from "./room.ts";
import { lowerBound } from "./sorted.ts";
import { axisOf, chosenEvent, prefixOf, rowOf, seriesOf, viewOf } from "./state.ts";
import { CHARTS, TENSOR_CHART, scaleOf } from "./views.ts";
import { STEPS_AXIS } from "./xaxis.ts";
import { sayReach } from "./yreach.ts";

import type { Overlay } from "./overlay.ts";
import type { SeriesLike, TbnumEvent } from "./answers.ts";
import type { Series } from "./api.ts";
import type { Lane } from "./marks.ts";
import type { Pane } from "./pane.ts";
import type { Plot } from "./plot.ts";
import type { Loaded } from "./rundata.ts";
import type { PanelStore, State } from "./state.ts";
import type { ChartSpec, LineSpec, Scale } from "./views.ts";
import type { Alignment, XAxis } from "./xaxis.ts";

/** What the charts show. */
export type Model = {
  /** of the interval in view, or more */
  series: Series;
  /** of the whole run */
  overview: Series;
  /** for views of tensors: extremes over all of them, and the chosen one's values */
  tensors: { headroom: SeriesLike | null; tensor: SeriesLike | null; name: string | null };
  lanes: Lane[];
  /** ids of lanes that the legend turned off */
  hidden: ReadonlySet<string>;
  /** steps */
  view: [number, number];
  axis: Alignment;
  /** the step before each, and the seconds that a time axis leaves out */
  pauses: [number, number][];
  smoothing: number;
  /** ids of views that are smoothed though they are not the loss */
  smooth: ReadonlySet<string>;
  /** ids of views whose axis goes below 0 */
  symlog: ReadonlySet<string>;
  /** of the columns of the optimizer that is shown */
  prefix: string;
  selected: TbnumEvent | null;
  /** the step that others are held against */
  pinned: number | null;
  /** what is written where a view has no value at all: that it is on its way, or how to have it recorded */
  whyEmpty: (spec: ChartSpec) => string;
};

/** A model on its x axis, as it is drawn. */
export type Drawing = {
  model: Model;
  xAxis: XAxis;
  /** of x, in view */
  range: [number, number];
  /** by the names of CSS variables */
  colors: Record<string, string>;
};

/** The x axis of the charts. */
export type Geometry = {
  /** pixels from the left of the charts to where the axis begins */
  left: number;
  width: number;
  /** whether it shows seconds, not steps */
  time: boolean;
  /** of the axis */
  min: number;
  max: number;
  xOf: (step: number) => number;
  stepOf: (x: number) => number;
};

export const GUTTER = 94; // the names of lanes and, before the first step, half of a count of marks
const [TENSOR_GUTTER, NARROW_GUTTER] = [190, 112]; // names of tensors

/** What the charts are drawn again for. */
export const DRAWN = ["loaded", "zoom", "axis", "smoothing", "optimizer", "hidden", "event", "pin", "tensors", "views",
  "over", "grouped", "filter", "filterAside", "beside", "opened", "yRanges", "baseline", "against"] as const;

export class Charts {
  root = element("div", "charts");
  model: Model | null = null;
  xAxis: XAxis = STEPS_AXIS;
  colors: Record<string, string> = {};
  cursorStep: number | null = null;
  /** Other runs in the same charts. */
  overlay: Overlay | null = null;
  pointer = new Pointer(this);
  /** Marks of events. */
  marks: MarkLanes;
  optimizerSelect: HTMLSelectElement;
  /** All of them. */
  every: Pane[];
  gutter = GUTTER;
  /** Of all of it, in pixels, when it was drawn last. */
  room = { width: 0, height: 0 };
  /** Of the plots, until the room or what stands above them changes. */
  sizes: { width: number; height: number }[] | null = null;
  /** Whether the chosen tensor has a chart. */
  withTensor = false;
  /** ids of views whose axis goes below 0 */
  symlog: Set<string> = new Set();
  /** by series and view */
  below: WeakMap<SeriesLike, Map<string, boolean>> = new WeakMap();
  /** Those that are shown, from top to bottom. */
  panes: Pane[] = [];

  constructor(readonly store: PanelStore) {
    this.marks = new MarkLanes(store);
    this.optimizerSelect = element("select", { class: "small", hidden: true,
      "aria-label": "Optimizer whose gradient norm is shown",
      onchange: () => store.set({ optimizer: this.optimizerSelect.selectedIndex }) });
    this.every = [...CHARTS, TENSOR_CHART].map((spec) =>
      makePane(spec, store, ...(spec.id === "norm" ? [this.optimizerSelect] : []))
    );
    this.#arrange();
    store.watch(["views", "opened", "tensors"], () => this.#fit());
    store.watch(["loaded", "optimizer"], () => this.#listOptimizers());
    store.watch(["pin"], () => this.recolor());
    store.watch([...DRAWN], () => this.show());
    store.watch(["cursor"], () => {
      if (store.state.cursor !== this.cursorStep) this.setCursor(store.state.cursor);
    });
  }

  /** Room beside the charts for names of tensors, and a chart for the chosen one. */
  #fit() {
    const { opened, tensors } = this.store.state;
    const gutter = opened !== "heatmap" ? GUTTER : this.root.clientWidth > 640 ? TENSOR_GUTTER : NARROW_GUTTER;
    if (gutter !== this.gutter) this.panes = []; // to be made again, with axes of another width
    this.gutter = gutter;
    this.withTensor = tensors.name !== null;
    this.#arrange();
  }

  /** Puts the views that are shown into their order. */
  #arrange() {
    const focused = document.activeElement;
    const before = this.panes;
    const { views } = this.store.state;
    this.panes = [...(this.withTensor ? [TENSOR_CHART.id] : []), ...views.order.filter((id) => !views.hidden.has(id))]
      .map((id) => (this.every.find((pane) => pane.spec.id === id) as Pane));
    this.marks.forget();
    this.sizes = null;
    if (before.length === this.panes.length && before.every((pane, at) => pane === this.panes[at])) return;
    for (const pane of this.every) {
      pane.plot?.destroy(); // the x axis stands below the last one, whichever that is
      pane.plot = null;
      pane.made = [];
    }
    this.root.replaceChildren(this.marks.element, ...(this.overlay ? [this.overlay.strip] : []),
      ...this.panes.flatMap((pane) => [pane.element, pane.grip]));
    if (focused instanceof HTMLElement && this.root.contains(focused)) focused.focus();
  }

  /** The x axis, for what stands below the charts. */
  get geometry(): Geometry {
    const [min, max] = this.xRange();
    const { xAxis, gutter, plotWidth } = this;
    return { left: gutter, width: plotWidth, time: this.shown.axis === "time", min, max, xOf: (step) => xAxis.xOf(step),
      stepOf: (x) => xAxis.stepOf(x) };
  }

  /** What is drawn of the run, line by line; what was sampled of tensors at the points of the steps' series. */
  get lines() {
    const { series, prefix } = this.shown;
    return this.panes.flatMap(({ spec }) =>
      spec.lines.flatMap((line) => {
        const column = spec.ofTensors ? sampledLine(this.#seriesOf(spec), line.column, series)
          : lineOf(spec, line, series, prefix);
        return column ? [{ spec, line, column }] : [];
      })
    );
  }

  setOverlay(overlay: Overlay) {
    this.overlay = overlay;
    this.marks.element.after(overlay.strip);
  }

  /** The view at a height of the window, the first where there is none. */
  specAt(y: number) {
    const found =
      this.panes.find(({ element: { offsetHeight }, element: box }) =>
        y <= box.getBoundingClientRect().top + offsetHeight
      ) ?? this.panes[0];
    return found.spec;
  }

  /** Names in the select of optimizers; hidden where there is one. */
  #listOptimizers() {
    const { loaded, optimizer } = this.store.state;
    const names = Object.keys(loaded?.info.meta.optimizers ?? {});
    const { options } = this.optimizerSelect;
    this.optimizerSelect.hidden = names.length < 2;
    if (names.length !== options.length || names.some((name, at) => name !== options[at].text))
      this.optimizerSelect.replaceChildren(...names.map((name) => element("option", {}, name)));
    this.optimizerSelect.selectedIndex = optimizer;
  }

  // ---- Drawing

  /** The model, once there is one. */
  get shown() {
    return (this.model as Model);
  }

  /** The model on its x axis. */
  get #drawing(): Drawing {
    return { model: this.shown, xAxis: this.xAxis, range: this.xRange(), colors: this.colors };
  }

  /** What is drawn, by the state. */
  #modelOf(state: State, loaded: Loaded): Model {
    const series = seriesOf(state);
    const prefix = prefixOf(state);
    const { axis, smoothing, tensors, hidden, pin: pinned } = state;
    const row = rowOf(state);
    return { series, overview: loaded.overview, lanes: loaded.lanes, hidden, view: viewOf(state), axis, smoothing,
      smooth: state.views.smooth, symlog: this.symlog, pauses: loaded.info.pauses ?? [], tensors, prefix,
      selected: chosenEvent(state), pinned,
      whyEmpty: (spec) => whyEmpty(spec, loaded, { series, prefix, tensors, plain: !!row && isPlain(row) }) };
  }

  /** Draws what the state says. Costs about a millisecond for each thousand points. */
  show() {
    const { state } = this.store;
    if (!state.loaded) return;
    const model = (this.model = this.#modelOf(state, state.loaded));
    this.xAxis = axisOf(state);
    this.overlay?.prepare();
    for (const { log, smooth, spec } of this.panes) {
      log.setAttribute("aria-pressed", String(scaleOf(state.views, spec) === "log10"));
      smooth.setAttribute("aria-pressed", String(state.views.smooth.has(spec.id)));
    }
    // once, before what is written makes reading dear
    this.room = { width: this.root.clientWidth, height: this.root.clientHeight };
    if (!this.room.width || !this.room.height) return; // hidden; `resize` draws when it is not
    this.store.set({ plotWidth: this.plotWidth });
    if (!Object.keys(this.colors).length) this.#readColors();
    const lanesChanged = this.marks.layout(model, this.room.width);
    if (this.overlay?.layStrip(this.gutter, this.plotWidth) || lanesChanged) this.sizes = null;
    this.symlog.clear();
    for (const { spec } of this.panes) if (this.scaleOf(spec) === "symlog") this.symlog.add(spec.id);
    const fresh = this.panes.map((pane) => this.#prepare(pane));
    const sizes =
      (this.sizes ??= plotSizes(this.panes, this.room, this.marks.height + (this.overlay?.stripHeight ?? 0),
        this.store.state.views.heights)); // after what stands above the plots has its height
    const [min, max] = this.xRange();
    this.panes.forEach((pane, index) => {
      pane.plot ??= makePlot(this, pane, sizes[index], index === this.panes.length - 1);
      const { plot } = pane;
      plot.axes[0].label = index < this.panes.length - 1 ? undefined : xLabel(model.axis, model.pauses.length);
      pane.grip.setAttribute("aria-valuenow", String(sizes[index].height - below(this.panes, index)));
      if (plot.width !== sizes[index].width || plot.height !== sizes[index].height) plot.setSize(sizes[index]);
      plot.batch(() => {
        if (fresh[index]) plot.setData(pane.data as any, false);
        this.#setWidths(pane, plot);
        if (pane.empty && !fresh[index]) plot.redraw(false); // why may have changed
        plot.setScale("x", { min, max });
      });
    });
    this.overlay?.ask();
  }

  /** Computes what a chart draws, where that has changed, and says it in words. @returns whether it has */
  #prepare(pane: Pane): boolean {
    const { prefix, smoothing } = this.shown;
    const series = this.#seriesOf(pane.spec);
    const scale = this.scaleOf(pane.spec);
    const smoothed = this.store.state.views.smooth.has(pane.spec.id);
    const relative = this.overlay?.relativeFor(pane.spec) ?? null;
    const made = [series, scale, prefix, smoothing, this.xAxis, smoothed, relative];
    const changed = made.some((part, at) => part !== pane.made[at]);
    if (changed) {
      const xOf = (step: number) => this.xAxis.xOf(step);
      Object.assign(pane, { made },
        plotData(pane.spec, series, { scale, prefix, smoothing, smoothed, xOf, relative,
          missing: this.#missingIn(pane.spec, series) }));
    }
    this.#describe(pane);
    return changed;
  }

  /** Points of a view after which steps are missing. */
  #missingIn({ ofTensors }: ChartSpec, series: SeriesLike) {
    const { state } = this.store;
    const row = rowOf(state);
    const own = ofTensors ? this.shown.overview : series;
    const missing = missingAfter(own, !!row && isPlain(row));
    return ofTensors ? missingBetween(series, own, missing) : missing;
  }

  /** Says in words what a chart shows. */
  #describe(pane: Pane) {
    const { spec, holder, legend, summary, edge } = pane;
    const model = this.shown;
    const series = this.#seriesOf(spec);
    const [from, to] = stepsInView(model);
    holder.setAttribute("aria-valuemin", String(from));
    holder.setAttribute("aria-valuemax", String(to));
    if (spec === TENSOR_CHART) pane.title.textContent = model.tensors.name;
    const alone = !!this.overlay?.relativeFor(spec); // the baseline has the first line's values alone
    const drawn = spec.lines.filter((line) =>
      lineOf(spec, line, series, model.prefix) && !this.#isLeftOut(spec, line) && (!alone || line === spec.lines[0])
    );
    const items = keyItems(spec, drawn, series, model, (line) => this.#cssColor(spec, line),
      edge.step.some((step) => step >= from && step <= to), this.overlay?.active ? this.overlay.lacking(spec) : [],
      this.overlay?.againstText(spec));
    const text = this.#cssColor(spec, spec.lines[0]) + items.map((item) => item.textContent).join();
    if (legend.dataset.text !== text) {
      legend.dataset.text = text;
      this.sizes = null;
      legend.replaceChildren(...items);
    }
    summary.textContent = summaryOf(spec, series, model, this.#emptyText(spec))
      + (this.overlay?.summary(spec, this.scaleOf(spec)) ?? "");
  }

  /**
   * Lines whose points crowd are drawn a pixel wide: where they go up and down in every pixel a wider one shows no
   * more,
   * and takes fifty times as long to draw.
   */
  #setWidths({ spec, widths }: Pane, plot: Plot) {
    const { step } = this.#seriesOf(spec);
    const [from, to] = this.shown.view;
    const crowded = 2 * (lowerBound(step, to) - lowerBound(step, from)) > this.plotWidth;
    plot.series.forEach((one, at) => {
      if (widths[at]) one.width = crowded ? 1 : widths[at];
    });
  }

  #seriesOf(spec: ChartSpec): SeriesLike {
    return spec.ofTensors ? this.shown.tensors[spec.ofTensors] ?? NOTHING : this.shown.series;
  }

  #emptyText(spec: ChartSpec) {
    const series = this.#seriesOf(spec);
    const recorded = spec.lines.some((line) =>
      lineOf(spec, line, series, this.shown.prefix)?.last.some(Number.isFinite)
    );
    return recorded ? "no finite value in view" : this.shown.whyEmpty(spec);
  }

  /** A logarithm has no place for what is not positive: where there is such, it goes on below 0. */
  scaleOf(spec: ChartSpec): Scale {
    const scale = scaleOf(this.store.state.views, spec);
    const { against } = this.store.state;
    if (this.overlay?.relativeFor(spec)) {
      const chosen = this.store.state.views.log.get(spec.id);
      return chosen ? (against === "ratio" ? "log10" : "symlog") : "linear";
    }
    return scale === "log10" && this.#reachesBelow(spec) ? "symlog" : scale;
  }

  /** Whether a chart has values below 0, looked at once for each series. */
  #reachesBelow(spec: ChartSpec): boolean {
    if (!this.model) return false;
    const series = this.#seriesOf(spec);
    const known = this.below.get(series)?.get(spec.id);
    if (known !== undefined) return known;
    const found = spec.lines.some((line) =>
      lineOf(spec, line, series, this.shown.prefix)?.min.some((value) => value < 0 && Number.isFinite(value))
    );
    this.below.set(series, (this.below.get(series) ?? new Map()).set(spec.id, found));
    return found;
  }

  xRange(): [number, number] {
    const { view } = this.shown;
    const [min, max] = [this.xAxis.xOf(view[0]), this.xAxis.xOf(view[1])];
    return max > min ? [min, max] : [min - 0.5, max + 0.5];
  }

  /** The room has changed, or the panel has become visible. */
  resize() {
    this.sizes = null;
    if (this.model) this.show();
  }

  // ---- Colours

  /** Dark or light. */
  recolor() {
    this.#readColors();
    for (const { plot } of this.panes) plot?.redraw(false);
  }

  #readColors() {
    const read = styled();
    const names = ["--text-2", "--grid", "--skip-band", "--skip-tick", "--selected", "--nonfinite",
      ...this.every.flatMap(({ spec }) => spec.lines.map((line) => line.color))];
    this.colors = Object.fromEntries(names.map((name) => [name, read(name)]));
  }

  /** As CSS takes it: beside other runs, a view's first line has its run's colour. */
  #cssColor(spec: ChartSpec, line: LineSpec) {
    return this.overlay?.active && line === spec.lines[0] && spec !== TENSOR_CHART ? this.overlay.currentColor
      : `var(${line.color})`;
  }

  /** Beside other runs, a second plain line would be taken for one of theirs. */
  #isLeftOut(spec: ChartSpec, line: LineSpec) {
    return !!this.overlay?.active && line !== spec.lines[0] && !line.dash && spec !== TENSOR_CHART;
  }

  color(spec: ChartSpec, line: LineSpec, alpha: number = 1) {
    if (this.#isLeftOut(spec, line)) return "#0000";
    const css = this.#cssColor(spec, line);
    return withAlpha(css.startsWith("#") ? css : this.colors[line.color], alpha);
  }

  // ---- The cursor, and where steps stand

  setCursor(step: number | null) {
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

  /** Says what the cursor is on, for screen readers. */
  setCursorText(text: string) {
    for (const { holder } of this.panes) holder.setAttribute("aria-valuetext", text);
  }

  /** Where a step stands in pixels of the window. */
  clientX(step: number) {
    const { plot } = this.panes[0];
    return plot ? plot.over.getBoundingClientRect().left + plot.valToPos(this.xAxis.xOf(step), "x") : 0;
  }

  /** Pixels across the plots. */
  get plotWidth() {
    return Math.max(100, this.room.width - this.gutter - PADDING_RIGHT);
  }

  /** The texts that describe what is in view, one a chart. */
  get summaries() {
    return this.panes.map((pane) => pane.summary.textContent ?? "");
  }

  // ---- Room

  /** @returns of each plot */
  /** Whether points are steps. */
  get exact() {
    return !!this.model?.series.exact;
  }

  xTicks(min: number, max: number, count: number) {
    return this.model?.axis === "time" ? timeTicks(min, max, count) : linearTicks(min, max, count, 1);
  }

  xTickLabels(ticks: number[]) {
    return this.model?.axis === "time" ? timeLabels(ticks) : stepLabels(ticks);
  }

  drawBelow(plot: Plot) {
    if (this.model) drawBands(plot, this.#drawing);
  }

  drawBehind(plot: Plot, spec: ChartSpec) {
    this.overlay?.drawLines(plot, spec, this.scaleOf(spec));
  }

  /** uPlot has drawn, so its scales are settled: what hangs on them follows. */
  drawn(plot: Plot, pane: Pane) {
    const drawing = this.#drawing;
    drawEdge(plot, pane.edge, drawing);
    sayReach(this, pane);
    if (pane.empty) drawInstead(plot, this.#emptyText(pane.spec), drawing);
    this.overlay?.drawNumbers(plot, pane.spec); // above all lines
    if (pane !== this.panes[this.panes.length - 1] || this.panes.some(({ plot: other }) => !other)) return;
    const { plot: first } = this.panes[0];
    const [loss] = this.every;
    if (first) this.marks.draw(drawing, areaOf(first), { ...loss, scale: this.scaleOf(loss.spec) });
    this.overlay?.drawStrip(this.gutter, this.plotWidth);
    this.setCursor(this.cursorStep);
  }
}

/** @param color #rrggbb */
function withAlpha(color: string, alpha: number) {
  return color + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
