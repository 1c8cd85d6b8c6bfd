/**
 * Below the charts: the heat map of tensors, and the histograms. Loaded when a person opens it, so that it costs the
 * first drawing nothing. It asks for what it shows; where to look comes from the panel, and goes back to it.
 */

import { isOfTensors, openTensor } from "./actions.ts";
import { RouteError, Unreachable } from "./api.ts";
import { button, dock, element, iconButton } from "./elements.ts";
import { runTitle } from "./format.ts";
import { MODES, rangeOf } from "./heatcells.ts";
import { HeatMap } from "./heatmap.ts";
import { canBeHeld, ratioCells, ratioMode } from "./heatratio.ts";
import { HistogramView } from "./histogram.ts";
import { chosenEvent, viewOf } from "./state.ts";

import type { Api } from "./api.ts";
import type { Cells, HistogramAnswer, RidgeAnswer, TensorsAnswer } from "./answers.ts";
import type { Charts } from "./charts.ts";
import type { HeatMode } from "./heatcells.ts";
import type { Trend } from "./heatwords.ts";
import type { Geometry } from "./model.ts";
import type { PanelStore } from "./state.ts";

type DockPlace = { tab: "heatmap" | "histogram"; column: string; tensor: string };

/** Where the dock is to look. */
export type DockScene = {
  run: string;
  version: string;
  view: [number, number];
  geometry: Geometry;
  cursor: number | null;
  pinned: number | null;
};

const MOST_ROWS = 4096;
const MOST_BUCKETS = 4096;
const TREND_BUCKETS = 256;

export class TensorsDock {
  scene: DockScene | null = null;
  tensors: TensorsAnswer | null = null;
  /** what of the tensor is counted */
  source = "gradient";
  /** of the whole run */
  overview: { key: string; cells: Cells; mode: HeatMode; range: [number, number] } | null = null;
  /** of the interval in view */
  detail: { key: string; cells: Cells } | null = null;
  histogram: HistogramAnswer | null = null;
  ridge: RidgeAnswer | null = null;
  /** by the cells of the run */
  ratios: WeakMap<Cells, { under: Cells; made: Cells }> = new WeakMap();
  asked = "";
  timer = 0;
  heatMap: HeatMap;
  histograms: HistogramView;
  tabs = (["heatmap", "histogram"] as const).map((tab) => {
    const made = button(tab === "heatmap" ? "Heat map" : "Histogram", "", () => this.store.set({ dock: tab }));
    made.dataset.tab = tab;
    return made;
  });
  message = element("p", { class: "dock-message", role: "status" });
  element: HTMLElement;

  constructor(readonly api: Api, readonly store: PanelStore, readonly charts: Charts) {
    this.heatMap = new HeatMap(store, () => this.#trends());
    this.histograms = new HistogramView(store, (tensor, source) => {
      this.source = source;
      openTensor(store, tensor, null);
      this.#load();
    });
    const chosen = element("div", { class: "segmented", role: "group", "aria-label": "What of the tensors" },
      ...this.tabs);
    const close = iconButton("✕", "Close the tensors", () => store.set({ dock: null }));
    this.element = dock("Tensors", [chosen, this.message, this.heatMap.legend], close, this.heatMap.element,
      this.histograms.element);
    new ResizeObserver(() => this.#draw()).observe(this.element);
    store.watch(["cursor"], () => this.#setCursor(store.state.cursor));
  }

  /** What is to be looked at. */
  get place(): DockPlace {
    const { dock, column, tensor } = this.store.state;
    return { tab: dock === "histogram" ? "histogram" : "heatmap", column: column ?? "grad_norm",
      tensor: tensor ?? "*" };
  }

  show() {
    const before = this.scene;
    const { state } = this.store;
    if (!state.loaded) return;
    const { run, info: { version } } = state.loaded;
    const { cursor } = state;
    const scene: DockScene = { run, version, view: viewOf(state), geometry: this.charts.geometry, cursor,
      pinned: state.pin ?? chosenEvent(state)?.step ?? null };
    this.scene = scene;
    if (run !== before?.run)
      this.overview =
        this.detail =
        this.histogram =
        this.ridge =
        this.tensors =
          null;
    this.#draw();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.#load(), version === before?.version && run === before.run ? 80 : 0);
  }

  #setCursor(step: number | null) {
    if (!this.scene || !isOfTensors(this.store.state.dock)) return;
    this.scene.cursor = step;
    if (this.place.tab === "heatmap") {
      this.heatMap.setCursor(step);
    } else {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.#load(), 40);
    }
  }

  get #mode() {
    return MODES.find(({ id }) => id === this.place.column) ?? MODES[0];
  }

  async #load() {
    const { scene, place } = this;
    if (!scene) return;
    try {
      this.tensors = await this.api.tensors(scene.run);
      if (this.scene !== scene) return;
      if (place.tab === "heatmap") await this.#loadCells(scene);
      else await this.#loadHistograms(scene);
      this.message.textContent = this.tensors.names.length ? ""
        : "No statistics of tensors were recorded in this run: tbnum.wrap(…, tensor_interval=100) records them.";
    } catch (error) {
      if (!(error instanceof RouteError) && !(error instanceof Unreachable)) throw error;
      this.message.textContent = error.message;
    }
    if (this.scene?.run === scene.run) this.#draw();
  }

