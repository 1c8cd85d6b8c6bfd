/** The shapes of what the panel's modules hand to each other. For the type checker and for readers; nothing loads it. */

import type uPlot from "uplot";
import type { Series } from "./api.js";
import type { Charts } from "./charts.js";
import type { Overlay } from "./overlay.js";
import type { RunData } from "./rundata.js";

// ---- Answers of the server: see http_api.md beside the plugin

export type RunRow = {
  run: string;
  steps: number | null;
  first_step: number | null;
  last_step: number | null;
  skipped_steps: number | null;
  last_loss_scale: number | null;
  best_loss: number | null;
  first_wall_time: number | null;
  last_wall_time: number | null;
  sessions: number | null;
  optimizers: string[] | null;
  ended: string | null;
  /** "tensorboard": read from plain scalars, what it says of skips is inferred */
  source?: string;
  problems: number | null;
  /** by severity; null until they were asked for */
  findings: Record<string, number> | null;
  seed: unknown;
  /** equal for runs that differ in the seed alone */
  setting: string | null;
  /** while its record is read for the first time */
  steps_read: number | null;
};

export type RunTable = {
  state: string;
  logdir: string;
  frontend?: string;
  runs: RunRow[];
  errors: { run: string; reason: string }[];
};

export type RunInfo = {
  run: string;
  version: string;
  steps: number;
  columns: string[];
  /** what follows from the columns, and is asked for as they are */
  derived: string[];
  meta: Record<string, any>;
  problems: string[];
};

export type TbnumEvent = {
  step: number;
  wall_time: number;
  elapsed: number | null;
  kind: string;
  severity: string;
  optimizer: string | null;
  cause: string | null;
  message: string;
  remedy: string;
  data: Record<string, any>;
};

export type EventsAnswer = { version: string; events: TbnumEvent[] };

export type StepValues = {
  run: string;
  version: string;
  step: number;
  values: Record<string, number | boolean | string | null>;
  events: TbnumEvent[];
};

export type Values = Float64Array | Float32Array | Uint32Array;

export type NonfiniteAnswer = { step: Float64Array; wallTime: Float64Array; value: Float32Array | Float64Array };

export type Header = {
  run: string;
  version: string;
  from: number | null;
  to: number | null;
  first_step: number | null;
  last_step: number | null;
  steps: number;
  bucket_steps?: number;
  /** of a heat map */
  rows?: string[];
  rows_total?: number;
  reduce?: string;
  /** of a ridge */
  bins?: number;
  arrays: { name: string; dtype: string; length: number; offset: number }[];
};

/**
 * One column in view. Exact: `last` holds the values as they are, and `min` and `max` are the same array.
 * Reduced: each entry stands for a bucket of steps.
 */
export type Line = {
  /** finite minimum, NaN where there is none */
  min: Values;
  max: Values;
  last: Values;
  /** of the finite values of each bucket; null where values are exact */
  mean: Values | null;
  /** measured NaNs in the bucket; null where values are exact */
  nan: Uint32Array | null;
  inf: Uint32Array | null;
  /** values that are not NaN */
  known: Uint32Array | null;
};

/** What a chart needs of a `Series`. */
export type SeriesLike = Pick<Series, "exact" | "bucketSteps" | "length" | "step" | "stepLast" | "line">;

// ---- Elements

/** Attributes of an element, and what it does on events. */
export type Attributes = {
  [name: string]: any;
  onclick?: (event: MouseEvent) => void;
  onkeydown?: (event: KeyboardEvent) => void;
  onpointerdown?: (event: PointerEvent) => void;
  onpointermove?: (event: PointerEvent) => void;
};

// ---- Marks

export type LaneKind = {
  id: string;
  /** short, beside the lane */
  label: string;
  /** in a sentence: "3 scale growths" */
  name: string;
  plural: string;
  /** event kinds that go here; the lane "finding" takes those that none names */
  kinds: string[];
  shape: string;
};

export type Lane = {
  kind: LaneKind;
  /** in order of step; a non-finite loss stands for its whole stretch */
  events: TbnumEvent[];
  /** one entry a mark, sorted */
  steps: Float64Array;
  /** index into `events` of each mark; null: they are the same */
  owner: Uint32Array | null;
};

