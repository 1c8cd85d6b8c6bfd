/**
 * What the server says of runs that are held against a baseline: where they part from it, bit for bit, or leave the
 * band of its seeds; and how their settings differ. Asked for once for each pair.
 */

import type { ApartAnswer, BandAnswer } from "./answers.ts";
import type { Api } from "./api.ts";
import type { OverlayData } from "./overlaydata.ts";

/** A mark in a chart, on the current run's axis of steps. */
export type Parting = { run: string; step: number; words: string };

export class Judged {
  /** by what was asked; null: on its way, or the run is gone */
  apart: Map<string, ApartAnswer | null> = new Map();
  band: Map<string, BandAnswer | null> = new Map();

  constructor(readonly api: Api, readonly data: OverlayData, readonly arrived: () => void) {}

  /** How a run differs from the baseline, or from the first of its seeds. */
  apartOf(run: string): ApartAnswer | null {
    const [first] = this.data.held;
    return this.#known(this.apart, JSON.stringify([first, run]), () =>
      this.api.apart(first, run).catch((error) => ({ steps: 0, first_step: null, sentence: error.message, next: "",
        settings: [] })));
  }

  /** Where a run leaves the band of the seeds; null also where there is one. */
  bandOf(run: string): BandAnswer | null {
    const { held, scene } = this.data;
    const columns = (scene?.columns ?? []).filter((column) => !["skipped", "step"].includes(column));
    if (held.length < 2 || !columns.length) return null;
    return this.#known(this.band, JSON.stringify([held, run, columns]), () => this.api.band(run, held, columns));
  }

  /** Where runs part from what they are held against, in a column. */
  partings(column: string): Parting[] {
    const seeds = this.data.held.length;
    return this.data.singles.flatMap((run) => {
      const step = seeds > 1 ? this.bandOf(run)?.columns[column]?.leaves : this.apartOf(run)?.first_step;
      return step == null ? [] : [{ run, step, words: seeds > 1 ? "leaves the band" : "parts" }];
    });
  }

  #known<T>(answers: Map<string, T | null>, key: string, ask: () => Promise<T>): T | null {
    if (!answers.has(key)) {
      answers.set(key, null);
      ask().then((answer) => {
        answers.set(key, answer);
        this.arrived();
      }, () => {}); // of a run that is gone there is nothing to say
    }
    return answers.get(key) ?? null;
  }
}
