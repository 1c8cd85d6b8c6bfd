/** What a person does: each sets what it changes of the state, and no more. */

import { addressOf } from "./host.ts";
import { eventText, listedEvents, stepText, withWords } from "./events.ts";
import { formatCount, runTitle, typeset } from "./format.ts";
import { chartKey } from "./keys.ts";
import { laneOf, severityId } from "./marks.ts";
import { waitingState } from "./notices.ts";
import { nowhere } from "./place.ts";
import { NO_TENSORS, chosenEvent, extentOf, placeOf, smoothingOf, stateOf, viewOf } from "./state.ts";
import { copied, firstViews } from "./views.ts";
import { around, clamped, isClose, zoomTo } from "./zoom.ts";

import type { TbnumEvent } from "./answers.ts";
import type { Api } from "./api.ts";
import type { Place } from "./place.ts";
import type { PanelStore, State } from "./state.ts";
import type { Views } from "./views.ts";

/** Asks the server for what is new, as somebody waits for it. */
export function reload(store: PanelStore) {
  store.set({ asked: store.state.asked + 1 });
}

// ---- Runs

export function chooseRun(store: PanelStore, run: string) {
  const { state } = store;
  store.set({ runsOpen: false });
  if (run === state.run && state.loaded) return;
  // One that is in the charts already changes places with the current one.
  const over = state.over.map((one) => (one === run && state.run ? state.run : one));
  leaveFor(store, { ...nowhere(), off: [...state.hidden], run, axis: state.axis, dock: state.dock, column: state.column,
    grouped: state.grouped, over });
}

/** To another run. */
function leaveFor(store: PanelStore, place: Place) {
  store.set({ ...stateOf(place), following: false, yRanges: new Map(), tensors: NO_TENSORS, loaded: null, detail: null,
    message: waitingState(`Loading ${runTitle(place.run ?? "")} …`) });
  reload(store);
}

/** To where an address leads. */
export function goTo(store: PanelStore, place: Place) {
  const { run } = store.state;
  if (place.run !== null && place.run !== run) return leaveFor(store, place);
  const { loaded } = store.state;
  store.set({ ...stateOf(place), run });
  if (loaded && place.zoom) zoomTo(store, ...place.zoom);
}

/** Puts a run into the charts beside the chosen one, or takes it out. */
export function toggleRun(store: PanelStore, run: string) {
  const { run: chosen, over } = store.state;
  if (run === chosen) return;
  const out = over.includes(run);
  const others = out ? over.filter((one) => one !== run) : [...over, run];
  store.set({ over: others });
  say(store,
    `${runTitle(run)} is ${out ? "no longer" : "now"} in the charts, with ${others.length} beside ${
      runTitle(chosen ?? "")
    }.`);
}

// ---- The view

/** What a person changes of the views: of those that are shown, and of the own ones, which a link may have replaced. */
export function changeViews(store: PanelStore, change: (views: Views) => void) {
  const { views, own } = store.state;
  const [shown, kept] = [copied(views), copied(own.views)];
  change(shown);
  change(kept);
  store.set({ views: shown, own: { ...own, views: kept } });
}

/** All as at first. */
export function resetViews(store: PanelStore) {
  const { own, loaded } = store.state;
  const views = firstViews(loaded?.info);
  store.set({ views, own: { ...own, views } });
}

/** What of a y axis is looked at. @param range in the unit of the axis; null: what is in view */
export function lookAtY(store: PanelStore, id: string, range: [number, number] | null) {
  const yRanges = new Map(store.state.yRanges);
  if (range) yRanges.set(id, range);
  else yRanges.delete(id);
  store.set({ yRanges });
}

/** Folds a pane away, or unfolds it. */
export function fold(store: PanelStore, pane: "runs" | "events") {
  const folded = new Set(store.state.folded);
  if (!folded.delete(pane)) folded.add(pane);
  store.set({ folded });
}

export function smooth(store: PanelStore, weight: number) {
  const smoothing = smoothingOf(weight);
  store.set({ smoothing, own: { ...store.state.own, smoothing } });
}

/** Brings a step into view, near enough to stand apart from its neighbours, and holds it. */
export function goToStep(store: PanelStore, step: number) {
  if (!store.state.loaded || !Number.isFinite(step)) return;
  const target = clamped(Math.round(step), extentOf(store.state));
  if (!isClose(target, viewOf(store.state))) zoomTo(store, ...around(target));
  if (store.state.pin !== target) pin(store, target);
  hover(store, target);
}

/** Puts the cursor on a step, or takes it away. @param more `inCharts: false`: the heat map has a card of its own */
export function hover(store: PanelStore, step: number | null, more: { inCharts?: boolean; cursorY?: number } = {}) {
  store.set({ cursor: step, inCharts: true, ...more });
}