export type Cluster = {
  /** index of its first mark in the lane */
  first: number;
  count: number;
  /** whether all of it is at one position, so that no zoom takes it apart */
  single: boolean;
  /** pixel of its middle */
  x: number;
};

// ---- Charts

export type Plot = uPlot;
export type PlotOptions = uPlot.Options;
export type PlotSeries = uPlot.Series;

export type Scale = "linear" | "log2" | "log10";

export type LineSpec = {
  column: string;
  label: string;
  /** name of a CSS variable */
  color: string;
  width: number;
  /** whether the smoothing slider applies while values are exact; reduced, it applies to all plain lines */
  smooth?: boolean;
  stepped?: boolean;
  dash?: number[];
  /** measured every so many steps: points are joined over what lies between */
  sparse?: boolean;
  /** reduced, the mean of a bucket is drawn, not its last value */
  average?: boolean;
  /** Columns with the least and the greatest of all ranks: a band behind the line. */
  spread?: [string, string];
  /** reduced, the maxima or the last values alone: a second band would only cloud the first */
  only?: "max" | "last";
};

export type ChartSpec = {
  id: string;
  title: string;
  scale: Scale;
  /** share of the height */
  weight: number;
  /** pixels of the plot */
  minHeight: number;
  /** whether its columns are an optimizer's */
  ofOptimizer?: boolean;
  /** whether the person may switch between linear and log10 */
  canLog?: boolean;
  /** whether its values are of tensors, and so of steps of their own */
  ofTensors?: "headroom" | "tensor";
  /** hidden until it is asked for */
  optional?: boolean;
  lines: LineSpec[];
  /** columns that its legend needs */
  beside?: string[];
};

/** Which views are shown, and how. */
export type Views = {
  /** ids of all views, from top to bottom */
  order: string[];
  hidden: Set<string>;
  /** pixels of the plots that a person has sized */
  heights: Map<string, number>;
  /** whether the axis is logarithmic, where a person has chosen */
  log: Map<string, boolean>;
};

/** What the charts show. */
export type Model = {
  /** of the interval in view, or more */
  series: Series;
  /** of the whole run */
  overview: Series;
  /** for views of tensors: extremes over all of them, and the chosen one's values */
  tensors: { headroom: SeriesLike | null; tensor: SeriesLike | null; name: string | null };
  lanes: Lane[];
  /** ids of lanes that the legend turned off */
  hidden: Set<string>;
  /** steps */
  view: [number, number];
  axis: Alignment;
  smoothing: number;
  /** of the columns of the optimizer that is shown */
  prefix: string;
  selected: TbnumEvent | null;
  /** the step that others are held against */
  pinned: number | null;
  /** what is written where a view has no value at all: that it is on its way, or how to have it recorded */
  whyEmpty: (spec: ChartSpec) => string;
};

/** What the charts tell of what a person does. */
export type ChartCallbacks = {
  zoom: (from: number, to: number) => void;
  reset: () => void;
  select: (event: TbnumEvent) => void;
  hover: (step: number | null) => void;
  pin: (step: number) => void;
  key: (key: KeyboardEvent) => void;
  views: (views: Views) => void;
  closeTensor: () => void;
  optimizer: (index: number) => void;
};

/** Steps onto the x axis and back. */
export type XAxis = { xOf: (step: number) => number; stepOf: (x: number) => number };

/** How points on the x axis are written. */
export type Places = {
  head: string;
  /** the ends of what a point stands for */
  write: (from: number, to: number) => string;
  /** how much a point stands for */
  span: (size: number) => string;
};

/** A model on its x axis, as it is drawn. */
export type Drawing = {
  model: Model;
  xAxis: XAxis;
  /** of x, in view */
  range: [number, number];
  /** by the names of CSS variables */
  colors: Record<string, string>;
};

/** What the marks tell of what a person does. */
export type LaneCallbacks = {
  select: (event: TbnumEvent) => void;
  zoom: (from: number, to: number) => void;
  look: (step: number | null) => void;
};

