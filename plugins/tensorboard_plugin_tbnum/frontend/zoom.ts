/**
 * Which steps are in view, and whether the view moves on with the run. Steps are inclusive; a zoom of `null` is the
 * whole run.
 */

import { extentOf, viewOf } from "./state.ts";

import type { PanelStore, State } from "./state.ts";

/** Shown around an event, or a step that is gone to. */
const CLOSE_STEPS = 120;
const LEAST_STEPS = 8;
const FOLLOWED_STEPS = 200;

/** Shows an interval, as far as there are steps. @param from step @param to step */
export function zoomTo(store: PanelStore, from: number, to: number) {
  if (!store.state.loaded) return;
  const extent = extentOf(store.state);
  const zoom = clampedZoom([from, to], extent);
  const same = zoom && store.state.zoom && zoom[0] === store.state.zoom[0] && zoom[1] === store.state.zoom[1];
  store.set({ ...(same ? {} : { zoom }), ...(zoom && zoom[1] < extent[1] ? { following: false } : {}) });
}

/** Shows everything. */
export function resetZoom(store: PanelStore) {
  if (store.state.loaded && store.state.zoom) store.set({ zoom: null, following: false });
}

/** Follows the newest step, or stops to. */
export function toggleFollowing(store: PanelStore) {
  const { state } = store;
  if (!state.loaded) return;
  // Where everything is in view following is what it does: a window of the newest steps is asked for.
  const [first, last] = extentOf(state);
  if (!state.zoom)
    store.set({ following: true, zoom: clampedZoom([Math.max(first, last - FOLLOWED_STEPS), last], [first, last]) });
  else store.set({ following: !state.following, ...(state.following ? {} : { zoom: newest(state) }) });
}

/** The view with its right edge at the newest step. */
export function newest(state: State): [number, number] | null {
  const [from, to] = viewOf(state);
  const extent = extentOf(state);
  return clampedZoom([extent[1] - (to - from), extent[1]], extent);
}

/** @param interval steps @param extent first and last step there is */
export function clampedZoom([from, to]: [number, number], [first, last]: [number, number]): [number, number] | null {
  const span = Math.min(last - first, Math.max(LEAST_STEPS, Math.round(to) - Math.round(from)));
  if (span >= last - first) return null;
  const start = Math.round(Math.max(first, Math.min(last - span, (from + to - span) / 2)));
  return [start, start + span];
}

/** @param span steps */
export function around(step: number, span = CLOSE_STEPS): [number, number] {
  return [step - span / 2, step + span / 2];
}

/** The step nearest to one that is there. */
export function clamped(step: number, [first, last]: [number, number]) {
  return Math.max(first, Math.min(last, step));
}

/** Whether a step is in view, and near enough to stand apart from its neighbours. */
export function isClose(step: number, [from, to]: [number, number]) {
  return step >= from && step <= to && to - from <= 1.5 * CLOSE_STEPS;
}
