/** What opens below the charts: tensors, findings, values and runs. Each is loaded when it is opened first, and drawn while it is open. */

import { element } from "./elements.js";
import { measuredNan } from "./plotdata.js";
import { placesOf } from "./xaxis.js";

/** @import { Api } from "./api.js" */
/** @import { FindingsTable } from "./findings.js" */
/** @import { RunsTable } from "./runs.js" */
/** @import { TensorsDock } from "./tensorsdock.js" */
/** @import { ValuesTable } from "./values.js" */
/** @import { DocksCallbacks, DocksScene, Place } from "./types.js" */

export class Docks {
  /** @param {Api} api @param {DocksCallbacks} callbacks */
  constructor(api, callbacks) {
    this.api = api;
    this.callbacks = callbacks;
    /** Heat map and histograms. @type {TensorsDock | null} */
    this.tensors = null;
    /** @type {FindingsTable | null} */
    this.findings = null;
    /** @type {ValuesTable | null} */
    this.values = null;
    /** @type {RunsTable | null} */
    this.runs = null;
    this.element = element("div", { class: "dock-root", hidden: true });
  }

  /** @param {Place["dock"]} tab null: nothing */
  async open(tab) {
    const { callbacks } = this;
    callbacks.place().dock = tab;
    this.element.hidden = tab === null;
    callbacks.opening(tab);
    if (tab) {
      const shown = await this.#load(tab);
      const { dock, column, tensor } = callbacks.place();
      if (dock !== tab) return; // another one was opened meanwhile
      if (shown.parentNode !== this.element) this.element.replaceChildren(shown);
      if (this.tensors && isOfTensors(tab)) Object.assign(this.tensors.place, { tab, column: column ?? this.tensors.place.column, tensor: tensor ?? "*" });
    }
    callbacks.opened();
  }

  /** @param {NonNullable<Place["dock"]>} tab */
  toggle(tab) {
    const { dock } = this.callbacks.place();
    this.open(dock === tab || (isOfTensors(tab) && isOfTensors(dock)) ? null : tab);
  }

  /** A tensor's lines above, and its histogram below. @param {string | null} name "*" or null: none @param {number | null} step */
  openTensor(name, step) {
    const place = this.callbacks.place();
    place.tensor = name === "*" ? null : name;
    if (this.tensors) this.tensors.place.tensor = name ?? "*";
    if (step !== null) this.callbacks.pin(step);
    this.open(name === null ? place.dock : "histogram");
    this.callbacks.tensorChosen();
  }

  close = () => this.open(null);

  /** What a tab shows, loaded. @param {NonNullable<Place["dock"]>} tab @returns {Promise<HTMLElement>} */
  async #load(tab) {
    const { api, callbacks } = this;
    switch (tab) {
      case "findings": {
        const { FindingsTable } = await import("./findings.js");
        return (this.findings ??= new FindingsTable(api, { go: callbacks.go, close: this.close, figure: callbacks.figure })).element;
      }
      case "values": {
        const { ValuesTable } = await import("./values.js");
        return (this.values ??= new ValuesTable({ close: this.close })).element;
      }
      case "runs": {
        const { RunsTable } = await import("./runs.js");
        return (this.runs ??= new RunsTable(api, { close: this.close, choose: callbacks.chooseRun, toggle: callbacks.toggleRun, draw: callbacks.draw })).element;
      }
      default: {
        const { TensorsDock } = await import("./tensorsdock.js");
        return (this.tensors ??= new TensorsDock(api, {
          hover: callbacks.hover, zoom: callbacks.zoom, pin: callbacks.pin, close: this.close, open: (name, step) => this.openTensor(name, step),
          place: ({ tab: chosen, column }) => {
            Object.assign(callbacks.place(), { dock: chosen, column: column === "grad_norm" ? null : column });
            callbacks.opening(chosen);
            callbacks.opened();
          },
        })).element;
      }
    }
  }

  /** Draws what is open. @param {Place["dock"]} tab @param {DocksScene} scene */
  show(tab, { loaded, charts, overlay, series, prefix, view, cursor, pinned, over, runs, colorOf }) {
    if (tab === "runs") this.runs?.show(runs, loaded.run, over, colorOf);
    else if (tab === "values") {
      const lines = charts.lines.map((one) => {
        const nan = series.exact && !one.spec.ofTensors ? measuredNan(one.line.column, series, prefix, loaded.nonfiniteAnswer) : one.column.nan;
        return { ...one, column: { ...one.column, nan } };
      });
      const { name, others } = overlay?.sources(charts.panes.map(({ spec }) => spec)) ?? { name: "", others: [] };
      this.values?.show([{ name, of: series, series, lines, view, places: placesOf("step", series.exact), several: false }, ...others]);
    } else if (tab === "findings") {
      if (loaded.eventsAnswer) this.findings?.show(loaded.run, loaded.eventsAnswer.events, loaded.eventsAnswer.version);
    } else if (tab) {
      this.tensors?.show({ run: loaded.run, version: loaded.info.version, view, geometry: charts.geometry, cursor, pinned });
    }
  }
}

/** @param {Place["dock"]} tab */
export function isOfTensors(tab) {
  return tab === "heatmap" || tab === "histogram";
}
