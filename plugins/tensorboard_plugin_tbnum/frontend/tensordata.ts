/** What the charts show of the run's tensors: the least headroom of all of them, and the lines of the chosen one. */

import { exactLine } from "./api.ts";

import type { Api } from "./api.ts";
import type { Cells, SeriesLike, TensorsAnswer, Values } from "./answers.ts";
import type { Model } from "./charts.ts";
import type { Loaded } from "./rundata.ts";

const OF_A_TENSOR = ["grad_norm", "update_norm", "param_norm"];
const HEADROOM = "headroom/float16";

export class TensorData {
  api: Api;
  /** Which tensors the run has; null: not told yet. */
  answer: TensorsAnswer | null = null;
  shown: Model["tensors"] = { headroom: null, tensor: null, name: null };
  asked = "";

  constructor(api: Api) {
    this.api = api;
  }

  /** Another run was chosen. */
  forget() {
    this.answer = null;
    this.shown = { headroom: null, tensor: null, name: null };
    this.asked = "";
  }

  /**
   * Fetches what is to be shown of the run that `answer` is of.
   *
   * @returns whether there is anything new
   */
  async load({ run, info }: Loaded,
    wanted: { tensor: string | null; headroom: boolean; buckets: number }): Promise<boolean> {
    const { answer } = this;
    if (!answer) return false;
    const name = wanted.tensor && answer.names.includes(wanted.tensor) ? wanted.tensor : null;
    const headroom = wanted.headroom && answer.columns.includes(HEADROOM);
    const asked = JSON.stringify([info.version, name, headroom]);
    if (asked === this.asked) return false;
    this.asked = asked;
    const depth = answer.groups["1"] ? { depth: 1 } : {};
    const [cells, columns] = await Promise.all([
      headroom ? this.api.heatmap(run, { column: HEADROOM, buckets: wanted.buckets, rows: 4096, ...depth }) : null,
      name ? this.api.tensor(run, name, OF_A_TENSOR.filter((column) => answer.columns.includes(column))) : null,
    ]);
    if (asked !== this.asked) return false;
    const shown = { ...this.shown, name };
    shown.headroom = cells && leastOf(cells);
    shown.tensor = columns && exactSeries(columns);
    this.shown = shown;
    return true;
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
