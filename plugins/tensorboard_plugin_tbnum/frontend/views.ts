/**
 * The views there are, and which of them are shown, in which order, how high, on which axis.
 *
 * `CHARTS` says what is drawn; a further chart is a further entry.
 */

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

/** Every view there is, in its first order. */
export const CHARTS: ChartSpec[] = [
  { id: "loss", title: "Loss", scale: "linear", weight: 3.2, minHeight: 150, canLog: true,
    lines: [{ column: "loss", label: "loss", color: "--loss", width: 1.75, smooth: true,
      spread: ["loss/rank_min", "loss/rank_max"] }], beside: ["loss/rank_min", "loss/rank_max"] },
  { id: "scale", title: "Loss scale", scale: "log2", weight: 1.35, minHeight: 80,
    lines: [{ column: "loss_scale", label: "loss scale", color: "--scale", width: 1.75, stepped: true }] },
  { id: "norm", title: "Gradient norm", scale: "log10", weight: 2, minHeight: 104, ofOptimizer: true, canLog: true,
    lines: [
      { column: "grad_norm", label: "before clipping", color: "--norm", width: 1.25 },
      { column: "grad_norm_clipped", label: "after clipping", color: "--clipped", width: 1.25, only: "max" },
      { column: "max_norm", label: "threshold", color: "--threshold", width: 1.25, dash: [6, 4], only: "last" },
    ] },
  { id: "clip", title: "Clipping", scale: "linear", weight: 1, minHeight: 72, ofOptimizer: true, canLog: true,
    optional: true,
    lines: [{ column: "clip_coef", label: "clip coefficient", color: "--clipped", width: 1.25, average: true }],
    beside: ["clipped"] },
  { id: "lr", title: "Learning rate", scale: "linear", weight: 1, minHeight: 72, ofOptimizer: true, canLog: true,
    optional: true, lines: [{ column: "lr", label: "learning rate", color: "--lr", width: 1.75, stepped: true }] },
  { id: "ratio", title: "Update ratio", scale: "log10", weight: 1.2, minHeight: 80, ofOptimizer: true, canLog: true,
    optional: true,
    lines: [{ column: "update_ratio", label: "update norm / parameter norm", color: "--ratio", width: 1.5,
      sparse: true }] },
  { id: "headroom", title: "Headroom", scale: "linear", weight: 1.2, minHeight: 80, ofTensors: "headroom",
    optional: true,
    lines: [{ column: "headroom/float16", label: "doublings to float16's maximum", color: "--headroom", width: 1.5,
      sparse: true }] },
];

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

export function firstViews(): Views {
  return { order: CHARTS.map(({ id }) => id),
    hidden: new Set(CHARTS.filter(({ optional }) => optional).map(({ id }) => id)), heights: new Map(),
    log: new Map() };
}

/**
 * Views as a short text, for the address and the browser's memory: `loss.log,norm*180,-scale` is the loss on a
 * logarithmic axis, the norm 180 pixels high, and the scale hidden. "" where all is as at first.
 */
export function formatViews({ order, hidden, heights, log }: Views) {
  const text = (views: Views) =>
    views.order.map((id) => {
      const height = views.heights.get(id);
      const axis = views.log.get(id);
      return `${views.hidden.has(id) ? "-" : ""}${id}${axis === undefined ? "" : axis ? ".log" : ".lin"}${
        height === undefined ? "" : `*${Math.round(height)}`
      }`;
    }).join(",");
  const all = text({ order, hidden, heights, log });
  return all === text(firstViews()) ? "" : all;
}

/** What it does not name stands at the end, as at first; what it names and nobody knows is passed over. */
export function parseViews(text: string): Views {
  const first = firstViews();
  const views: Views = { order: [], hidden: new Set(), heights: new Map(), log: new Map() };
  for (const part of text.split(",")) {
    const [, off, id, axis, height] = /^(-?)([a-z]+)(\.log|\.lin)?(?:\*(\d{1,4}))?$/.exec(part) ?? [];
    if (!first.order.includes(id) || views.order.includes(id)) continue;
    views.order.push(id);
    if (off) views.hidden.add(id);
    if (axis) views.log.set(id, axis === ".log");
    if (height) views.heights.set(id, Math.max(SMALLEST_PLOT, Number(height)));
  }
  for (const id of first.order) {
    if (views.order.includes(id)) continue;
    views.order.push(id);
    if (first.hidden.has(id)) views.hidden.add(id);
  }
  if (views.hidden.size === views.order.length) views.hidden.delete(views.order[0]);
  return views;
}

/** The columns that the shown views need, of those that a run has. @param prefix of an optimizer */
export function neededColumns(columns: string[], prefix: string, hidden: Set<string> = firstViews().hidden) {
  const shown = CHARTS.filter(({ id, ofTensors }) => !hidden.has(id) && !ofTensors);
  const wanted = new Set(
    shown.flatMap(({ lines, beside = [], ofOptimizer }) =>
      [...lines.map(({ column }) => column), ...beside].map((name) => (ofOptimizer ? prefix : "") + name)
    ),
  );
  // marks stand on the loss; the other tells a measured NaN from an unknown one
  for (const own of ["loss", `${prefix}nonfinite_tensors`]) wanted.add(own);
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
