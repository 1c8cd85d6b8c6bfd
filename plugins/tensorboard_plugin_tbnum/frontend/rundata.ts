/**
 * What is known of the chosen run: its overview, finer detail where the view is, its events, and the values of single
 * steps. Asks the server for them, and tells when they have come.
 */

import { RouteError, Unreachable } from "./api.ts";
import { counted, formatCount, runTitle } from "./format.ts";
import { buildLanes, laneOf } from "./marks.ts";

import type { Api, Series } from "./api.ts";
import type { EventsAnswer, NonfiniteAnswer, RunInfo, RunRow, StepValues, TbnumEvent } from "./answers.ts";
import type { Lane } from "./marks.ts";

/** What the data of a run needs to know, and tells. */
export type RunCallbacks = {
  /** whether it is still the chosen one */
  wanted: (run: string) => boolean;
  columns: (info: RunInfo) => string[];
  buckets: () => number;
  zoom: () => [number, number] | null;
  extent: () => [number, number];
  /** nothing can be drawn yet */
  waiting: (text: string) => void;
  loaded: (first: boolean) => void;
  /** its events have come */
  told: (first: boolean) => void;
  settled: () => void;
  refined: () => void;
  failed: (error: unknown) => void;
};

/** What is known of the chosen run. */
export type Loaded = {
  run: string;
  info: RunInfo;
  /** of all steps */
  overview: Series;
  /** of the interval in view and a margin around it */
  detail: Series | null;
  /** null until they are told */
  eventsAnswer: EventsAnswer | null;
  nonfiniteAnswer: NonfiniteAnswer | null;
  lanes: Lane[];
};

const HOW_FAR_SECONDS = 0.7;
const MOST_STEPS = 500; // whose values are kept

export class RunData {
  api: Api;
  callbacks: RunCallbacks;
  loaded: Loaded | null = null;
  /** Index of the optimizer that is shown. */
  optimizer = 0;
  /** Values of single steps. */
  steps: Map<number, StepValues> = new Map();
  stepsVersion = "";
  /** the detail on its way */
  asked: { from: number; to: number; bucketSteps: number; abort: AbortController } | null = null;

  constructor(api: Api, callbacks: RunCallbacks) {
    this.api = api;
    this.callbacks = callbacks;
  }

  /**
   * Fetches what is new of a run; events come when they do, as explaining takes longer than reading. @returns whether
   * anything was new
   */
  async load(run: string): Promise<boolean> {
    const { wanted, columns, buckets, waiting } = this.callbacks;
    const told = this.loaded?.run === run ? 0 : setInterval(() => this.#tellHowFar(run), HOW_FAR_SECONDS * 1000);
    const info = await this.api.run(run).finally(() => clearInterval(told));
    if (!wanted(run)) return false;
    const old = this.loaded?.run === run ? this.loaded : null;
    const names = columns(info);
    const [overview, nonfinite] = await Promise.all([
      names.length ? this.api.series(run, { columns: names, buckets: buckets() }) : null,
      info.columns.includes("loss") ? this.api.nonfinite(run, "loss") : null,
    ]);
    if (!wanted(run)) return false;
    if (!overview || !overview.length) {
      this.loaded = null;
      waiting("The run has begun; its first step has not arrived yet.");
      return true;
    }
    const events = this.api.events(run);
    events.catch(() => {}); // heard below, if not before
    const changed = !old || old.overview !== overview || old.nonfiniteAnswer !== nonfinite || old.info !== info;
    if (changed) {
      const { eventsAnswer = null, detail = null } = old ?? {};
      const lanes = old && old.nonfiniteAnswer === nonfinite ? old.lanes
        : buildLanes(eventsAnswer?.events ?? [], nonfinite);
      this.loaded = { run, info, overview, detail, eventsAnswer, nonfiniteAnswer: nonfinite, lanes };
      if (this.stepsVersion !== info.version) {
        this.stepsVersion = info.version;
        this.steps.clear();
      }
      this.callbacks.loaded(old === null);
    }
    const more = this.#told(run, await events);
    if (changed) this.callbacks.settled();
    return more || changed;
  }

  /** A long record takes seconds to read: how much of it was. */
  async #tellHowFar(run: string) {
    const { runs } = await this.api.runs().catch(() => ({ runs: [] as RunRow[] }));
    const row = runs.find((one) => one.run === run);
    if (!this.callbacks.wanted(run) || this.loaded || row?.steps_read == null || !row.steps) return;
    this.callbacks.waiting(`Reading ${runTitle(run)}: ${formatCount(row.steps_read)} of ${counted(row.steps, "step")}`);
  }

