/**
 * Keeps the state in step with the server: asked soon while a run goes on, ever more rarely while nothing is new, never
 * while nobody looks.
 */

import { RouteError, Unreachable } from "./api.ts";
import { runTitle, statusOf } from "./format.ts";
import { hostFilter, isSeen } from "./host.ts";
import { emptyState, problemState, waitingState } from "./notices.ts";
import { RunData } from "./rundata.ts";
import { TensorData } from "./tensordata.ts";

import type { Api } from "./api.ts";
import type { RunRow, RunTable } from "./answers.ts";
import type { PanelStore } from "./state.ts";

const POLL_SECONDS = 2;
const SCANNING_POLL_SECONDS = 0.5;
const SLOWEST_POLL_SECONDS = 15;

export class Server {
  seconds = POLL_SECONDS;
  timer = 0;
  busy = false;
  again = false;
  /** How often in a row there was no answer. */
  failures = 0;
  data: RunData;
  tensors: TensorData;

  constructor(readonly api: Api, readonly store: PanelStore) {
    this.data = new RunData(api, store);
    this.tensors = new TensorData(api, store);
    store.watch(["asked"], () => this.poll(true));
    store.watch(["error"], () => this.#failed(store.state.error));
  }

  /** Asks for what is new, and again in a while. @param now whether a person is waiting */
  async poll(now = false) {
    if (now) this.seconds = POLL_SECONDS;
    if (this.busy) {
      this.again = now;
      return;
    }
    clearTimeout(this.timer);
    if (!isSeen()) return; // becoming visible polls again
    this.busy = true;
    let changed = false;
    try {
      changed = await this.#refresh();
      this.failures = 0;
      this.store.set({ connected: true, warning: null, now: Date.now() / 1000 });
    } catch (error) {
      this.#failed(error);
    }
    this.busy = false;
    const pace = this.#pace;
    if (this.failures) this.seconds = Math.min(SLOWEST_POLL_SECONDS, POLL_SECONDS * 1.5 ** (this.failures - 1));
    else if (changed || pace === "running") this.seconds = POLL_SECONDS;
    else this.seconds = Math.min(SLOWEST_POLL_SECONDS, this.seconds * 1.5);
    const wait = this.again ? 0 : !this.failures && pace === "scanning" ? SCANNING_POLL_SECONDS : this.seconds;
    this.again = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), wait * 1000);
  }

  /** What to expect of the runs in the charts. */
  get #pace(): "running" | "scanning" | "resting" {
    const { table, run: chosen, over } = this.store.state;
    if (table?.state === "scanning") return "scanning";
    const training = (row: RunRow) => statusOf(row, Date.now() / 1000).state === "training";
    return table?.runs.some((row) => (row.run === chosen || over.includes(row.run)) && training(row)) ? "running"
      : "resting";
  }

  /** @returns whether anything is new */
  async #refresh(): Promise<boolean> {
    const { api, store, store: { state } } = this;
    const { table: before, run: asked } = state;
    // A run that the address names is fetched beside the table, not after it.
    const early = asked !== null && before === null ? this.#load(asked).catch(() => false) : null;
    const table = await api.runs();
    store.set({ table, filter: hostFilter(),
      ...(state.run === null && table.runs.length ? { run: lastWritten(table.runs).run } : {}) });
    const loaded = await early;
    const { run } = state;
    if (run === null) {
      store.set({ message: table.errors.length && !table.runs.length
        ? problemState("The logdir could not be read", `${table.errors[0].run} ${table.errors[0].reason}`)
        : emptyState(table.logdir, table.state === "scanning") });
      return table !== before;
    }
    if (!table.runs.some((row) => row.run === run)) {
      if (table.state === "scanning") store.set({ message: waitingState(`Looking for ${runTitle(run)} …`) });
      else this.#runIsGone(run, table);
      return table !== before;
    }
    const changed = (asked === run && loaded) || (await this.#load(run));
    return changed || table !== before;
  }

  async #load(run: string) {
    const changed = await this.data.load(run);
    if (changed) this.tensors.load();
    return changed;
  }

  #runIsGone(run: string, table: RunTable) {
    const text = `${table.logdir} has no run of the name ${runTitle(run)}. It may have been moved or deleted.`;
    this.store.set({ loaded: null, message: table.runs.length
      ? problemState("This run is not there", `${text} Choose another one.`) : emptyState(table.logdir, false) });
  }

  #failed(error: unknown) {
    const { store, store: { state } } = this;
    if (error instanceof RouteError && error.status === 404 && state.run !== null) {
      this.failures = 0;
      store.set({ loaded: null, message: problemState("This run cannot be shown", error.message) });
      return;
    }
    this.failures += 1;
    if (!(error instanceof RouteError) && !(error instanceof Unreachable)) console.error(error);
    const warning = error instanceof Unreachable
      ? "TensorBoard does not answer. Trying again; what was loaded stays."
      : `The server could not answer: ${error instanceof Error ? error.message : error}. Trying again.`;
    store.set({ warning, connected: false,
      ...(state.table ? {} : { message: problemState("Nothing to show yet", warning) }) });
  }
}

/** The run to open where the address names none: the one that was written to last. */
function lastWritten(runs: RunRow[]) {
  const known = runs.filter((run) => run.last_wall_time != null);
  return known.sort((a, b) => (b.last_wall_time ?? 0) - (a.last_wall_time ?? 0))[0] ?? runs[0];
}
