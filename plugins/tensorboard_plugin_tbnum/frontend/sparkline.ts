/** A line so small that it stands in a row of a table. */

import { svg } from "./elements.ts";

const MARGIN = 4;

export type Spark = {
  width: number;
  height: number;
  /** the x of the ends */
  from: number;
  to: number;
  /** a dashed line to see values by */
  usual?: number;
  /** the point that is marked */
  at?: number;
  log?: boolean;
};

/** @param xs ascending @param values finite, as many */
export function sparkline(xs: ArrayLike<number>, values: ArrayLike<number>,
  { width, height, from, to, usual, at, log = false }: Spark) {
  const onto = log ? Math.log : (value: number) => value;
  const ys = Array.from(values, onto);
  const middle = usual === undefined ? ys[0] ?? 0 : onto(usual);
  const [least, most] = [Math.min(middle, ...ys), Math.max(middle, ...ys)];
  const room = Math.max(0, 0.1 * Math.abs(middle) - (most - least)) / 2; // what hardly varies is drawn so
  const [low, high] = [least - room, most + room];
  const x = (value: number) => MARGIN + ((value - from) / Math.max(1, to - from)) * (width - 2 * MARGIN);
  const y = (value: number) => height - MARGIN - ((value - low) / (high - low || 1)) * (height - 2 * MARGIN);
  const points = ys.map((value, index) => `${x(xs[index]).toFixed(1)},${y(value).toFixed(1)}`);
  const marked = at === undefined ? -1 : Array.from(xs).indexOf(at);
  return svg("svg", { class: "sparkline", width, height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none",
    "aria-hidden": "true" },
    ...(usual === undefined ? []
      : [svg("line", { class: "usual", x1: MARGIN, x2: width - MARGIN, y1: y(middle), y2: y(middle) })]),
    svg("polyline", { points: points.join(" ") }),
    ...(marked < 0 ? [] : [svg("circle", { cx: x(xs[marked]), cy: y(ys[marked]), r: 3 })]));
}