  /** @returns whether it says anything new */
  #told(run: string, answer: EventsAnswer): boolean {
    const { loaded } = this;
    if (loaded?.run !== run || loaded.eventsAnswer === answer) return false;
    this.loaded = { ...loaded, eventsAnswer: answer, lanes: buildLanes(answer.events, loaded.nonfiniteAnswer) };
    this.callbacks.told(loaded.eventsAnswer === null);
    return true;
  }

  /** Before the names of the shown optimizer's columns. */
  prefix(info: RunInfo | undefined = this.loaded?.info) {
    const names = Object.keys(info?.meta.optimizers ?? {});
    return names.length > 1 ? `${names[this.optimizer] ?? names[0]}/` : "";
  }

  /** The event of the same step and kind. */
  find(event: { step: number; kind: string } | null): TbnumEvent | null {
    const lane = event && this.loaded?.lanes.find((candidate) => candidate.kind.id === laneOf(event.kind));
    return (lane && lane.events.find(({ step, kind }) => step === event.step && kind === event.kind)) ?? null;
  }

  /**
   * First and last step; an event may be on disk before its step, or come after the last one. @param others steps that
   * are to be within
   */
  extent(others: number[]): [number, number] {
    const { overview, lanes } = this.loaded as Loaded;
    const { first_step: first, last_step: last } = overview.header;
    return [
      Math.floor(Math.min(first ?? 0, ...lanes.map(({ steps }) => steps[0]), ...others)),
      Math.ceil(Math.max(last ?? 0, ...lanes.map(({ steps }) => steps[steps.length - 1]), ...others)),
    ];
  }

  /** The best that is there for a view. */
  series(zoom: [number, number] | null): Series {
    const { overview, detail } = this.loaded as Loaded;
    if (!zoom || !detail || !detail.length || detail.bucketSteps >= overview.bucketSteps) return overview;
    const [from, to] = [detail.step[0], detail.stepLast[detail.length - 1]];
    const { first_step: first, last_step: last } = overview.header;
    return Math.max(first ?? 0, zoom[0]) >= from && Math.min(last ?? 0, zoom[1]) <= to ? detail : overview;
  }

  /**
   * Asks for the view, with half of it on either side, where the overview is too coarse for it. What is on its way and
   * covers the view is waited for, so that a quick hand does not call off each answer just before it comes.
   */
  async refine() {
    const { loaded, asked } = this;
    const zoom = this.callbacks.zoom();
    if (!loaded || !zoom || loaded.overview.exact) return;
    const [first, last] = this.callbacks.extent();
    const buckets = this.callbacks.buckets();
    const span = zoom[1] - zoom[0];
    const bucketSteps = 2 ** Math.max(0, Math.ceil(Math.log2(span / (buckets - 2))));
    const withMargin = (margin: number) => ({ from: Math.max(first, Math.floor(zoom[0] - margin * span)),
      to: Math.min(last, Math.ceil(zoom[1] + margin * span)) });
    const covers = (known: { from: number | null; to: number | null }, margin: number) => {
      const { from, to } = withMargin(margin);
      return known.from !== null && known.to !== null && known.from <= from && known.to >= to;
    };
    const { detail } = loaded;
    if (detail && detail.header.version === loaded.overview.header.version && detail.bucketSteps <= bucketSteps
      && covers(detail.header, 0.25)) return;
    if (asked && asked.bucketSteps <= 2 * bucketSteps && covers(asked, 0)) return;
    asked?.abort.abort();
    const { from, to } = withMargin(0.5);
    const asking = (this.asked = { from, to, bucketSteps, abort: new AbortController() });
    const { signal } = asking.abort;
    try {
      const fetched = await this.api.series(loaded.run, { columns: this.callbacks.columns(loaded.info), from, to,
        buckets: 2 * buckets }, signal);
      if (this.loaded?.run === loaded.run && !signal.aborted && this.loaded.detail !== fetched) {
        this.loaded = { ...this.loaded, detail: fetched };
        this.callbacks.refined();
      }
    } catch (error) {
      if (!signal.aborted) this.callbacks.failed(error);
    }
    if (this.asked !== asking) return;
    this.asked = null;
    if (this.callbacks.zoom() !== zoom && !signal.aborted) this.refine();
  }

  /** What is there of the view is of other columns than are wanted now. */
  dropDetail() {
    this.asked?.abort.abort();
    this.asked = null;
    if (this.loaded) this.loaded = { ...this.loaded, detail: null };
  }

  /**
   * The values of a step, fetched where they are not there. @returns null: another run was chosen, or there was no
   * answer
   */
  async valuesOf(step: number): Promise<StepValues | null> {
    const run = this.loaded?.run;
    const known = this.steps.get(step);
    if (known || run === undefined) return known ?? null;
    try {
      const values = await this.api.step(run, step);
      if (!this.callbacks.wanted(run)) return null;
      if (this.steps.size > MOST_STEPS) this.steps.clear();
      this.steps.set(step, values);
      return values;
    } catch (error) {
      if (!(error instanceof Unreachable) && !(error instanceof RouteError)) throw error;
      return null;
    }
  }
}
