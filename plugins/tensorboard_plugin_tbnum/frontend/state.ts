/** What the panel shows: what a person has chosen, what the server sent, and what follows from both. */

import { remembered } from "./host.ts";
import { laneOf } from "./marks.ts";
import { nowhere } from "./place.ts";
import { Store } from "./store.ts";
import { neededColumns, parseViews, formatViews } from "./views.ts";
import { STEPS_AXIS, xAxisOf } from "./xaxis.ts";

import type { HealthAnswer, RunInfo, RunRow, RunTable, SeriesLike, StepValues, TbnumEvent,
  TensorsAnswer } from "./answers.ts";
import type { Series } from "./api.ts";
import type { Place } from "./place.ts";
import type { Loaded } from "./rundata.ts";
import type { Views } from "./views.ts";
import type { Alignment, XAxis } from "./xaxis.ts";

export type State = Omit<Place, "views" | "smoothing" | "off"> & {
  views: Views;
  smoothing: number;
  /** the reader's own, remembered by the browser: what a link brought is not among them */
  own: { views: Views; smoothing: number };
  /** what of their y axes a person looks at, by the ids of views and in the units of the axis */
  yRanges: ReadonlyMap<string, [number, number]>;
  /** panes that are folded away */
  folded: ReadonlySet<"runs" | "events">;
  /** kinds, causes and severities of marks that the legend turned off */
  hidden: ReadonlySet<string>;
  /** whether a zoomed view moves on with the run */
  following: boolean;
  /** the step under the cursor, and whether the cursor is in the charts: the heat map has a card of its own */
  cursor: number | null;
  inCharts: boolean;
  /** where the pointer is, or the chart that keys are for, in pixels of the window; 0: nowhere */
  cursorY: number;
  /** TensorBoard's filter of runs, and the one that a person left aside */
  filter: { text: string; lets: (run: string) => boolean };
  filterAside: string;
  /** pixels across the plots */
  plotWidth: number;

  table: RunTable | null;
  loaded: Loaded | null;
  /** of the interval that was in view last, and a margin around it */
  detail: Series | null;
  /** values of single steps, another object whenever there are more */
  known: { steps: Map<number, StepValues> };
  /** which tensors the run has (null: not known yet), and what the charts show of them */
  tensors: TensorsShown;
  /** x between which the runs beside the chosen one have steps; another object whenever there is more of them */
  beside: { extent: [number, number] | null };
  /** how runs do, as far as was asked for */
  health: ReadonlyMap<string, HealthAnswer>;
  /** what the list of runs is in order of */
  runOrder: RunOrder;
  /** what is loaded of what opens below the charts */
  opened: Place["dock"];

  /** whether the list of runs is open over the charts, on narrow windows */
  runsOpen: boolean;
  /** in place of the charts */
  message: HTMLElement | null;
  /** what the server did not do */
  warning: string | null;
  connected: boolean;
  /** what went wrong last when the server was asked */
  error: unknown;
  /** for screen readers */
  said: string;
  /** counts how often somebody waits for what is new */
  asked: number;
  /** seconds since the epoch, now and then: ages are written again */
  now: number;
};

export type RunOrder = "name" | "newest" | "worst" | "skips";

export type TensorsShown = {
  answer: TensorsAnswer | null;
  headroom: SeriesLike | null;
  tensor: SeriesLike | null;
  name: string | null;
};

export type PanelStore = Store<State>;

/** What of the state an address has. */
export const PLACE_KEYS = ["run", "zoom", "axis", "event", "views", "dock", "pin", "column", "tensor", "over",
  "grouped", "smoothing", "optimizer", "hidden", "find", "led", "baseline", "against"] as const;

export const NO_TENSORS: TensorsShown = { answer: null, headroom: null, tensor: null, name: null };

export function makeStore(): PanelStore {
  const own = { views: parseViews(remembered("views", "")), smoothing: smoothingOf(remembered("smoothing", "0.6")) };
  const { off: _, ...place } = nowhere();
  return new Store<State>({ ...place, ...own, own, hidden: new Set(), yRanges: new Map(),
    folded: new Set((["runs", "events"] as const).filter((pane) => remembered("folded", "").includes(pane))),
    following: false, cursor: null, inCharts: true, cursorY: 0, filter: { text: "", lets: () => true }, filterAside: "",
    plotWidth: 100, table: null, loaded: null, detail: null, known: { steps: new Map() }, tensors: NO_TENSORS,
    beside: { extent: null }, health: new Map(), runOrder: "name", opened: null, runsOpen: false, message: null,
    warning: null, connected: true, error: null, said: "", asked: 0, now: 0 });
}

