/** What the charts show of the run's tensors: the least headroom of all of them, and the lines of the chosen one. */

import { isOfTensors } from "./actions.ts";
import { RouteError, Unreachable, exactLine } from "./api.ts";
import { bucketsOf } from "./state.ts";

import type { Api } from "./api.ts";
import type { Cells, SeriesLike, Values } from "./answers.ts";
import type { PanelStore } from "./state.ts";

const OF_A_TENSOR = ["grad_norm", "update_norm", "param_norm"];
const HEADROOM = "headroom/float16";

export class TensorData {
  asked = "";

  constructor(readonly api: Api, readonly store: PanelStore) {
    store.watch(["run"], () => {
      this.asked = "";
    });
    store.watch(["tensor", "views"], () => this.load());
  }

  /** Finds out whether the run has tensors, and fetches what the charts show of them. */
  async load() {
    const { api, store, store: { state } } = this;
    const { loaded } = state;
    if (!loaded) return;
    const isSame = () => state.loaded?.run === loaded.run;
    try {
      const answer = await api.tensors(loaded.run);
      if (!isSame()) return;
      if (answer !== state.tensors.answer) store.set({ tensors: { ...state.tensors, answer } });
      if (!answer.names.length && isOfTensors(state.dock)) store.set({ dock: null });
      const name = state.tensor && answer.names.includes(state.tensor) ? state.tensor : null;
      const headroom = !state.views.hidden.has("headroom") && answer.columns.includes(HEADROOM);
      const asked = JSON.stringify([loaded.info.version, name, headroom]);
      if (asked === this.asked) return;
      this.asked = asked;
      const depth = answer.groups["1"] ? { depth: 1 } : {};
      const [cells, columns] = await Promise.all([
        headroom ? api.heatmap(loaded.run, { column: HEADROOM, buckets: bucketsOf(state), rows: 4096, ...depth })
          : null,
        name ? api.tensor(loaded.run, name, OF_A_TENSOR.filter((column) => answer.columns.includes(column))) : null,
      ]);
      if (asked !== this.asked || !isSame()) return;
      store.set({
        tensors: { answer, name, headroom: cells && leastOf(cells), tensor: columns && exactSeries(columns) },
      });
    } catch (error) {
      if (!(error instanceof Unreachable) && !(error instanceof RouteError)) throw error;
      this.asked = ""; // the next one asks again
    }
  }
}

/** The least over all rows of cells, as a chart's series. */
function leastOf({ step, stepLast, bucketSteps, rows, value }: Cells): SeriesLike {
  const least = Float64Array.from(step, (_, bucket) =>
    rows.reduce((low, __, row) => {
      const one = value[row * step.length + bucket];
      return one < low || Number.isNaN(low) ? one : low;
    }, NaN));
  return { exact: true, bucketSteps, length: step.length, step, stepLast, line: () => exactLine(least) };
}

/** @param columns with `step` among them */
function exactSeries(columns: Map<string, Values>): SeriesLike {
  const step = columns.get("step") as Float64Array;
  return { exact: true, bucketSteps: 1, length: step.length, step, stepLast: step,
    line: (name) => exactLine(columns.get(name)) };
}
