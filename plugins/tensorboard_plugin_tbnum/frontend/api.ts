/**
 * The plugin's HTTP API: routes, the binary layout, and what went wrong. `http_api.md` beside the plugin describes
 * both.
 */

import type { ApartAnswer, BandAnswer, Cells, EventsAnswer, FindingsAnswer, Header, HealthAnswer, HistogramAnswer,
  LedAnswer, Line, NonfiniteAnswer, RidgeAnswer, RunInfo, RunTable, SettingsAnswer, StepValues, TensorsAnswer,
  Values } from "./answers.ts";

/** The server answered, and said no. */
export class RouteError extends Error {
  status: number;

  constructor(status: number, reason: string) {
    super(reason);
    this.status = status;
  }
}

/** There was no answer: TensorBoard was stopped, or the network is gone. */
export class Unreachable extends Error {}

const DTYPES = { float64: Float64Array, float32: Float32Array, uint32: Uint32Array };

/** The arrays of a binary answer, viewed in place. */
export function decodeArrays(buffer: ArrayBuffer): { header: Header; arrays: Map<string, Values> } {
  if (buffer.byteLength < 4) throw new RangeError(`A binary answer of ${buffer.byteLength} bytes has no header.`);
  const length = new DataView(buffer).getUint32(0, true);
  const data = 4 + length;
  if (data > buffer.byteLength || data % 8)
    throw new RangeError(`A header of ${length} bytes does not fit its answer.`);
  const header: Header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const arrays: Map<string, Values> = new Map();
  for (const array of header.arrays) {
    const Type = DTYPES[array.dtype as keyof typeof DTYPES];
    if (!Type) throw new RangeError(`Array ${array.name} is of the unknown type ${array.dtype}.`);
    arrays.set(array.name, new Type(buffer, data + array.offset, array.length));
  }
  return { header, arrays };
}

/** Columns of a run over an interval of steps: as they are, or reduced to buckets that keep every extreme. */
export class Series {
  header: Header;
  arrays: Map<string, Values>;
  /** Steps in a bucket; 1 where values are exact. */
  bucketSteps: number;
  step: Float64Array<ArrayBufferLike>;
  stepLast: Float64Array<ArrayBufferLike>;
  wallTime: Float64Array<ArrayBufferLike>;

  constructor(buffer: ArrayBuffer) {
    const { header, arrays } = decodeArrays(buffer);
    this.header = header;
    this.arrays = arrays;
    this.bucketSteps = header.bucket_steps ?? 1;
    this.step = arrays.get("step") as Float64Array;
    this.stepLast = (arrays.get("step_last") ?? this.step) as Float64Array;
    this.wallTime = arrays.get("wall_time") as Float64Array;
  }

  get length() {
    return this.step.length;
  }

  get exact() {
    return this.bucketSteps === 1;
  }

  /** @returns null where the run has no such column */
  line(column: string): Line | null {
    if (this.exact) return exactLine(this.arrays.get(column));
    if (!this.arrays.has(`${column}/last`)) return null;
    const parts = ["min", "max", "last", "mean", "nan", "inf", "known"].map((
      part,
    ) => [part, this.arrays.get(`${column}/${part}`) ?? null]);
    return Object.fromEntries(parts);
  }
}

/** Values that stand for one step each, as a line. */
export function exactLine(values?: Values): Line | null {
  return values ? { min: values, max: values, last: values, mean: null, nan: null, inf: null, known: null } : null;
}

/** A number that JSON carried as a text. */
export function revived(value: unknown): any {
  if (value === "NaN") return NaN;
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return value;
}

function revivedValues(values: Record<string, any>): Record<string, any> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, revived(value)]));
}

const KEPT_ANSWERS = 24;

/** Asks the routes. An answer that has not changed is the very same object as before. */
export class Api {
  base: URL;
  fetcher: (input: URL | RequestInfo, init?: RequestInit | undefined) => Promise<Response>;
  kept: Map<string, { etag: string; value: any }> = new Map();
  /** the events asked for last */
  answered: { run: string; answer: EventsAnswer } | null = null;

  constructor(base: URL = new URL("../", import.meta.url), fetcher: typeof fetch = (...request) => fetch(...request)) {
    this.base = base;
    this.fetcher = fetcher;
  }

  runs(): Promise<RunTable> {
    return this.#get("runs", [], json);
  }

  run(run: string): Promise<RunInfo> {
    return this.#get("run", [["run", run]], json);
  }

