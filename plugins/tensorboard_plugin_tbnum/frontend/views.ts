/**
 * The views there are, and which of them are shown, in which order, how high, on which axis.
 *
 * `tbnum/look.json` says what is drawn; a further chart is a further entry.
 */

import { views as charts } from "../../../tbnum/look.json";

import type { RunInfo } from "./answers.ts";

/** `symlog`: logarithmic on both sides of 0, and about linear between -1 and 1. */
export type Scale = "linear" | "log2" | "log10" | "symlog";

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
  /** whether each rank may have a line of its own */
  canRanks?: boolean;
  /** whether its lines may be smoothed, where that is asked for */
  canSmooth?: boolean;
  /** whether its values are of tensors, and so of steps of their own */
  ofTensors?: "headroom" | "tensor";
  /** hidden until it is asked for, or the run is one that wants it */
  optional?: boolean;
  /** columns that a run must know for it to be shown at first, and one that it must not know */
  when?: { known: string[]; without?: string };
  lines: LineSpec[];
  /** columns that its legend needs */
  beside?: string[];
};

/** Which views are shown, and how. */
export type Views = {
  /** ids of all views, from top to bottom */
  order: string[];
  hidden: Set<string>;
  /** whether those that are hidden follow the run: nobody chose */
  auto: boolean;
  /** pixels of the plots that a person has sized */
  heights: Map<string, number>;
  /** whether the axis is logarithmic, where a person has chosen */
  log: Map<string, boolean>;
  /** those that are smoothed though they are not the loss */
  smooth: Set<string>;
  /** those whose axis reaches to points that flatten the rest */
  whole: Set<string>;
  /** those in which each rank has a line of its own */
  ranks: Set<string>;
};

/** Every view there is, in its first order. */
export const CHARTS = charts as ChartSpec[];

/** The chosen tensor's: not to be chosen from the list of views. */
export const TENSOR_CHART: ChartSpec = { id: "tensor", title: "Tensor", scale: "log10", weight: 1.6, minHeight: 96,
  ofTensors: "tensor", canLog: true, optional: true, lines: [
    { column: "grad_norm", label: "gradient norm", color: "--norm", width: 1.5, sparse: true },
    { column: "update_norm", label: "update norm", color: "--ratio", width: 1.5, sparse: true },
    { column: "param_norm", label: "parameter norm", color: "--scale", width: 1.5, sparse: true },
  ] };

/** Pixels. */
export const SMALLEST_PLOT = 48;
export const LARGEST_PLOT = 2000;

/** Which are shown before a person chooses: those that a run has something for. */
export function firstViews(run: RunInfo | null = null): Views {
  return { order: CHARTS.map(({ id }) => id), auto: true, hidden: hiddenAtFirst(run), heights: new Map(),
    log: new Map(), smooth: new Set(), whole: new Set(), ranks: new Set() };
}

/** A scale where there is one; else what else shows how training does. */
function hiddenAtFirst(run: RunInfo | null): Set<string> {
  return new Set(CHARTS.filter(({ when, optional }) => {
    // What a scalar log has of a scale may only want its tag named: the view says so.
    if (!when || !run || run.meta?.source === "tensorboard") return optional;
    return !knows(run, when.known) || (when.without !== undefined && knows(run, [when.without]));
  }).map(({ id }) => id));
}

/** Whether a run knows anything of columns, of any of its optimizers. */
function knows({ columns, unknown = [] }: RunInfo, names: string[]) {
  const known = columns.filter((name) => !unknown.includes(name)).map((name) => name.slice(name.lastIndexOf("/") + 1));
  return names.every((name) => known.includes(name));
}

/** As a person chose, else as the run asks for. */
export function fitted(views: Views, run: RunInfo): Views {
  const hidden = views.auto ? hiddenAtFirst(run) : views.hidden;
  return [...hidden].join() === [...views.hidden].join() ? views : { ...views, hidden };
}

const AUTO = "auto";

/**
 * Views as a short text, for the address and the browser's memory: `loss.log,norm~*180,-scale` is the loss on a
 * logarithmic axis, the norm smoothed and 180 pixels high, and the scale hidden; `loss!` shows outliers, `loss^` each
 * rank. `auto` among them: those that are shown follow the run.
 */
