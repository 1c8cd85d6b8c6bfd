/**
 * What is known of the chosen run: its overview, finer detail where the view is, its events, and the values of single
 * steps. Asks the server for them, and says when they have come.
 */

import { RouteError, Unreachable } from "./api.ts";
import { counted, formatCount, runTitle } from "./format.ts";
import { reload } from "./actions.ts";
import { buildLanes } from "./marks.ts";
import { noStepState, waitingState } from "./notices.ts";
import { bucketsOf, chosenEvent, columnsOf, extentOf } from "./state.ts";
import { fitted } from "./views.ts";
import { newest, zoomTo } from "./zoom.ts";

import type { Api, Series } from "./api.ts";
import type { EventsAnswer, NonfiniteAnswer, RunInfo, RunRow } from "./answers.ts";
import type { Lane } from "./marks.ts";
import type { PanelStore } from "./state.ts";

/** What is known of the chosen run. */
export type Loaded = {
  run: string;
  info: RunInfo;
  /** of all steps */
  overview: Series;
  /** null until they are there */
  eventsAnswer: EventsAnswer | null;
  nonfiniteAnswer: NonfiniteAnswer | null;
  lanes: Lane[];
};

const HOW_FAR_SECONDS = 0.7;
const MOST_STEPS = 500; // whose values are kept

export class RunData {
  /** the version of the run that the known values of steps are of */
  stepsVersion = "";
  /** the detail on its way */
  asked: { from: number; to: number; bucketSteps: number; abort: AbortController } | null = null;