/** Moves the cursor and the view by keys. @param event on a chart */
export function pressOnChart(store: PanelStore, event: KeyboardEvent) {
  const { state } = store;
  if (!state.loaded) return;
  const view = viewOf(state);
  chartKey(event, { view, cursor: state.cursor, pin: (step) => pin(store, step),
    zoom: (from, to) => zoomTo(store, from, to), moveTo: (wanted) => {
      const step = clamped(wanted, extentOf(state));
      if (step < view[0] || step > view[1]) zoomTo(store, ...around(step, view[1] - view[0]));
      hover(store, step, { cursorY: (event.currentTarget as HTMLElement).getBoundingClientRect().top + 40 });
    } });
}

/** Holds a step, so that others are shown with their difference from it; the same step again, or null, lets go. */
export function pin(store: PanelStore, step: number | null) {
  const held = step === store.state.pin ? null : step;
  store.set({ pin: held });
  say(store, held === null ? "No step is held."
    : `Step ${formatCount(held)} is held; others are shown with their difference from it.`);
}

// ---- Events

export function select(store: PanelStore, event: TbnumEvent | null, zoomToIt = false) {
  const { state } = store;
  if (!event) return store.set({ event: null });
  const lane = laneOf(event.kind);
  const hidden = new Set(state.hidden); // its kind and cause are shown from now on
  const shows = [lane, `${lane}/${event.cause ?? "unknown"}`, severityId(event.severity)].filter((id) =>
    hidden.delete(id)
  );
  const { step, kind, optimizer } = event;
  if (zoomToIt && state.loaded && !isClose(step, viewOf(state))) {
    store.set({ following: false });
    zoomTo(store, ...around(step));
  }
  store.set({ event: { step, kind, optimizer }, ...(shows.length ? { hidden } : {}) });
  say(store, typeset(event.message) || kind);
}

/** Turns the marks of a kind or cause on or off. @param id of a lane or a cause */
export function toggleMarks(store: PanelStore, id: string) {
  const hidden = new Set(store.state.hidden);
  if (!hidden.delete(id)) hidden.add(id);
  store.set({ hidden });
}

/** Those that keys go through: of the open event's kind, or all that are listed. */
export function reachable(state: State): TbnumEvent[] {
  const { event, loaded, hidden, find } = state;
  const listed = withWords(listedEvents(loaded?.lanes ?? [], hidden, event?.kind !== "scale_backoff"), find);
  return event && chosenEvent(state) ? listed.filter(({ kind }) => laneOf(kind) === laneOf(event.kind)) : listed;
}

/**
 * The next or previous event; where none is open, from the cursor, or into the view from its start (back: its end).
 */
export function neighbour(events: TbnumEvent[], open: TbnumEvent | null, by: 1 | -1, [from, to]: [number, number],
  cursor: number | null) {
  const index = open ? events.indexOf(open) : -1;
  const at = open?.step ?? cursor;
  if (index >= 0) return events[index + by];
  if (by > 0) return events.find(({ step }) => (at === null ? step >= from : step > at));
  return [...events].reverse().find(({ step }) => (at === null ? step <= to : step < at));
}

/** To the next or previous event. */
export function goOn(store: PanelStore, by: 1 | -1) {
  const { state } = store;
  if (!state.loaded) return;
  const [from, to] = viewOf(state);
  const next = neighbour(reachable(state), chosenEvent(state), by, [from, to], state.cursor);
  if (next) select(store, next, next.step < from || next.step > to);
}

/** What is known of the chosen event, for a bug report. */
export function textOfEvent({ state }: PanelStore) {
  const event = chosenEvent(state);
  return event && state.loaded
    ? eventText(state.loaded.run, event, state.known.steps.get(event.step) ?? null, addressOf(placeOf(state))) : "";
}

/** The values of the held step, for a bug report. */
export async function textOfStep({ state }: PanelStore, api: Api) {
  const { pin, run } = state;
  return pin === null || run === null ? "" : stepText(run, await api.step(run, pin), addressOf(placeOf(state)));
}

// ---- What opens below the charts

export function toggleDock(store: PanelStore, tab: NonNullable<Place["dock"]>) {
  const { dock } = store.state;
  store.set({ dock: dock === tab || (isOfTensors(tab) && isOfTensors(dock)) ? null : tab });
}

/** What led to a step: the one under the cursor, else the held one, else the chosen event's. */
export function showWhatLed(store: PanelStore, step: number | null = null) {
  const { state } = store;
  const led = step ?? state.cursor ?? state.pin ?? chosenEvent(state)?.step ?? null;
  if (led === null) say(store, "Put the cursor on a step, or open an event, to see what led to it.");
  else store.set({ led, dock: "led" });
}

/** A tensor's lines above, and its histogram below. @param name "*" or null: none */
export function openTensor(store: PanelStore, name: string | null, step: number | null) {
  if (step !== null && step !== store.state.pin) pin(store, step);
  store.set({ tensor: name === "*" ? null : name, ...(name === null ? {} : { dock: "histogram" }) });
}

export function isOfTensors(tab: Place["dock"]) {
  return tab === "heatmap" || tab === "histogram";
}

/** Says it to screen readers. */
export function say(store: PanelStore, text: string) {
  const { zoom } = store.state;
  store.set({ said: text + (zoom ? ` Zoomed to steps ${formatCount(zoom[0])} to ${formatCount(zoom[1])}.` : "") });
}