export function formatViews({ order, hidden, heights, log, auto, smooth, whole, ranks }: Views) {
  const parts = order.map((id) => {
    const [height, axis] = [heights.get(id), log.get(id)];
    return `${!auto && hidden.has(id) ? "-" : ""}${id}${axis === undefined ? "" : axis ? ".log" : ".lin"}${
      smooth.has(id) ? "~" : ""
    }${whole.has(id) ? "!" : ""}${ranks.has(id) ? "^" : ""}${height === undefined ? "" : `*${Math.round(height)}`}`;
  });
  const first = CHARTS.map(({ id }) => id).join();
  return auto ? (parts.join() === first ? AUTO : [AUTO, ...parts].join()) : parts.join();
}

/** What it does not name stands at the end, as at first; what it names and nobody knows is passed over. */
export function parseViews(text: string): Views {
  const first = firstViews();
  const parts = text.split(",");
  const views: Views = { ...firstViews(), order: [], hidden: new Set() };
  for (const part of parts) {
    const [, off, id, axis, smooth, whole, ranks, height] =
      /^(-?)([a-z]+)(\.log|\.lin)?(~)?(!)?(\^)?(?:\*(\d{1,4}))?$/.exec(part) ?? [];
    if (!first.order.includes(id) || views.order.includes(id)) continue;
    views.order.push(id);
    if (off) views.hidden.add(id);
    if (axis) views.log.set(id, axis === ".log");
    if (smooth) views.smooth.add(id);
    if (whole) views.whole.add(id);
    if (ranks) views.ranks.add(id);
    if (height) views.heights.set(id, Math.max(SMALLEST_PLOT, Number(height)));
  }
  views.auto = parts.includes(AUTO) || !views.order.length;
  for (const id of first.order) {
    if (views.order.includes(id)) continue;
    views.order.push(id);
    if (first.hidden.has(id)) views.hidden.add(id);
  }
  if (views.auto) views.hidden = first.hidden;
  if (views.hidden.size === views.order.length) views.hidden.delete(views.order[0]);
  return views;
}

/** A copy that may be changed. */
export function copied({ order, hidden, heights, log, auto, smooth, whole, ranks }: Views): Views {
  return { order: [...order], hidden: new Set(hidden), heights: new Map(heights), log: new Map(log), auto,
    smooth: new Set(smooth), whole: new Set(whole), ranks: new Set(ranks) };
}

/** Shows or hides one; one at least stays. From now on a person says which are shown. */
export function toggleView(views: Views, id: string) {
  views.auto = false;
  if (!views.hidden.delete(id) && views.order.length - views.hidden.size > 1) views.hidden.add(id);
}

/** A rank's own column, and the rank. */
export const RANK_COLUMN = /^(.*)\/rank_(\d+)$/;

/** The columns that the shown views need, of those that a run has. @param prefix of an optimizer */
export function neededColumns(columns: string[], prefix: string, { hidden, ranks }: Views = firstViews()) {
  const shown = CHARTS.filter(({ id, ofTensors }) => !hidden.has(id) && !ofTensors);
  const wanted = new Set(
    shown.flatMap(({ lines, beside = [], ofOptimizer }) =>
      [...lines.map(({ column }) => column), ...beside].map((name) => (ofOptimizer ? prefix : "") + name)
    ),
  );
  for (const { id, lines: [first] } of shown) {
    if (!ranks.has(id)) continue;
    for (const column of columns) if (RANK_COLUMN.exec(column)?.[1] === first.column) wanted.add(column);
  }
  // marks stand on the loss; the second distinguishes a measured NaN from an unknown one, the third stands in the head
  for (const own of ["loss", `${prefix}nonfinite_tensors`, `${prefix}clipped`]) wanted.add(own);
  return [...wanted].filter((column) => columns.includes(column));
}

/** Which axis a view has: the one that a person chose, or its own. */
export function scaleOf({ log }: Views, { id, canLog, scale }: ChartSpec): Scale {
  const chosen = canLog ? log.get(id) : undefined;
  return chosen === undefined ? scale : chosen ? "log10" : "linear";
}

/** Past the next one that is shown. @param by up or down */
export function moveView(views: Views, id: string, by: 1 | -1) {
  const shown = views.order.filter((one) => !views.hidden.has(one));
  const other = shown[shown.indexOf(id) + by];
  if (other === undefined) return;
  views.order.splice(views.order.indexOf(id), 1);
  views.order.splice(views.order.indexOf(other) + (by > 0 ? 1 : 0), 0, id);
}
