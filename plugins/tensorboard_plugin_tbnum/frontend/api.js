/** The plugin's HTTP API: routes, the binary layout, and what went wrong. `http_api.md` beside the plugin describes both. */

/** @import { Cells, EventsAnswer, FindingsAnswer, Header, HistogramAnswer, Line, NonfiniteAnswer, RidgeAnswer, RunInfo, RunTable, SettingsAnswer, StepValues, TensorsAnswer, Values } from "./types.js" */

/** The server answered, and said no. */
export class RouteError extends Error {
  /** @param {number} status @param {string} reason */
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

/** There was no answer: TensorBoard was stopped, or the network is gone. */
export class Unreachable extends Error {}

const DTYPES = { float64: Float64Array, float32: Float32Array, uint32: Uint32Array };

/**
 * The arrays of a binary answer, viewed in place.
 * @param {ArrayBuffer} buffer
 * @returns {{header: Header, arrays: Map<string, Values>}}
 */
export function decodeArrays(buffer) {
  if (buffer.byteLength < 4) throw new RangeError(`A binary answer of ${buffer.byteLength} bytes has no header.`);
  const length = new DataView(buffer).getUint32(0, true);
  const data = 4 + length;
  if (data > buffer.byteLength || data % 8) throw new RangeError(`A header of ${length} bytes does not fit its answer.`);
  /** @type {Header} */
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  /** @type {Map<string, Values>} */
  const arrays = new Map();
  for (const array of header.arrays) {
    const Type = DTYPES[/** @type {keyof typeof DTYPES} */ (array.dtype)];
    if (!Type) throw new RangeError(`Array ${array.name} is of the unknown type ${array.dtype}.`);
    arrays.set(array.name, new Type(buffer, data + array.offset, array.length));
  }
  return { header, arrays };
}

/** Columns of a run over an interval of steps: as they are, or reduced to buckets that keep every extreme. */
export class Series {
  /** @param {ArrayBuffer} buffer */
  constructor(buffer) {
    const { header, arrays } = decodeArrays(buffer);
    this.header = header;
    this.arrays = arrays;
    /** Steps in a bucket; 1 where values are exact. */
    this.bucketSteps = header.bucket_steps ?? 1;
    this.step = /** @type {Float64Array} */ (arrays.get("step"));
    this.stepLast = /** @type {Float64Array} */ (arrays.get("step_last") ?? this.step);
    this.wallTime = /** @type {Float64Array} */ (arrays.get("wall_time"));
  }

  get length() {
    return this.step.length;
  }

  get exact() {
    return this.bucketSteps === 1;
  }

  /** @param {string} column @returns {Line | null} null where the run has no such column */
  line(column) {
    if (this.exact) return exactLine(this.arrays.get(column));
    if (!this.arrays.has(`${column}/last`)) return null;
    const parts = ["min", "max", "last", "mean", "nan", "inf", "known"].map((part) => [part, this.arrays.get(`${column}/${part}`) ?? null]);
    return Object.fromEntries(parts);
  }
}

/** Values that stand for one step each, as a line. @param {Values} [values] @returns {Line | null} */
export function exactLine(values) {
  return values ? { min: values, max: values, last: values, mean: null, nan: null, inf: null, known: null } : null;
}

/** A number that JSON carried as a text. @param {unknown} value @returns {any} */
export function revived(value) {
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return value;
}

/** @param {Record<string, any>} values @returns {Record<string, any>} */
function revivedValues(values) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, revived(value)]));
}

const KEPT_ANSWERS = 24;

/** Asks the routes. An answer that has not changed is the very same object as before. */
export class Api {
  /** @param {URL} [base] @param {typeof fetch} [fetcher] */
  constructor(base = new URL("../", import.meta.url), fetcher = (...request) => fetch(...request)) {
    this.base = base;
    this.fetcher = fetcher;
    /** @type {Map<string, {etag: string, value: any}>} */
    this.kept = new Map();
    /** @type {{run: string, answer: EventsAnswer} | null} the events asked for last */
    this.told = null;
  }

  /** @returns {Promise<RunTable>} */
  runs() {
    return this.#get("runs", [], json);
  }

  /** @param {string} run @returns {Promise<RunInfo>} */
  run(run) {
    return this.#get("run", [["run", run]], json);
  }

