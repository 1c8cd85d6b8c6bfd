/**
 * Which steps are in view, and whether the view moves on with the run. Steps are inclusive; a zoom of `null` is the
 * whole run.
 */

import type { Place } from "./place.ts";

/** What a zoom needs to know, and tells. */
export type ZoomCallbacks = {
  place: () => Pick<Place, "zoom">;
  /** whether there is a run to look at */
  ready: () => boolean;
  extent: () => [number, number];
  changed: () => void;
};

/** Shown around an event, or a step that is gone to. */
const CLOSE_STEPS = 120;
const LEAST_STEPS = 8;
const FOLLOWED_STEPS = 200;

export class Zoom {
  callbacks: ZoomCallbacks;
  /** Whether a zoomed view moves on with the run. */
  following = false;

  constructor(callbacks: ZoomCallbacks) {
    this.callbacks = callbacks;
  }

  /** First and last step of all that is in the charts. */
  get #extent(): [number, number] {
    return this.callbacks.extent();
  }

  /** The steps in view. */
  get view(): [number, number] {
    return this.callbacks.place().zoom ?? this.#extent;
  }

  /** Puts an interval into view, as far as there are steps. */
  put(from: number, to: number) {
    this.callbacks.place().zoom = clampedZoom([from, to], this.#extent);
  }

  /** Shows an interval. @param from step @param to step */
  to(from: number, to: number) {
    if (!this.callbacks.ready()) return;
    this.put(from, to);
    const { zoom } = this.callbacks.place();
    if (zoom && zoom[1] < this.#extent[1]) this.following = false;
    this.callbacks.changed();
  }

  /** Shows everything. */
  reset() {
    const place = this.callbacks.place();
    if (!this.callbacks.ready() || !place.zoom) return;
    place.zoom = null;
    this.following = false;
    this.callbacks.changed();
  }

  /** Follows the newest step, or stops to. */
  toggleFollowing() {
    if (!this.callbacks.ready()) return;
    // everything is in view: following is what it does; a window of the newest steps is asked for
    if (!this.callbacks.place().zoom) {
      const [first, last] = this.#extent;
      this.following = true;
      this.put(Math.max(first, last - FOLLOWED_STEPS), last);
    } else {
      this.following = !this.following;
      this.keepUp();
    }
    this.callbacks.changed();
  }

  /** Keeps the right edge of a following view at the newest step. @returns whether it does follow */
  keepUp(): boolean {
    const { zoom } = this.callbacks.place();
    if (!this.following || !zoom) return false;
    const last = this.#extent[1];
    this.put(last - (zoom[1] - zoom[0]), last);
    return true;
  }
}

/** @param interval steps @param extent first and last step there is */
export function clampedZoom([from, to]: [number, number], [first, last]: [number, number]): [number, number] | null {
  const span = Math.min(last - first, Math.max(LEAST_STEPS, Math.round(to) - Math.round(from)));
  if (span >= last - first) return null;
  const start = Math.round(Math.max(first, Math.min(last - span, (from + to - span) / 2)));
  return [start, start + span];
}

/** @param span steps */
export function around(step: number, span: number = CLOSE_STEPS): [number, number] {
  return [step - span / 2, step + span / 2];
}

/** The step nearest to one that is there. */
export function clamped(step: number, [first, last]: [number, number]) {
  return Math.max(first, Math.min(last, step));
}

/** Whether a step is in view, and near enough to be told from its neighbours. */
export function isClose(step: number, [from, to]: [number, number]) {
  return step >= from && step <= to && to - from <= 1.5 * CLOSE_STEPS;
}
