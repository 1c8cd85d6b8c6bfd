/**
 * The linked charts: one x axis, one cursor, one zoom. uPlot draws their lines, with what `canvas.ts` and `overlay.ts`
 * add.
 *
 * What is drawn is in `views.ts`, as numbers in `plotdata.ts`; marks of events are in `lanes.ts`.
 */

import { areaOf, drawBands, drawEdge, drawInstead } from "./canvas.ts";
import { ChartColors } from "./chartcolors.ts";
import { ChartScales } from "./chartscales.ts";
import { describePane, emptyText } from "./describe.ts";
import { element } from "./elements.ts";
import { isPlain } from "./format.ts";
import { MarkLanes } from "./lanes.ts";
import { DRAWN, modelOf } from "./model.ts";
import { optimizerSelect } from "./optimizers.ts";
import { makePane } from "./pane.ts";
import { Pointer } from "./pointer.ts";
import { PADDING_RIGHT, makePlot, setWidths, xLabel } from "./plot.ts";
import { NOTHING, lineOf, missingAfter, missingBetween, plotData, sampledLine } from "./plotdata.ts";
import { below, plotSizes } from "./room.ts";
import { drawRankLines } from "./ranklines.ts";
import { axisOf, rowOf } from "./state.ts";
import { CHARTS, RANK_COLUMN, TENSOR_CHART, scaleOf } from "./views.ts";
import { STEPS_AXIS } from "./xaxis.ts";
import { sayReach } from "./yreach.ts";

import type { SeriesLike } from "./answers.ts";
import type { Drawing, Geometry, Model } from "./model.ts";
import type { Overlay } from "./overlay.ts";
import type { Pane } from "./pane.ts";
import type { Plot } from "./plot.ts";
import type { PanelStore, State } from "./state.ts";
import type { ChartSpec, Scale } from "./views.ts";
import type { XAxis } from "./xaxis.ts";

export const GUTTER = 94; // the names of lanes and, before the first step, half of a count of marks
const [TENSOR_GUTTER, NARROW_GUTTER] = [190, 112]; // names of tensors

export class Charts {
  root = element("div", "charts");
  model: Model | null = null;
  xAxis: XAxis = STEPS_AXIS;
  colors = new ChartColors(() => this.overlay);
  scales = new ChartScales(this);
  cursorStep: number | null = null;
  /** Other runs in the same charts. */
  overlay: Overlay | null = null;
  pointer = new Pointer(this);
  /** Marks of events. */
  marks: MarkLanes;
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
  /** Those that are shown, from top to bottom. */
  panes: Pane[] = [];