export function smoothingOf(value: string | number) {
  const weight = Number(value);
  return Number.isFinite(weight) ? Math.max(0, Math.min(0.99, weight)) : 0.6;
}

/** As an address has it. */
export function placeOf(state: State): Place {
  const { run, zoom, axis, event, dock, pin, column, tensor, over, grouped, smoothing, optimizer, find, led } = state;
  const { baseline, against } = state;
  return { run, zoom, axis, event, dock, pin, column, tensor, over, grouped, smoothing, optimizer, find, led, baseline,
    against, off: [...state.hidden], views: formatViews(state.views) };
}

/** What of the state a place is: what it leaves open stays, or is as the reader has it. */
export function stateOf({ views, smoothing, off, ...place }: Place): Partial<State> {
  return { ...place, hidden: new Set(off), ...(views === null ? {} : { views: parseViews(views) }),
    ...(smoothing === null ? {} : { smoothing: smoothingOf(smoothing) }) };
}

/** Before the names of the shown optimizer's columns. */
export function prefixOf({ loaded, optimizer }: State, info: RunInfo | undefined = loaded?.info) {
  const names = Object.keys(info?.meta.optimizers ?? {});
  return names.length > 1 ? `${names[optimizer] ?? names[0]}/` : "";
}

/** What is asked for of a run. */
export function columnsOf(state: State, info: RunInfo) {
  const columns = neededColumns([...info.columns, ...info.derived], prefixOf(state, info), state.views);
  return state.axis === "updates" ? [...columns, "updates"] : columns;
}

/** How many points are asked for: about one a pixel. */
export function bucketsOf({ plotWidth }: State) {
  return Math.max(1024, Math.ceil(plotWidth / 256) * 256);
}

const axes: WeakMap<Series, Partial<Record<Alignment, XAxis>>> = new WeakMap();

/** The x axis of the charts. */
export function axisOf({ axis, loaded }: State): XAxis {
  if (!loaded) return STEPS_AXIS;
  const known = axes.get(loaded.overview) ?? {};
  axes.set(loaded.overview, known);
  return known[axis] ??= xAxisOf(axis, loaded.overview, loaded.info.pauses);
}

/** First and last step of all that is in the charts; an event may be on disk before its step, or after the last one. */
export function extentOf(state: State): [number, number] {
  const { loaded, beside } = state;
  const { overview: { header: { first_step: first, last_step: last } }, lanes } = loaded as Loaded;
  const others = beside.extent?.map((x) => Math.max(0, axisOf(state).stepOf(x))) ?? [];
  return [
    Math.floor(Math.min(first ?? 0, ...lanes.map(({ steps }) => steps[0]), ...others)),
    Math.ceil(Math.max(last ?? 0, ...lanes.map(({ steps }) => steps[steps.length - 1]), ...others)),
  ];
}

/** The steps in view. */
export function viewOf(state: State): [number, number] {
  return state.zoom ?? extentOf(state);
}

/** The best that is there for the view. */
export function seriesOf({ loaded, detail, zoom }: State): Series {
  const { run, overview } = loaded as Loaded;
  if (!zoom || detail?.header.run !== run || !detail.length) return overview;
  if (detail.bucketSteps >= overview.bucketSteps) return overview;
  const [from, to] = [detail.step[0], detail.stepLast[detail.length - 1]];
  const { first_step: first, last_step: last } = overview.header;
  return Math.max(first ?? 0, zoom[0]) >= from && Math.min(last ?? 0, zoom[1]) <= to ? detail : overview;
}

/** The chosen event, where the run has it: one of two optimizers' skips of a step, where it is known which. */
export function chosenEvent({ event, loaded }: State): TbnumEvent | null {
  const lane = event && loaded?.lanes.find(({ kind }) => kind.id === laneOf(event.kind));
  const alike = lane?.events.filter(({ step, kind }) => step === event?.step && kind === event.kind) ?? [];
  return alike.find(({ optimizer }) => optimizer === event?.optimizer) ?? alike[0] ?? null;
}

/** The chosen run in the table. */
export function rowOf({ run, table }: State): RunRow | undefined {
  return table?.runs.find((row) => row.run === run);
}

/** Whether TensorBoard's filter, where it is heard, lets a run through. */
export function letsThrough({ filter, filterAside }: State, run: string) {
  return filter.text === filterAside || filter.lets(run);
}