/** What a chart's own buttons, keys and bar do. */
export type PaneCallbacks = {
  key: (event: KeyboardEvent) => void;
  log: () => void;
  move: (by: 1 | -1) => void;
  hide: () => void;
  /** pixels of the plot; null: as at first */
  height: (pixels: number | null) => void;
};

/** What a plot asks its chart for, and tells it. */
export type PlotCallbacks = {
  /** whether points are steps */
  exact: () => boolean;
  color: (line: LineSpec, alpha: number) => string;
  /** of what is no line, by the name of a CSS variable */
  ground: (name: string) => string;
  gutter: () => number;
  xLabel: string | undefined;
  xTicks: (min: number, max: number, count: number) => number[];
  xLabels: (ticks: number[]) => string[];
  yRange: (min: number | null, max: number | null) => [number, number];
  yTicks: (min: number, max: number, height: number) => number[];
  yLabels: (ticks: number[]) => string[];
  /** the pixel of the step that is nearest */
  snapped: (plot: Plot, left: number) => number;
  drawBelow: (plot: Plot) => void;
  drawBehind: (plot: Plot) => void;
  drawn: (plot: Plot) => void;
  hovered: (plot: Plot) => void;
  left: () => void;
  selected: (plot: Plot) => void;
  clicked: (plot: Plot, left: number) => void;
  reset: () => void;
  wheel: (plot: Plot, event: WheelEvent) => void;
};

/** Where a line was not finite. */
export type Edge = { step: number[]; infinite: boolean[] };

/** One chart on the page. */
export type Pane = {
  spec: ChartSpec;
  element: HTMLElement;
  /** the bar below it that sizes it */
  grip: HTMLElement;
  log: HTMLButtonElement;
  title: HTMLElement;
  holder: HTMLElement;
  summary: HTMLElement;
  legend: HTMLElement;
  plot: Plot | null;
  /** whether nothing finite is in view */
  empty: boolean;
  /** at which of uPlot's series the greatest values of a line's buckets are; the least follow */
  ranges: { line: LineSpec; at: number }[];
  /** of uPlot's series that are thinner where points crowd; 0: as they are */
  widths: number[];
  /** points of `data` after which steps are missing */
  missing: Set<number>;
  /** what `data`, `edge` and `missing` were made from */
  made: unknown[];
  data: (number | null)[][];
  edge: Edge;
  overlay: SVGSVGElement;
};

// ---- The panel

/** What an address tells of the panel. */
export type Place = {
  run: string | null;
  /** steps, inclusive; null: the whole run */
  zoom: [number, number] | null;
  axis: Alignment;
  /** runs beside `run` in the charts */
  over: string[];
  /** whether runs of one setting are drawn as their mean */
  grouped: boolean;
  /** the selected one */
  event: { step: number; kind: string } | null;
  /** as `formatViews` writes them; null: as this browser remembers them */
  views: string | null;
  /** what of the tensors is open below the charts */
  dock: "heatmap" | "histogram" | "findings" | "values" | "runs" | null;
  /** the step that others are held against */
  pin: number | null;
  /** what the heat map shows */
  column: string | null;
  /** the chosen tensor */
  tensor: string | null;
};

/** What the page's tools do. */
export type PageCallbacks = {
  smooth: (weight: number) => void;
  align: (axis: Alignment) => void;
  goToStep: (step: number) => void;
  /** the values of the held step */
  stepText: () => Promise<string>;
  openDock: (tab: NonNullable<Place["dock"]>) => void;
  toggleDock: (tab: NonNullable<Place["dock"]>) => void;
  setViews: (views: Views) => void;
  follow: () => void;
  resetZoom: () => void;
};

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

/** What the events beside the charts tell. */
export type SelectionCallbacks = {
  choose: (event: TbnumEvent | null, zoomToIt: boolean) => void;
  go: (by: 1 | -1) => void;
  filtered: () => void;
  link: () => string;
  text: () => string;
  openTensor: (name: string) => void;
};