  constructor(readonly store: PanelStore) {
    this.marks = new MarkLanes(store);
    this.every = [...CHARTS, TENSOR_CHART].map((spec) =>
      makePane(spec, store, ...(spec.id === "norm" ? [optimizerSelect(store)] : []))
    );
    this.#arrange();
    store.watch(["views", "opened", "tensors"], () => this.#fit());
    store.watch(["pin"], () => this.recolor());
    store.watch([...DRAWN], (keys) => this.show(keys));
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
    this.root.replaceChildren(this.marks.element, ...(this.overlay ? [this.overlay.skips.element] : []),
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
        const column = spec.ofTensors ? sampledLine(this.seriesOf(spec), line.column, series)
          : lineOf(spec, line, series, prefix);
        return column ? [{ spec, line, column }] : [];
      })
    );
  }

  setOverlay(overlay: Overlay) {
    this.overlay = overlay;
    this.marks.element.after(overlay.skips.element);
  }

  /** The view at a height of the window, the first where there is none. */
  specAt(y: number) {
    const found =
      this.panes.find(({ element: { offsetHeight }, element: box }) =>
        y <= box.getBoundingClientRect().top + offsetHeight
      ) ?? this.panes[0];
    return found.spec;
  }

  // ---- Drawing

  /** The model, once there is one. */
  get shown() {
    return (this.model as Model);
  }

  /** The model on its x axis. */
  get #drawing(): Drawing {
    return { model: this.shown, xAxis: this.xAxis, range: this.xRange(), colors: this.colors.known };
  }

  /**
   * Draws what the state says. Costs about a millisecond for each thousand points. @param changed where the smoothing
   * alone has, the charts that are not smoothed stay as they are
   */
  show(changed: ReadonlySet<keyof State> = new Set()) {
    const smoothingAlone = changed.has("smoothing")
      && [...changed].every((key) => key === "smoothing" || key === "own");
    const { state } = this.store;
    if (!state.loaded) return;
    const model = (this.model = modelOf(state, state.loaded, this.symlog));
    this.xAxis = axisOf(state);
    this.overlay?.prepare();
    for (const { log, smooth, ranks, spec } of this.panes) {
      log.setAttribute("aria-pressed", String(scaleOf(state.views, spec) === "log10"));
      smooth.setAttribute("aria-pressed", String(state.views.smooth.has(spec.id)));
      ranks.setAttribute("aria-pressed", String(state.views.ranks.has(spec.id)));
      ranks.hidden = !state.loaded.info.derived.some((name) => RANK_COLUMN.exec(name)?.[1] === spec.lines[0].column);
    }
    // once, before what is written makes reading dear
    this.room = { width: this.root.clientWidth, height: this.root.clientHeight };
    if (!this.room.width || !this.room.height) return; // hidden; `resize` draws when it is not
    this.store.set({ plotWidth: this.plotWidth });
    if (!Object.keys(this.colors.known).length) this.colors.read();
    const lanesChanged = this.marks.layout(model, this.room.width);
    if (this.overlay?.skips.layout(this.gutter, this.plotWidth) || lanesChanged) this.sizes = null;
    this.symlog.clear();
    for (const { spec } of this.panes) if (this.scaleOf(spec) === "symlog") this.symlog.add(spec.id);
    const fresh = this.panes.map((pane) => this.#prepare(pane));
    const sizes =
      (this.sizes ??= plotSizes(this.panes, this.room, this.marks.height + (this.overlay?.skips.height ?? 0),
        this.store.state.views.heights)); // after what stands above the plots has its height
    const [min, max] = this.xRange();
    this.panes.forEach((pane, index) => {
      if (smoothingAlone && !fresh[index] && pane.plot) return;
      pane.plot ??= makePlot(this, pane, sizes[index], index === this.panes.length - 1);
      const { plot } = pane;
      plot.axes[0].label = index < this.panes.length - 1 ? undefined : xLabel(model.axis, model.pauses.length);
      pane.grip.setAttribute("aria-valuenow", String(sizes[index].height - below(this.panes, index)));
      if (plot.width !== sizes[index].width || plot.height !== sizes[index].height) plot.setSize(sizes[index]);
      plot.batch(() => {
        if (fresh[index]) plot.setData(pane.data as any, false);
        setWidths(plot, pane, this.seriesOf(pane.spec).step, model.view, this.plotWidth);
        if (pane.empty && !fresh[index]) plot.redraw(false); // why may have changed
        plot.setScale("x", { min, max });
      });
    });
    if (smoothingAlone) this.#drawMarks(); // they stand on the loss
    this.overlay?.data.ask();
  }

  /** Computes what a chart draws, where that has changed, and says it in words. @returns whether it has */
  #prepare(pane: Pane): boolean {
    const { prefix } = this.shown;
    const series = this.seriesOf(pane.spec);
    const scale = this.scaleOf(pane.spec);
    const smoothed = this.store.state.views.smooth.has(pane.spec.id);
    const smoothing = smoothed || pane.spec.lines.some((line) => line.smooth) ? this.shown.smoothing : 0;
    const relative = this.overlay?.data.relativeFor(pane.spec) ?? null;
    const made = [series, scale, prefix, smoothing, this.xAxis, smoothed, relative];
    const changed = made.some((part, at) => part !== pane.made[at]);
    if (changed) {
      const xOf = (step: number) => this.xAxis.xOf(step);
      Object.assign(pane, { made },
        plotData(pane.spec, series, { scale, prefix, smoothing, smoothed, xOf, relative,
          missing: this.#missingIn(pane.spec, series) }));
    }
    if (describePane(this, pane)) this.sizes = null;
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

  seriesOf(spec: ChartSpec): SeriesLike {
    return spec.ofTensors ? this.shown.tensors[spec.ofTensors] ?? NOTHING : this.shown.series;
  }

  scaleOf(spec: ChartSpec): Scale {
    return this.scales.of(spec);
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

  /** Dark or light. */
  recolor() {
    this.colors.read();
    for (const { plot } of this.panes) plot?.redraw(false);
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

  /** Whether points are steps. */
  get exact() {
    return !!this.model?.series.exact;
  }

  drawBelow(plot: Plot) {
    if (this.model) drawBands(plot, this.#drawing);
  }

  drawBehind(plot: Plot, spec: ChartSpec) {
    drawRankLines(plot, this, spec);
    this.overlay?.drawLines(plot, spec, this.scaleOf(spec));
  }

  /** What stands above a chart's lines. */
  drawAbove(plot: Plot, pane: Pane) {
    const drawing = this.#drawing;
    drawEdge(plot, pane.edge, drawing);
    if (pane.empty) drawInstead(plot, emptyText(this, pane), drawing);
    this.overlay?.drawNumbers(plot, pane.spec);
  }

  /** uPlot has drawn, so its scales are settled: what hangs on them follows. */
  drawn(plot: Plot, pane: Pane) {
    this.drawAbove(plot, pane);
    sayReach(this, pane);
    if (pane === this.panes[this.panes.length - 1] && this.panes.every(({ plot: other }) => other)) this.#drawMarks();
  }

  #drawMarks() {
    const { plot: first } = this.panes[0];
    const [loss] = this.every;
    if (first) this.marks.draw(this.#drawing, areaOf(first), { ...loss, scale: this.scaleOf(loss.spec) });
    this.overlay?.skips.draw(this.gutter, this.plotWidth);
    this.setCursor(this.cursorStep);
  }
}
