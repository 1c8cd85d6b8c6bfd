/** Runs in the charts: the list that one is chosen from, and those beside it, whose module is loaded when there is the first. */

import { runTitle } from "./format.js";
import { hostFilter, onHostRuns } from "./host.js";
import { RunList } from "./runlist.js";

/** @import { Api } from "./api.js" */
/** @import { Charts } from "./charts.js" */
/** @import { Overlay } from "./overlay.js" */
/** @import { OverlayScene, RunTable, RunsCallbacks } from "./types.js" */

export class RunsInCharts {
  /** @param {Api} api @param {Charts} charts @param {RunsCallbacks} callbacks */
  constructor(api, charts, callbacks) {
    this.api = api;
    this.charts = charts;
    this.callbacks = callbacks;
    this.list = new RunList({ choose: callbacks.choose, toggle: (run) => this.toggle(run), table: callbacks.table, filtered: callbacks.draw });
    /** Draws those beside the chosen one, once there are any. @type {Overlay | null} */
    this.overlay = null;
  }

  get #place() {
    return this.callbacks.place();
  }

  /** Lists the runs that there are. @param {RunTable | null} table */
  show(table) {
    if (!table) return;
    const { run, over } = this.#place;
    this.list.show(table, run, { over: new Set(over), colorOf: (one) => (over.length ? this.colorOf(one) : ""), filter: hostFilter() });
  }

  /** "" where colours tell no runs apart. @param {string} run */
  colorOf(run) {
    return this.overlay?.colorOf(run) ?? "";
  }

  /** Puts a run into the charts beside the chosen one, or takes it out. @param {string} run */
  toggle(run) {
    const { run: chosen, over } = this.#place;
    if (run === chosen) return;
    const out = over.includes(run);
    const others = out ? over.filter((one) => one !== run) : [...over, run];
    this.callbacks.others(others);
    this.callbacks.announce(`${runTitle(run)} is ${out ? "no longer" : "now"} in the charts, with ${others.length} beside ${runTitle(chosen ?? "")}.`);
  }

  /** Says what is to be drawn beside the chosen run, before the charts are drawn. @param {Pick<OverlayScene, "current" | "rows" | "prefix" | "smoothing" | "buckets">} scene */
  prepare(scene) {
    const { over, grouped, axis, zoom } = this.#place;
    if (!this.overlay) {
      if (over.length) this.#load();
      return;
    }
    const columns = this.charts.panes.filter(({ spec }) => spec.id !== "tensor").map(({ spec }) => (spec.ofOptimizer ? scene.prefix : "") + spec.lines[0].column);
    this.overlay.show({
      ...scene, others: over.filter((run) => run !== scene.current), grouped, axis, zoomed: zoom !== null, columns: [...columns, "skipped", "step"],
      lets: (run) => this.list.lets(run), range: () => [this.charts.geometry.min, this.charts.geometry.max],
    });
  }

  async #load() {
    const { Overlay } = await import("./overlay.js");
    if (this.overlay) return;
    const { callbacks } = this;
    const overlay = (this.overlay = new Overlay(this.api, {
      draw: callbacks.draw, redraw: () => this.charts.recolor(), failed: callbacks.failed, choose: callbacks.choose, group: callbacks.group,
      remove: (runs) => callbacks.others(this.#place.over.filter((run) => !runs.includes(run))),
    }));
    this.charts.setOverlay(overlay);
    callbacks.arrived(overlay);
    onHostRuns((runs) => { overlay.know(runs); callbacks.relist(); });
    callbacks.relist();
    callbacks.draw();
  }
}