  /** What the heat map is held against: the baseline, where it is another run. */
  get #base(): string | null {
    const { baseline, against, run } = this.store.state;
    return against !== "off" && baseline !== run && canBeHeld(this.#mode) ? baseline : null;
  }

  /** Cells of the run; over those of the baseline, where it is held against one that is there. */
  async #cells({ run }: DockScene, base: string | null, query: Parameters<Api["heatmap"]>[1]) {
    const none = Promise.resolve(null);
    const [cells, under] = await Promise.all([this.api.heatmap(run, query),
      base === null ? none : this.api.heatmap(base, query).catch(() => null)]);
    if (!under || base === null) return { cells, mode: this.#mode };
    const known = this.ratios.get(cells);
    const made = known?.under === under ? known.made : ratioCells(cells, under);
    this.ratios.set(cells, { under, made });
    return { cells: made, mode: ratioMode(this.#mode, runTitle(base)) };
  }

  async #loadCells(scene: DockScene) {
    const { column } = this.#mode;
    if (!this.tensors?.columns.includes(column)) return;
    const base = this.#base;
    const buckets = Math.min(MOST_BUCKETS, Math.max(256, Math.ceil(scene.geometry.width)));
    const key = JSON.stringify([scene.version, this.place.column, buckets, base]);
    const { cells, mode } = await this.#cells(scene, base, { column, buckets, rows: MOST_ROWS });
    if (this.overview?.cells !== cells || this.overview.key !== key)
      this.overview = { key, cells, mode, range: rangeOf(cells, mode) };
    const [from, to] = scene.view;
    const [first, last] = [cells.step[0], cells.stepLast[cells.step.length - 1]];
    this.detail = this.detail?.key === key ? this.detail : null;
    if (cells.bucketSteps === 1 || (from <= first && to >= last)) {
      this.detail = null;
      return;
    }
    const half = (to - from) / 2;
    const { cells: detail } = await this.#cells(scene, base, { column, from: Math.max(0, Math.floor(from - half)),
      to: Math.ceil(to + half), buckets: Math.min(MOST_BUCKETS, 2 * buckets), rows: MOST_ROWS });
    // Of thousands of tensors each answer has its own worst; rows that change under a zoom would be no help.
    if (this.scene === scene && detail.step.length && detail.rows.join("\n") === cells.rows.join("\n"))
      this.detail = { key, cells: detail };
  }

  /** Cells of every statistic that the run has, coarse. */
  async #trends(): Promise<Trend[]> {
    const { scene, tensors } = this;
    if (!scene || !tensors) return [];
    const modes = MODES.filter(({ column, scale }) => scale !== "none" && tensors.columns.includes(column));
    const asked = modes.map((mode) =>
      this.api.heatmap(scene.run, { column: mode.column, buckets: TREND_BUCKETS, rows: MOST_ROWS })
        .then((cells) => [{ mode, cells }], () => [])
    );
    return (await Promise.all(asked)).flat();
  }

  async #loadHistograms(scene: DockScene) {
    const { source, place: { tensor: name } } = this;
    const step = scene.cursor ?? scene.pinned ?? scene.view[1];
    const asked = JSON.stringify([scene.run, name, source, step]);
    this.asked = asked;
    try {
      const [histogram, ridge] = await Promise.all([
        this.api.histogram(scene.run, { source, name, step: Math.round(step) }),
        this.api.ridge(scene.run, { source, name, from: scene.view[0], to: scene.view[1], rows: 48 }),
      ]);
      if (this.asked === asked) [this.histogram, this.ridge] = [histogram, ridge];
    } catch (error) {
      if (!(error instanceof RouteError) || error.status !== 404) throw error;
      if (this.asked === asked) this.histogram = this.ridge = null;
    }
  }

  #draw() {
    const { scene, tensors, overview, place } = this;
    for (const tab of this.tabs) tab.setAttribute("aria-pressed", String(tab.dataset.tab === place.tab));
    this.heatMap.element.hidden = this.heatMap.legend.hidden = place.tab !== "heatmap";
    this.histograms.element.hidden = place.tab !== "histogram";
    if (!scene || !tensors || !this.element.clientHeight) return;
    if (place.tab === "histogram") {
      this.histograms.show({ names: tensors.names, sources: tensors.sources, name: place.tensor, source: this.source,
        histogram: this.histogram, ridge: this.ridge, waiting: this.asked === "" });
    } else if (overview) {
      const { detail } = this;
      const covers = detail && detail.cells.step[0] <= Math.max(scene.view[0], overview.cells.step[0])
        && detail.cells.stepLast[detail.cells.step.length - 1]
          >= Math.min(scene.view[1], overview.cells.stepLast[overview.cells.step.length - 1]);
      this.heatMap.show({ names: overview.cells.rows, modes: MODES.filter((one) =>
        tensors.columns.includes(one.column)
      ), mode: overview.mode, cells: covers ? detail.cells : overview.cells, range: overview.range, view: scene.view,
        geometry: scene.geometry, cursor: scene.cursor, pinned: scene.pinned });
    }
  }

  /** Dark or light. */
  recolor() {
    this.#draw();
  }
}
