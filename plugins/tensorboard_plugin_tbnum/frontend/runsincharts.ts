/**
 * Runs in the charts: the list that one is chosen from, and those beside it, whose module is loaded when there is the
 * first.
 */

import { runTitle } from "./format.ts";
import { hostFilter, onHostRuns } from "./host.ts";
import { RunList } from "./runlist.ts";

import type { Api } from "./api.ts";
import type { Charts } from "./charts.ts";
import type { Overlay, OverlayScene } from "./overlay.ts";
import type { RunTable } from "./answers.ts";
import type { Place } from "./place.ts";

/** What a choice of runs needs to know, and tells. */
export type RunsCallbacks = {
  place: () => Place;
  choose: (run: string) => void;
  table: () => void;
  /** those beside the chosen one */
  others: (runs: string[]) => void;
  group: (grouped: boolean) => void;
  draw: () => void;
  relist: () => void;
  announce: (text: string) => void;
  failed: (error: unknown) => void;
  arrived: (overlay: Overlay) => void;
};

export class RunsInCharts {
  api: Api;
  charts: Charts;
  callbacks: RunsCallbacks;
  list: RunList;
  /** Draws those beside the chosen one, once there are any. */
  overlay: Overlay | null = null;

  constructor(api: Api, charts: Charts, callbacks: RunsCallbacks) {
    this.api = api;
    this.charts = charts;
    this.callbacks = callbacks;
    this.list = new RunList({ choose: callbacks.choose, toggle: (run) => this.toggle(run), table: callbacks.table,
      filtered: callbacks.draw });
  }

  get #place() {
    return this.callbacks.place();
  }

  /** Lists the runs that there are. */
  show(table: RunTable | null) {
    if (!table) return;
    const { run, over } = this.#place;
    this.list.show(table, run, { over: new Set(over), colorOf: (one) => (over.length ? this.colorOf(one) : ""),
      filter: hostFilter() });
  }

  /** "" where colours tell no runs apart. */
  colorOf(run: string) {
    return this.overlay?.colorOf(run) ?? "";
  }

  /** Puts a run into the charts beside the chosen one, or takes it out. */
  toggle(run: string) {
    const { run: chosen, over } = this.#place;
    if (run === chosen) return;
    const out = over.includes(run);
    const others = out ? over.filter((one) => one !== run) : [...over, run];
    this.callbacks.others(others);
    this.callbacks.announce(
      `${runTitle(run)} is ${out ? "no longer" : "now"} in the charts, with ${others.length} beside ${
        runTitle(chosen ?? "")
      }.`,
    );
  }

  /** Says what is to be drawn beside the chosen run, before the charts are drawn. */
  prepare(scene: Pick<OverlayScene, "current" | "rows" | "prefix" | "smoothing" | "buckets">) {
    const { over, grouped, axis, zoom } = this.#place;
    if (!this.overlay) {
      if (over.length) this.#load();
      return;
    }
    const columns = this.charts.panes.filter(({ spec }) => spec.id !== "tensor").map(({ spec }) =>
      (spec.ofOptimizer ? scene.prefix : "") + spec.lines[0].column
    );
    this.overlay.show({ ...scene, others: over.filter((run) => run !== scene.current), grouped, axis,
      zoomed: zoom !== null, columns: [...columns, "skipped", "step"], lets: (run) => this.list.lets(run),
      range: () => [this.charts.geometry.min, this.charts.geometry.max] });
  }

  async #load() {
    const { Overlay } = await import("./overlay.ts");
    if (this.overlay) return;
    const { callbacks } = this;
    const overlay =
      (this.overlay = new Overlay(this.api, { draw: callbacks.draw, redraw: () => this.charts.recolor(),
        failed: callbacks.failed, choose: callbacks.choose, group: callbacks.group,
        remove: (runs) => callbacks.others(this.#place.over.filter((run) => !runs.includes(run))) }));
    this.charts.setOverlay(overlay);
    callbacks.arrived(overlay);
    onHostRuns((runs) => {
      overlay.know(runs);
      callbacks.relist();
    });
    callbacks.relist();
    callbacks.draw();
  }
}
