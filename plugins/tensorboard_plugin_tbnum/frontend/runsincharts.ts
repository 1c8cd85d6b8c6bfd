/**
 * Runs in the charts: the list that one is chosen from, and those beside it, whose module is loaded when there is the
 * first.
 */

import { onHostRuns } from "./host.ts";
import { RunList } from "./runlist.ts";

import type { Api } from "./api.ts";
import type { Charts } from "./charts.ts";
import type { Overlay } from "./overlay.ts";
import type { PanelStore } from "./state.ts";

export class RunsInCharts {
  list: RunList;
  /** Draws those beside the chosen one, once there are any. */
  overlay: Overlay | null = null;

  /** @param charts they are asked for when there are runs to draw in them */
  constructor(readonly api: Api, readonly store: PanelStore, readonly charts: () => Charts,
    readonly arrived: (overlay: Overlay) => void) {
    this.list = new RunList(api, store, (run) => this.colorOf(run));
    store.watch(["table", "run", "over", "filter", "filterAside", "now", "health", "runOrder"], () => this.list.show());
    store.watch(["over", "loaded"], () => {
      if (store.state.over.length && store.state.loaded) this.#load();
    });
  }

  /** "" where colours do not distinguish runs. */
  colorOf(run: string) {
    return this.overlay?.data.colorOf(run) ?? "";
  }

  async #load() {
    if (this.overlay) return;
    const { Overlay } = await import("./overlay.ts");
    if (this.overlay) return;
    const overlay = (this.overlay = new Overlay(this.api, this.store, this.charts()));
    this.charts().setOverlay(overlay);
    this.arrived(overlay);
    onHostRuns((runs) => {
      overlay.know(runs);
      this.list.show();
    });
    this.list.show();
    overlay.data.redraw();
  }
}
