/**
 * When the server is asked: soon while a run goes on, ever more rarely while nothing is new, never while nobody looks.
 */

import { isSeen } from "./host.ts";

const POLL_SECONDS = 2;
const SCANNING_POLL_SECONDS = 0.5;
const SLOWEST_POLL_SECONDS = 15;

export class Polling {
  callbacks: { ask: () => Promise<boolean>; failed: (error: unknown) => void; recovered: () => void;
    pace: () => "running" | "scanning" | "resting" };
  seconds = POLL_SECONDS;
  timer = 0;
  busy = false;
  again = false;
  /** How often in a row there was no answer. */
  failures = 0;

  /**
   * @param callbacks
   * `ask`: whether anything was new; `pace`: what the answer told of the runs in the charts
   */
  constructor(
    callbacks: { ask: () => Promise<boolean>; failed: (error: unknown) => void; recovered: () => void;
      pace: () => "running" | "scanning" | "resting" },
  ) {
    this.callbacks = callbacks;
  }

  /** Asks for what is new, and again in a while. @param now whether a person is waiting */
  async poll(now: boolean = false) {
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
      changed = await this.callbacks.ask();
      if (this.failures) {
        this.failures = 0;
        this.callbacks.recovered();
      }
    } catch (error) {
      this.callbacks.failed(error);
    }
    this.busy = false;
    const pace = this.callbacks.pace();
    if (this.failures) this.seconds = Math.min(SLOWEST_POLL_SECONDS, POLL_SECONDS * 1.5 ** (this.failures - 1));
    else if (changed || pace === "running") this.seconds = POLL_SECONDS;
    else this.seconds = Math.min(SLOWEST_POLL_SECONDS, this.seconds * 1.5);
    const wait = this.again ? 0 : !this.failures && pace === "scanning" ? SCANNING_POLL_SECONDS : this.seconds;
    this.again = false;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.poll(), wait * 1000);
  }
}