  /** All events; those that are known from before are not sent again. */
  async events(run: string): Promise<EventsAnswer> {
    const before = this.answered?.run === run ? this.answered.answer : null;
    const query = pairs({ run, since: before?.version });
    const { version, unchanged = 0, events, headline } = await this.#get("events", query,
      async (response) => {
        const answer = await response.json();
        for (const event of answer.events) event.data = revivedValues(event.data ?? {});
        return answer;
      });
    if (before && version === before.version) return before;
    const answer = { version, headline, events: before ? [...before.events.slice(0, unchanged), ...events] : events };
    this.answered = { run, answer };
    return answer;
  }

  series(run: string,
    { columns, from, to, buckets }: { columns: string[]; from?: number; to?: number; buckets: number },
    signal?: AbortSignal): Promise<Series> {
    const query: [string, string][] = [["run", run],
      ...columns.map((column) => (["column", column] as [string, string]))];
    if (from !== undefined) query.push(["from", String(from)]);
    if (to !== undefined) query.push(["to", String(to)]);
    query.push(["buckets", String(buckets)]);
    return this.#get("series", query, async (response) => new Series(await response.arrayBuffer()), signal);
  }

  /** Runs on one x axis. @param lines runs of each */
  overlay(lines: string[][], query: [string, string][], signal?: AbortSignal) {
    const asked = lines.map((runs) => (["line", JSON.stringify(runs)] as [string, string]));
    return this.#get("overlay", [...asked, ...query], async (response) => decodeArrays(await response.arrayBuffer()),
      signal);
  }

  nonfinite(run: string, column: string): Promise<NonfiniteAnswer> {
    return this.#get("nonfinite", [["run", run], ["column", column]], async (response) => {
      const { arrays } = decodeArrays(await response.arrayBuffer());
      return { step: arrays.get("step") as Float64Array, wallTime: arrays.get("wall_time") as Float64Array,
        value: arrays.get("value") as Float32Array };
    });
  }

  step(run: string, step: number, signal?: AbortSignal): Promise<StepValues> {
    return this.#get("step", [["run", run], ["step", String(step)]], async (response) => {
      const answer = await response.json();
      answer.values = revivedValues(answer.values);
      return answer;
    }, signal);
  }

  tensors(run: string): Promise<TensorsAnswer> {
    return this.#get("tensors", [["run", run]], json);
  }

  heatmap(run: string,
    query: { column: string; from?: number; to?: number; buckets: number; rows: number; depth?: number }
  ): Promise<Cells> {
    return this.#get("heatmap", pairs({ run, ...query }), async (response) => {
      const { header, arrays } = decodeArrays(await response.arrayBuffer());
      const minimum = header.reduce === "min";
      return { rows: header.rows ?? [], rowsTotal: header.rows_total ?? 0, bucketSteps: header.bucket_steps ?? 1,
        minimum, step: arrays.get("step") as Float64Array, stepLast: arrays.get("step_last") as Float64Array,
        value: arrays.get(minimum ? "min" : "max") as Float32Array, nonfinite: arrays.get("nonfinite") as Uint32Array };
    });
  }

  /** Columns of one tensor, every sample. */
  tensor(run: string, name: string, columns: string[]): Promise<Map<string, Values>> {
    return this.#get("tensor", pairs({ run, name, columns: columns.join(",") }),
      async (response) => decodeArrays(await response.arrayBuffer()).arrays);
  }

  histogram(run: string, query: { source: string; name: string; step: number }): Promise<HistogramAnswer> {
    return this.#get("histogram", pairs({ run, ...query }), json);
  }

  ridge(run: string,
    query: { source: string; name: string; from: number; to: number; rows: number }): Promise<RidgeAnswer> {
    return this.#get("ridge", pairs({ run, ...query }), async (response) => {
      const { header, arrays } = decodeArrays(await response.arrayBuffer());
      return { bins: header.bins ?? 256, step: arrays.get("step") as Float64Array,
        counts: arrays.get("counts") as Float32Array };
    });
  }

  findings(run: string): Promise<FindingsAnswer> {
    return this.#get("findings", [["run", run]], json);
  }

  settings(run: string): Promise<SettingsAnswer> {
    return this.#get("settings", [["run", run]], json);
  }

  health(run: string): Promise<HealthAnswer> {
    return this.#get("health", [["run", run]], json);
  }

  /** Where two runs part. */
  apart(a: string, b: string): Promise<ApartAnswer> {
    return this.#get("apart", pairs({ a, b }), json);
  }

  /** Where a run leaves what seeds of one setting do. */
  band(run: string, seeds: string[], columns: string[]): Promise<BandAnswer> {
    return this.#get("band", pairs({ run, line: JSON.stringify(seeds), columns: columns.join(",") }), json);
  }

  /** What left its usual in the steps before one. */
  led(run: string, step: number): Promise<LedAnswer> {
    return this.#get("led", pairs({ run, step }), json);
  }

  /** The address of a run's file. */
  exportUrl(run: string, what: "steps" | "events", format: "csv" | "json", view: { from?: number; to?: number } = {}) {
    const url = new URL("export", this.base);
    url.search = new URLSearchParams(pairs({ run, what, format, ...view })).toString();
    return url.href;
  }

  async #get<T>(route: string, query: [string, string][], decode: (response: Response) => Promise<T>,
    signal?: AbortSignal): Promise<T> {
    const url = new URL(route, this.base);
    url.search = new URLSearchParams(query).toString();
    const key = url.href;
    const known = this.kept.get(key);
    let response: Response;
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
    if (this.kept.size > KEPT_ANSWERS) this.kept.delete(this.kept.keys().next().value as string);
    return value;
  }
}

function pairs(query: Record<string, string | number | undefined>): [string, string][] {
  return Object.entries(query).filter(([, value]) => value !== undefined).map(([name, value]) => [name, String(value)]);
}

function json(response: Response) {
  return response.json();
}

async function reasonOf(response: Response) {
  const text = await response.text().catch(() => "");
  try {
    return String(JSON.parse(text).error ?? text);
  } catch {
    return text || `HTTP ${response.status}`;
  }
}