  /** All events; those that are known from before are not sent again. @param {string} run @returns {Promise<EventsAnswer>} */
  async events(run) {
    const before = this.told?.run === run ? this.told.answer : null;
    const { version, unchanged = 0, events } = await this.#get("events", pairs({ run, since: before?.version }), async (response) => {
      const answer = await response.json();
      for (const event of answer.events) event.data = revivedValues(event.data ?? {});
      return answer;
    });
    if (before && version === before.version) return before;
    const answer = { version, events: before ? [...before.events.slice(0, unchanged), ...events] : events };
    this.told = { run, answer };
    return answer;
  }

  /**
   * @param {string} run
   * @param {{columns: string[], from?: number, to?: number, buckets: number}} query
   * @param {AbortSignal} [signal]
   * @returns {Promise<Series>}
   */
  series(run, { columns, from, to, buckets }, signal) {
    /** @type {[string, string][]} */
    const query = [["run", run], ...columns.map((column) => /** @type {[string, string]} */ (["column", column]))];
    if (from !== undefined) query.push(["from", String(from)]);
    if (to !== undefined) query.push(["to", String(to)]);
    query.push(["buckets", String(buckets)]);
    return this.#get("series", query, async (response) => new Series(await response.arrayBuffer()), signal);
  }

  /** Runs on one x axis. @param {string[][]} lines runs of each @param {[string, string][]} query @param {AbortSignal} [signal] */
  overlay(lines, query, signal) {
    const asked = lines.map((runs) => /** @type {[string, string]} */ (["line", JSON.stringify(runs)]));
    return this.#get("overlay", [...asked, ...query], async (response) => decodeArrays(await response.arrayBuffer()), signal);
  }

  /**
   * @param {string} run @param {string} column
   * @returns {Promise<NonfiniteAnswer>}
   */
  nonfinite(run, column) {
    return this.#get("nonfinite", [["run", run], ["column", column]], async (response) => {
      const { arrays } = decodeArrays(await response.arrayBuffer());
      return {
        step: /** @type {Float64Array} */ (arrays.get("step")),
        wallTime: /** @type {Float64Array} */ (arrays.get("wall_time")),
        value: /** @type {Float32Array} */ (arrays.get("value")),
      };
    });
  }

  /** @param {string} run @param {number} step @param {AbortSignal} [signal] @returns {Promise<StepValues>} */
  step(run, step, signal) {
    return this.#get("step", [["run", run], ["step", String(step)]], async (response) => {
      const answer = await response.json();
      answer.values = revivedValues(answer.values);
      return answer;
    }, signal);
  }

  /** @param {string} run @returns {Promise<TensorsAnswer>} */
  tensors(run) {
    return this.#get("tensors", [["run", run]], json);
  }

  /** @param {string} run @param {{column: string, from?: number, to?: number, buckets: number, rows: number, depth?: number}} query @returns {Promise<Cells>} */
  heatmap(run, query) {
    return this.#get("heatmap", pairs({ run, ...query }), async (response) => {
      const { header, arrays } = decodeArrays(await response.arrayBuffer());
      const minimum = header.reduce === "min";
      return {
        rows: header.rows ?? [], rowsTotal: header.rows_total ?? 0, bucketSteps: header.bucket_steps ?? 1, minimum,
        step: /** @type {Float64Array} */ (arrays.get("step")), stepLast: /** @type {Float64Array} */ (arrays.get("step_last")),
        value: /** @type {Float32Array} */ (arrays.get(minimum ? "min" : "max")), nonfinite: /** @type {Uint32Array} */ (arrays.get("nonfinite")),
      };
    });
  }

  /** Columns of one tensor, every sample. @param {string} run @param {string} name @param {string[]} columns @returns {Promise<Map<string, Values>>} */
  tensor(run, name, columns) {
    return this.#get("tensor", pairs({ run, name, columns: columns.join(",") }), async (response) => decodeArrays(await response.arrayBuffer()).arrays);
  }

  /** @param {string} run @param {{source: string, name: string, step: number}} query @returns {Promise<HistogramAnswer>} */
  histogram(run, query) {
    return this.#get("histogram", pairs({ run, ...query }), json);
  }

  /** @param {string} run @param {{source: string, name: string, from: number, to: number, rows: number}} query @returns {Promise<RidgeAnswer>} */
  ridge(run, query) {
    return this.#get("ridge", pairs({ run, ...query }), async (response) => {
      const { header, arrays } = decodeArrays(await response.arrayBuffer());
      return { bins: header.bins ?? 256, step: /** @type {Float64Array} */ (arrays.get("step")), counts: /** @type {Float32Array} */ (arrays.get("counts")) };
    });
  }

  /** @param {string} run @returns {Promise<FindingsAnswer>} */
  findings(run) {
    return this.#get("findings", [["run", run]], json);
  }

  /** @param {string} run @returns {Promise<SettingsAnswer>} */
  settings(run) {
    return this.#get("settings", [["run", run]], json);
  }

  /** The address of a run's file. @param {string} run @param {"steps" | "events"} what @param {"csv" | "json"} format */
  exportUrl(run, what, format) {
    const url = new URL("export", this.base);
    url.search = new URLSearchParams({ run, what, format }).toString();
    return url.href;
  }

  /**
   * @template T
   * @param {string} route @param {[string, string][]} query @param {(response: Response) => Promise<T>} decode
   * @param {AbortSignal} [signal]
   * @returns {Promise<T>}
   */
  async #get(route, query, decode, signal) {
    const url = new URL(route, this.base);
    url.search = new URLSearchParams(query).toString();
    const key = url.href;
    const known = this.kept.get(key);
    /** @type {Response} */
    let response;
    let value;
    try {
      const headers = known ? { "If-None-Match": known.etag } : undefined;
      response = await this.fetcher(url, { headers, signal, cache: "no-store" });
      if (response.status === 304 && known) {
        value = known.value;
      } else if (response.ok) {
        value = await decode(response);
      }
    } catch (error) {
      if (signal?.aborted || error instanceof RangeError) throw error;
      throw new Unreachable(error instanceof Error ? error.message : String(error));
    }
    if (response.status !== 304 && !response.ok) throw new RouteError(response.status, await reasonOf(response));
    const etag = response.headers.get("ETag") ?? known?.etag;
    this.kept.delete(key);
    if (etag) this.kept.set(key, { etag, value });
    if (this.kept.size > KEPT_ANSWERS) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    return value;
  }
}

/** @param {Record<string, string | number | undefined>} query @returns {[string, string][]} */
function pairs(query) {
  return Object.entries(query).filter(([, value]) => value !== undefined).map(([name, value]) => [name, String(value)]);
}

/** @param {Response} response */
function json(response) {
  return response.json();
}

/** @param {Response} response */
async function reasonOf(response) {
  const text = await response.text().catch(() => "");
  try {
    return String(JSON.parse(text).error ?? text);
  } catch {
    return text || `HTTP ${response.status}`;
  }
}