/** What the cursor moves over. */
export type CursorScene = {
  data: RunData;
  charts: Charts;
  overlay: Overlay | null;
  loaded: Loaded;
  pin: number | null;
  axis: Alignment;
  prefix: string;
  series: Series;
  tensors: Model["tensors"];
};

/** What a zoom needs to know, and tells. */
export type ZoomCallbacks = {
  place: () => Pick<Place, "zoom">;
  /** whether there is a run to look at */
  ready: () => boolean;
  extent: () => [number, number];
  changed: () => void;
};

/** What keys on a chart do. */
export type ChartKeys = {
  view: [number, number];
  cursor: number | null;
  moveTo: (step: number) => void;
  pin: (step: number) => void;
  zoom: (from: number, to: number) => void;
};

/** What opens below the charts, and what is done there. */
export type DocksCallbacks = {
  place: () => Place;
  opening: (tab: Place["dock"]) => void;
  opened: () => void;
  tensorChosen: () => void;
  pin: (step: number) => void;
  go: (step: number, event: TbnumEvent | null) => void;
  zoom: (from: number, to: number) => void;
  hover: (step: number | null) => void;
  chooseRun: (run: string) => void;
  toggleRun: (run: string) => void;
  draw: () => void;
  figure: () => Promise<Blob>;
};

/** What it is drawn from. */
export type DocksScene = {
  loaded: Loaded;
  charts: Charts;
  series: Series;
  view: [number, number];
  cursor: number | null;
  pinned: number | null;
  overlay: Overlay | null;
  prefix: string;
  over: Set<string>;
  runs: RunRow[];
  colorOf: (run: string) => string;
};

// ---- Several runs

/** What a choice of runs needs to know, and tells. */
export type RunsCallbacks = {
  place: () => Place;
  choose: (run: string) => void;
  table: () => void;
  /** those beside the chosen one */
  others: (runs: string[]) => void;
  group: (grouped: boolean) => void;
  draw: () => void;
  relist: () => void;
  announce: (text: string) => void;
  failed: (error: unknown) => void;
  arrived: (overlay: Overlay) => void;
};

/** What the x axis counts. */
export type Alignment = "step" | "time" | "updates";

/** What is to be in the charts beside the current run. */
export type OverlayScene = {
  current: string;
  others: string[];
  grouped: boolean;
  axis: Alignment;
  rows: RunRow[];
  /** what TensorBoard's filter lets through */
  lets: (run: string) => boolean;
  prefix: string;
  columns: string[];
  smoothing: number;
  buckets: number;
  zoomed: boolean;
  /** the x in view */
  range: () => [number, number];
};

/** One line: a run, or runs of one setting. */
export type OverlayLine = {
  runs: string[];
  /** whether any of them skipped a step */
  skips: boolean;
  /** of a bucket, in the server's unit of x; 1: each x for itself */
  size: number;
  colors: string[];
  dash: number[];
  /** x of the ends; null without steps */
  first: number | null;
  last: number | null;
  /** x where each bucket begins, and of its middle */
  start: Values;
  x: Values;
  of: (column: string, kind: string) => Values | null;
  /** points after which steps are missing */
  missing: Set<number>;
  /** by chart and axis */
  made: Map<string, OverlayPoints>;
};

/** A line's points on a chart's axis, and as they came. */
export type OverlayPoints = {
  values: (number | null)[] | null;
  bands: { low: any; high: any; alpha: number }[];
  raw: Values | null;
};

/** Where a line ends, in pixels of its canvas. */
export type LineEnd = { x: number; y: number; text: string };

