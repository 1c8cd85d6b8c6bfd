/** What the server answers: see `http_api.md` beside the plugin. */

import type { Series } from "./api.ts";

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
  /** columns without a single known value */
  unknown?: string[];
  /** the step before each pause, and how many seconds it took */
  pauses?: [number, number][];
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

/** `headline`: what matters of the run, in words. */
export type EventsAnswer = { version: string; events: TbnumEvent[]; headline: string[] };

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

export type Finding = { rule: string; severity: string; title: string; evidence: string; remedy: string;
  steps: number[] };

/** Events of one kind and cause that follow each other: the first of them. */
export type EventGroup = TbnumEvent & { last_step: number; count: number; more: string };

export type FindingsAnswer = { version: string; findings: Finding[]; groups: EventGroup[] };

export type SettingsAnswer = { run: string; version: string; settings: Record<string, any> };

/** How a run does, in a few numbers. Unknown is null. */
export type HealthAnswer = {
  run: string;
  /** of its findings, and of its events where none is graver; null: nothing to report */
  worst: string | null;
  /** by severity */
  findings: Record<string, number>;
  /** steps that a spike of the loss or of a norm began at */
  spikes: number;
  skipped: number | null;
  /** share of the steps */
  clipped: number | null;
  nonfinite: number;
};

/** What one quantity did in the steps before a step. */
export type LedQuantity = {
  name: string;
  optimizer: string | null;
  tensor: string | null;
  /** whose it is, where each rank has its own; null: the run's */
  rank: number | null;
  usual: number;
  value: number;
  at_step: number;
  /** how far the value is from the usual, in the quantity's own robust deviations */
  deviations: number;
  steps: number[];
  values: number[];
};

export type LedAnswer = {
  step: number;
  first_step: number;
  /** furthest from their usual first */
  quantities: LedQuantity[];
  not_recorded: string[];
  /** the first ids of the step's own samples, and how many there were; null where they were not recorded */
  samples: number[] | null;
  samples_total: number | null;
};

/** Where two runs part, in what both recorded. */
export type ApartAnswer = {
  /** that both have */
  steps: number;
  /** null: they do not part */
  first_step: number | null;
  sentence: string;
  /** what to do next */
  next: string;
  /** name, in the first, in the second */
  settings: [string, string, string][];
};

/** From which step a run is outside of what seeds of one setting do, by column; null: it is not. */
export type BandAnswer = { run: string; seeds: string[]; columns: Record<string, { leaves: number | null }> };
