/** What the charts show of the run's tensors: the least headroom of all of them, and the lines of the chosen one. */

import { exactLine } from "./api.js";

/** @import { Api } from "./api.js" */
/** @import { Cells, Loaded, Model, SeriesLike, TensorsAnswer, Values } from "./types.js" */

const OF_A_TENSOR = ["grad_norm", "update_norm", "param_norm"];
const HEADROOM = "headroom/float16";

export class TensorData {
  /** @param {Api} api */
  constructor(api) {
    this.api = api;
    /** Which tensors the run has; null: not told yet. @type {TensorsAnswer | null} */
    this.answer = null;
    /** @type {Model["tensors"]} */
    this.shown = { headroom: null, tensor: null, name: null };
    this.asked = "";
  }

  /** Another run was chosen. */
  forget() {
    this.answer = null;
    this.shown = { headroom: null, tensor: null, name: null };
    this.asked = "";
  }

  /**
   * Fetches what is to be shown of the run that `answer` is of.
   * @param {Loaded} loaded @param {{tensor: string | null, headroom: boolean, buckets: number}} wanted
   * @returns {Promise<boolean>} whether there is anything new
   */
  async load({ run, info }, wanted) {
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

/** The least over all rows of cells, as a chart's series. @param {Cells} cells @returns {SeriesLike} */
function leastOf({ step, stepLast, bucketSteps, rows, value }) {
  const least = Float64Array.from(step, (_, bucket) => rows.reduce((low, __, row) => {
    const one = value[row * step.length + bucket];
    return one < low || Number.isNaN(low) ? one : low;
  }, NaN));
  return { exact: true, bucketSteps, length: step.length, step, stepLast, line: () => exactLine(least) };
}

/** @param {Map<string, Values>} columns with `step` among them @returns {SeriesLike} */
function exactSeries(columns) {
  const step = /** @type {Float64Array} */ (columns.get("step"));
  return {
    exact: true, bucketSteps: 1, length: step.length, step, stepLast: step,
    line: (name) => exactLine(columns.get(name)),
  };
}