  constructor(readonly api: Api, readonly store: PanelStore) {
    store.watch(["zoom", "loaded"], () => this.#refine());
    store.watch(["views", "axis", "optimizer"], () => this.#lacking());
    store.watch(["pin", "loaded"], () => {
      if (store.state.pin !== null) this.valuesOf(store.state.pin);
    });
    store.watch(["event", "loaded"], () => {
      const event = chosenEvent(store.state);
      if (event) this.valuesOf(event.step);
    });
  }

  /**
   * Fetches what is new of a run; events come when they do, as explaining takes longer than reading. @returns whether
   * anything was new
   */
  async load(run: string): Promise<boolean> {
    const { api, store, store: { state } } = this;
    const asking = state.loaded?.run === run ? 0 : setInterval(() => this.#sayHowFar(run), HOW_FAR_SECONDS * 1000);
    const info = await api.run(run).finally(() => clearInterval(asking));
    if (state.run !== run) return false;
    const old = state.loaded?.run === run ? state.loaded : null;
    store.set({ views: fitted(state.views, info) });
    const columns = columnsOf(state, info);
    const [overview, nonfinite] = await Promise.all([
      columns.length ? api.series(run, { columns, buckets: bucketsOf(state) }) : null,
      info.columns.includes("loss") ? api.nonfinite(run, "loss") : null,
    ]);
    if (state.run !== run) return false;
    if (!overview || !overview.length) {
      store.set({ loaded: null, message: info.meta.ended ? noStepState()
        : waitingState("The run has begun; its first step has not arrived yet.") });
      return true;
    }
    const events = api.events(run);
    events.catch(() => {}); // heard below, if not before
    const changed = !old || old.overview !== overview || old.nonfiniteAnswer !== nonfinite || old.info !== info;
    if (changed) {
      const { eventsAnswer = null } = state.loaded?.run === run ? state.loaded : {};
      const lanes = old && old.nonfiniteAnswer === nonfinite ? old.lanes
        : buildLanes(eventsAnswer?.events ?? [], nonfinite);
      const version = `${run} ${info.version}`;
      if (this.stepsVersion !== version) store.set({ known: { steps: new Map() } });
      this.stepsVersion = version;
      store.set({ loaded: { run, info, overview, eventsAnswer, nonfiniteAnswer: nonfinite, lanes },
        ...(old ? {} : { message: null }) });
      if (!old && state.zoom) zoomTo(store, ...state.zoom);
      if (state.following && state.zoom) store.set({ zoom: newest(state) });
    }
    return this.#took(run, await events) || changed;
  }

  /** A long record takes seconds to read: how much of it was. */
  async #sayHowFar(run: string) {
    const { runs } = await this.api.runs().catch(() => ({ runs: [] as RunRow[] }));
    const row = runs.find((one) => one.run === run);
    const { state } = this.store;
    if (state.run !== run || state.loaded || row?.steps_read == null || !row.steps) return;
    const read = `${formatCount(row.steps_read)} of ${counted(row.steps, "step")}`;
    this.store.set({ message: waitingState(`Reading ${runTitle(run)}: ${read}`) });
  }

  /** @returns whether it says anything new */
  #took(run: string, answer: EventsAnswer): boolean {
    const { loaded } = this.store.state;
    if (loaded?.run !== run || loaded.eventsAnswer === answer) return false;
    const lanes = buildLanes(answer.events, loaded.nonfiniteAnswer);
    this.store.set({ loaded: { ...loaded, eventsAnswer: answer, lanes } });
    return true;
  }

  /**
   * Asks for the view, with half of it on either side, where the overview is too coarse for it. What is on its way and
   * covers the view is waited for, so that a quick hand does not call off each answer just before it comes.
   */
  async #refine() {
    const { asked, store, store: { state } } = this;
    const { loaded, detail, zoom } = state;
    if (!loaded || !zoom || loaded.overview.exact) return;
    const [first, last] = extentOf(state);
    const buckets = bucketsOf(state);
    const span = zoom[1] - zoom[0];
    const bucketSteps = 2 ** Math.max(0, Math.ceil(Math.log2(span / (buckets - 2))));
    const withMargin = (margin: number) => ({ from: Math.max(first, Math.floor(zoom[0] - margin * span)),
      to: Math.min(last, Math.ceil(zoom[1] + margin * span)) });
    const covers = (known: { from: number | null; to: number | null }, margin: number) => {
      const { from, to } = withMargin(margin);
      return known.from !== null && known.to !== null && known.from <= from && known.to >= to;
    };
    if (detail && detail.header.version === loaded.overview.header.version && detail.bucketSteps <= bucketSteps
      && covers(detail.header, 0.25)) return;
    if (asked && asked.bucketSteps <= 2 * bucketSteps && covers(asked, 0)) return;
    asked?.abort.abort();
    const { from, to } = withMargin(0.5);
    const asking = (this.asked = { from, to, bucketSteps, abort: new AbortController() });
    const { signal } = asking.abort;
    try {
      const columns = columnsOf(state, loaded.info);
      const fetched = await this.api.series(loaded.run, { columns, from, to, buckets: 2 * buckets }, signal);
      if (state.loaded?.run === loaded.run && !signal.aborted) {
        if (this.asked === asking) this.asked = null;
        store.set({ detail: fetched });
      }
    } catch (error) {
      if (!signal.aborted) store.set({ error });
    }
    if (this.asked === asking) this.asked = null;
    if (state.zoom !== zoom && !signal.aborted) this.#refine();
  }

  /** Other columns are wanted than those that are there: what is there of the view lacks them too. */
  #lacking() {
    const { store, store: { state } } = this;
    const { loaded } = state;
    if (!loaded || columnsOf(state, loaded.info).every((column) => loaded.overview.line(column))) return;
    this.asked?.abort.abort();
    this.asked = null;
    store.set({ detail: null });
    reload(store);
  }

  /** Fetches the values of a step, where they are not known. */
  async valuesOf(step: number) {
    const { store: { state } } = this;
    const run = state.loaded?.run;
    if (run === undefined || state.known.steps.has(step)) return;
    try {
      const values = await this.api.step(run, step);
      const { steps } = state.known;
      if (state.run !== run || steps.has(step)) return;
      if (steps.size > MOST_STEPS) steps.clear();
      steps.set(step, values);
      this.store.set({ known: { steps } });
    } catch (error) {
      if (!(error instanceof Unreachable) && !(error instanceof RouteError)) throw error;
    }
  }
}
