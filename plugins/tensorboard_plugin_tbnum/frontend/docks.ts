/**
 * What opens below the charts: tensors, findings, values and runs. Each is loaded when it is opened first, and drawn
 * while it is open.
 */

import { isOfTensors } from "./actions.ts";
import { element } from "./elements.ts";
import { runTitle } from "./format.ts";
import { DRAWN } from "./model.ts";
import { measuredNan } from "./plotdata.ts";
import { prefixOf, seriesOf, viewOf } from "./state.ts";
import { placesOf } from "./xaxis.ts";

import type { Api } from "./api.ts";
import type { Charts } from "./charts.ts";
import type { FindingsTable } from "./findings.ts";
import type { LedHere } from "./ledhere.ts";
import type { Place } from "./place.ts";
import type { Loaded } from "./rundata.ts";
import type { RunsTable } from "./runs.ts";
import type { RunsInCharts } from "./runsincharts.ts";
import type { PanelStore } from "./state.ts";
import type { TensorsDock } from "./tensorsdock.ts";
import type { ValuesTable } from "./values.ts";

export class Docks {
  /** Heat map and histograms. */
  tensors: TensorsDock | null = null;
  findings: FindingsTable | null = null;
  values: ValuesTable | null = null;
  runs: RunsTable | null = null;
  led: LedHere | null = null;
  element = element("div", { class: "dock-root", hidden: true });

  constructor(readonly api: Api, readonly store: PanelStore, readonly charts: Charts, readonly beside: RunsInCharts) {
    store.watch(["dock", "loaded", "tensors"], () => this.#open());
    store.watch([...DRAWN, "column", "tensor", "table", "now", "led", "health"], () => this.#draw());
  }

  async #open() {
    const { store, store: { state } } = this;
    const { dock } = state;
    this.element.hidden = dock === null;
    if (dock === state.opened || !state.loaded) return;
    if (isOfTensors(dock) && !state.tensors.answer?.names.length) return; // not known yet whether there are any
    if (dock) {
      const shown = await this.#load(dock);
      if (state.dock !== dock) return; // another one was opened meanwhile
      if (shown.parentNode !== this.element) this.element.replaceChildren(shown);
    }
    store.set({ opened: dock });
  }

  /** What a tab shows, loaded. */
  async #load(tab: NonNullable<Place["dock"]>): Promise<HTMLElement> {
    const { api, store, charts, beside } = this;
    switch (tab) {
      case "findings": {
        const { FindingsTable } = await import("./findings.ts");
        return (this.findings ??= new FindingsTable(api, store, (form) => this.figure(form))).element;
      }
      case "led": {
        const { LedHere } = await import("./ledhere.ts");
        return (this.led ??= new LedHere(api, store)).element;
      }
      case "values": {
        const { ValuesTable } = await import("./values.ts");
        return (this.values ??= new ValuesTable(store)).element;
      }
      case "runs": {
        const { RunsTable } = await import("./runs.ts");
        return (this.runs ??= new RunsTable(api, store, (run) => beside.colorOf(run))).element;
      }
      default: {
        const { TensorsDock } = await import("./tensorsdock.ts");
        return (this.tensors ??= new TensorsDock(api, store, charts)).element;
      }
    }
  }

  /** The charts as a picture. */
  async figure(form: "svg" | "png"): Promise<Blob> {
    const { figureSvg, pngBlob, svgBlob } = await import("./figure.ts");
    const { overlay } = this.beside;
    const made = figureSvg(this.charts, runTitle(this.store.state.run ?? ""),
      overlay?.data.active ? overlay.legend.named : []);
    return form === "svg" ? svgBlob(made) : pngBlob(made);
  }

  /** Draws what is open, after the charts. */
  #draw() {
    const { opened, loaded } = this.store.state;
    if (!loaded) return;
    if (opened === "runs") this.runs?.show();
    else if (opened === "values") this.#drawValues(loaded);
    else if (opened === "led") this.led?.show();
    else if (opened === "findings") this.findings?.show();
    else if (isOfTensors(opened)) this.tensors?.show();
  }

  #drawValues({ nonfiniteAnswer }: Loaded) {
    const { charts, beside: { overlay }, store: { state } } = this;
    const series = seriesOf(state);
    const lines = charts.lines.map((one) => {
      const nan = series.exact && !one.spec.ofTensors
        ? measuredNan(one.line.column, series, prefixOf(state), nonfiniteAnswer) : one.column.nan;
      return { ...one, column: { ...one.column, nan } };
    });
    const { name, others } = overlay?.sources(charts.panes.map(({ spec }) => spec)) ?? { name: "", others: [] };
    this.values?.show([{ name, of: series, series, lines, view: viewOf(state), places: placesOf("step", series.exact),
      several: false }, ...others]);
  }
}
