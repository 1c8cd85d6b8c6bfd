/** Which steps are in view, and whether the view moves on with the run. Steps are inclusive; a zoom of `null` is the whole run. */

/** @import { ZoomCallbacks } from "./types.js" */

/** Shown around an event, or a step that is gone to. */
const CLOSE_STEPS = 120;
const LEAST_STEPS = 8;
const FOLLOWED_STEPS = 200;

export class Zoom {
  /** @param {ZoomCallbacks} callbacks */
  constructor(callbacks) {
    this.callbacks = callbacks;
    /** Whether a zoomed view moves on with the run. */
    this.following = false;
  }

  /** First and last step of all that is in the charts. @returns {[number, number]} */
  get #extent() {
    return this.callbacks.extent();
  }

  /** The steps in view. @returns {[number, number]} */
  get view() {
    return this.callbacks.place().zoom ?? this.#extent;
  }

  /** Puts an interval into view, as far as there are steps. @param {number} from @param {number} to */
  put(from, to) {
    this.callbacks.place().zoom = clampedZoom([from, to], this.#extent);
  }

  /** Shows an interval. @param {number} from step @param {number} to step */
  to(from, to) {
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
    if (!this.callbacks.place().zoom) { // everything is in view: following is what it does; a window of the newest steps is asked for
      const [first, last] = this.#extent;
      this.following = true;
      this.put(Math.max(first, last - FOLLOWED_STEPS), last);
    } else {
      this.following = !this.following;
      this.keepUp();
    }
    this.callbacks.changed();
  }

  /** Keeps the right edge of a following view at the newest step. @returns {boolean} whether it does follow */
  keepUp() {
    const { zoom } = this.callbacks.place();
    if (!this.following || !zoom) return false;
    const last = this.#extent[1];
    this.put(last - (zoom[1] - zoom[0]), last);
    return true;
  }
}

/** @param {[number, number]} interval steps @param {[number, number]} extent first and last step there is @returns {[number, number] | null} */
export function clampedZoom([from, to], [first, last]) {
  const span = Math.min(last - first, Math.max(LEAST_STEPS, Math.round(to) - Math.round(from)));
  if (span >= last - first) return null;
  const start = Math.round(Math.max(first, Math.min(last - span, (from + to - span) / 2)));
  return [start, start + span];
}

/** @param {number} step @param {number} [span] steps @returns {[number, number]} */
export function around(step, span = CLOSE_STEPS) {
  return [step - span / 2, step + span / 2];
}

/** The step nearest to one that is there. @param {number} step @param {[number, number]} extent */
export function clamped(step, [first, last]) {
  return Math.max(first, Math.min(last, step));
}

/** Whether a step is in view, and near enough to be told from its neighbours. @param {number} step @param {[number, number]} view */
export function isClose(step, [from, to]) {
  return step >= from && step <= to && to - from <= 1.5 * CLOSE_STEPS;
}