export type OverlayCallbacks = {
  draw: () => void;
  redraw: () => void;
  choose: (run: string) => void;
  remove: (runs: string[]) => void;
  group: (grouped: boolean) => void;
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

// ---- Tensors

export type TensorsAnswer = {
  version: string;
  steps: number;
  columns: string[];
  names: string[];
  groups: Record<string, string[]>;
  sources: string[];
  optimizers: string[];
};

export type Cells = {
  /** names of tensors */
  rows: string[];
  rowsTotal: number;
  bucketSteps: number;
  /** whether `value` is the least, not the greatest */
  minimum: boolean;
  step: Float64Array;
  stepLast: Float64Array;
  /** rows x buckets, row after row */
  value: Float32Array;
  nonfinite: Uint32Array;
};

export type FormatLimits = {
  name: string;
  max: number;
  smallest_normal: number;
  smallest_subnormal: number;
  flushes_to: number;
  overflows_from: number;
};

export type HistogramAnswer = {
  step: number;
  /** bin, elements */
  counts: [number, number][];
  zero: number;
  inf: number;
  nan: number;
  low: number | null;
  high: number | null;
  edges: { first_bin: number; last_bin: number; upper_exponent: number };
  loss_scale: number | null;
  formats: FormatLimits[];
  steps_available: [number, number, number];
};

export type RidgeAnswer = { bins: number; step: Float64Array; counts: Float32Array };

export type Finding = { rule: string; severity: string; title: string; evidence: string; remedy: string; steps: number[] };

export type FindingRow = {
  severity: string;
  step: number | null;
  what: string;
  cause: string;
  message: string;
  remedy: string;
  event: TbnumEvent | null;
};

/** What a table of values lists: the points of a run, or of runs of one setting, as the charts draw them. */
export type ValuesSource = {
  /** as the legend has it */
  name: string;
  /** what it was made from: another is another table */
  of: unknown;
  series: SeriesLike;
  lines: { spec: ChartSpec; line: LineSpec; column: Line }[];
  /** in the unit of the series */
  view: [number, number];
  places: Places;
  /** whether values are means of several runs */
  several: boolean;
};

/** Events of one kind and cause that follow each other: the first of them. */
export type EventGroup = TbnumEvent & { last_step: number; count: number; more: string };

/** What is one row of the table of findings until it is opened. */
export type Fold = {
  key: string;
  /** null: those within have none that stands for them */
  row: FindingRow | null;
  others: FindingRow[];
  /** the others in words */
  more: string;
};

export type FindingsAnswer = { version: string; findings: Finding[]; groups: EventGroup[] };

export type SettingsAnswer = { run: string; version: string; settings: Record<string, any> };

/** The x axis of the charts. */
export type Geometry = {
  /** pixels from the left of the charts to where the axis begins */
  left: number;
  width: number;
  /** whether it shows seconds, not steps */
  time: boolean;
  /** of the axis */
  min: number;
  max: number;
  xOf: (step: number) => number;
  stepOf: (x: number) => number;
};

export type HeatMode = {
  id: string;
  column: string;
  title: string;
  /** doublings: small is bad. none: only what is not finite counts */
  scale: "log" | "share" | "doublings" | "none";
};

export type HeatRow = {
  /** of the tensor, or the module */
  name: string;
  label: string;
  /** rows of the cells */
  members: number[];
  group: boolean;
  open: boolean;
  level: number;
};

export type HeatState = {
  names: string[];
  modes: HeatMode[];
  mode: HeatMode;
  cells: Cells;
  /** what the ends of the colours stand for */
  range: [number, number];
  view: [number, number];
  geometry: Geometry;
  cursor: number | null;
  pinned: number | null;
};

export type HeatMapCallbacks = {
  hover: (step: number | null) => void;
  zoom: (from: number, to: number) => void;
  mode: (id: string) => void;
  open: (name: string, step: number | null) => void;
};

export type HistogramState = {
  names: string[];
  sources: string[];
  name: string;
  source: string;
  histogram: HistogramAnswer | null;
  ridge: RidgeAnswer | null;
  waiting: boolean;
};

export type HistogramCallbacks = { choose: (name: string, source: string) => void; step: (step: number) => void };

export type DockPlace = { tab: "heatmap" | "histogram"; column: string; tensor: string; source: string };

/** Where the dock is to look. */
export type DockScene = {
  run: string;
  version: string;
  view: [number, number];
  geometry: Geometry;
  cursor: number | null;
  pinned: number | null;
};

export type DockCallbacks = {
  hover: (step: number | null) => void;
  zoom: (from: number, to: number) => void;
  open: (name: string, step: number | null) => void;
  pin: (step: number) => void;
  place: (place: DockPlace) => void;
  close: () => void;
};
