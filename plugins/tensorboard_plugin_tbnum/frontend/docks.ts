/**
 * What opens below the charts: tensors, findings, values and runs. Each is loaded when it is opened first, and drawn
 * while it is open.
 */

import { element } from "./elements.ts";
import { measuredNan } from "./plotdata.ts";
import { placesOf } from "./xaxis.ts";

import type { Api, Series } from "./api.ts";
import type { FindingsTable } from "./findings.ts";
import type { RunsTable } from "./runs.ts";
import type { TensorsDock } from "./tensorsdock.ts";
import type { ValuesTable } from "./values.ts";
import type { RunRow, TbnumEvent } from "./answers.ts";
import type { Charts } from "./charts.ts";
import type { Overlay } from "./overlay.ts";
import type { Place } from "./place.ts";
import type { Loaded } from "./rundata.ts";

/** What opens below the charts, and what is done there. */
export type DocksCallbacks = {
  place: () => Place;
  opening: (tab: Place["dock"]) => void;
  opened: () => void;
  tensorChosen: () => void;
  pin: (step: number) => void;
  go: (step: number, event: TbnumEvent | null) => void;
  zoom: (from: number, to: number) => void;
  hover: (step: number | null) => void;
  chooseRun: (run: string) => void;
  toggleRun: (run: string) => void;
  draw: () => void;
  figure: () => Promise<Blob>;
};

/** What it is drawn from. */
export type DocksScene = {
  loaded: Loaded;
  charts: Charts;
  series: Series;
  view: [number, number];
  cursor: number | null;
  pinned: number | null;
  overlay: Overlay | null;
  prefix: string;
  over: Set<string>;
  runs: RunRow[];
  colorOf: (run: string) => string;
};

export class Docks {
  api: Api;
  callbacks: DocksCallbacks;
  /** Heat map and histograms. */
  tensors: TensorsDock | null = null;
  findings: FindingsTable | null = null;
  values: ValuesTable | null = null;
  runs: RunsTable | null = null;
  element = element("div", { class: "dock-root", hidden: true });

  constructor(api: Api, callbacks: DocksCallbacks) {
    this.api = api;
    this.callbacks = callbacks;
  }

  /** @param tab null: nothing */
  async open(tab: Place["dock"]) {
    const { callbacks } = this;
    callbacks.place().dock = tab;
    this.element.hidden = tab === null;
    callbacks.opening(tab);
    if (tab) {
      const shown = await this.#load(tab);
      const { dock, column, tensor } = callbacks.place();
      if (dock !== tab) return; // another one was opened meanwhile
      if (shown.parentNode !== this.element) this.element.replaceChildren(shown);
      if (this.tensors && isOfTensors(tab))
        Object.assign(this.tensors.place, { tab, column: column ?? this.tensors.place.column, tensor: tensor ?? "*" });
    }
    callbacks.opened();
  }

  toggle(tab: NonNullable<Place["dock"]>) {
    const { dock } = this.callbacks.place();
    this.open(dock === tab || (isOfTensors(tab) && isOfTensors(dock)) ? null : tab);
  }

  /** A tensor's lines above, and its histogram below. @param name "*" or null: none */
  openTensor(name: string | null, step: number | null) {
    const place = this.callbacks.place();
    place.tensor = name === "*" ? null : name;
    if (this.tensors) this.tensors.place.tensor = name ?? "*";
    if (step !== null) this.callbacks.pin(step);
    this.open(name === null ? place.dock : "histogram");
    this.callbacks.tensorChosen();
  }

  close = () => this.open(null);

  /** What a tab shows, loaded. */
  async #load(tab: NonNullable<Place["dock"]>): Promise<HTMLElement> {
    const { api, callbacks } = this;
    switch (tab) {
      case "findings": {
        const { FindingsTable } = await import("./findings.ts");
        return (this.findings ??= new FindingsTable(api, { go: callbacks.go, close: this.close,
          figure: callbacks.figure })).element;
      }
      case "values": {
        const { ValuesTable } = await import("./values.ts");
        return (this.values ??= new ValuesTable({ close: this.close })).element;
      }
      case "runs": {
        const { RunsTable } = await import("./runs.ts");
        return (this.runs ??= new RunsTable(api, { close: this.close, choose: callbacks.chooseRun,
          toggle: callbacks.toggleRun, draw: callbacks.draw })).element;
      }
      default: {
        const { TensorsDock } = await import("./tensorsdock.ts");
        return (this.tensors ??= new TensorsDock(api, { hover: callbacks.hover, zoom: callbacks.zoom,
          pin: callbacks.pin, close: this.close, open: (name, step) => this.openTensor(name, step),
          place: ({ tab: chosen, column }) => {
            Object.assign(callbacks.place(), { dock: chosen, column: column === "grad_norm" ? null : column });
            callbacks.opening(chosen);
            callbacks.opened();
          } })).element;
      }
    }
  }

  /** Draws what is open. */
  show(tab: Place["dock"],
    { loaded, charts, overlay, series, prefix, view, cursor, pinned, over, runs, colorOf }: DocksScene) {
    if (tab === "runs") this.runs?.show(runs, loaded.run, over, colorOf);
    else if (tab === "values") {
      const lines = charts.lines.map((one) => {
        const nan = series.exact && !one.spec.ofTensors
          ? measuredNan(one.line.column, series, prefix, loaded.nonfiniteAnswer) : one.column.nan;
        return { ...one, column: { ...one.column, nan } };
      });
      const { name, others } = overlay?.sources(charts.panes.map(({ spec }) => spec)) ?? { name: "", others: [] };
      this.values?.show([{ name, of: series, series, lines, view, places: placesOf("step", series.exact),
        several: false }, ...others]);
    } else if (tab === "findings") {
      if (loaded.eventsAnswer) this.findings?.show(loaded.run, loaded.eventsAnswer.events, loaded.eventsAnswer.version);
    } else if (tab) {
      this.tensors?.show({ run: loaded.run, version: loaded.info.version, view, geometry: charts.geometry, cursor,
        pinned });
    }
  }
}

export function isOfTensors(tab: Place["dock"]) {
  return tab === "heatmap" || tab === "histogram";
}
