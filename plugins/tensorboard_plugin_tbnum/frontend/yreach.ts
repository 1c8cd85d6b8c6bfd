/** How far the y axis of a chart reaches: to what is in view, to what a person looks at, or but for outliers. */

import { counted } from "./format.ts";
import { ranksReach } from "./ranklines.ts";
import { lowerBound } from "./sorted.ts";
import { isFlattened, withoutOutliers, yRange } from "./yaxis.ts";

import type { Charts } from "./charts.ts";
import type { Pane } from "./pane.ts";

const SAMPLES = 400;

/** The y axis from end to end. @param min of what uPlot draws in view; null: there is nothing */
export function reachOf(charts: Charts, pane: Pane, min: number | null, max: number | null): [number, number] {
  const { spec } = pane;
  const scale = charts.scaleOf(spec);
  const { yRanges, views } = charts.store.state;
  const others = [charts.overlay?.range(spec, scale), ranksReach(charts, spec)].filter((range) => !!range);
  for (const [low, high] of others) [min, max] = [Math.min(min ?? Infinity, low), Math.max(max ?? -Infinity, high)];
  pane.empty = min === null || max === null;
  const mayCut = scale === "linear" && min !== null && max !== null && seemsFlat(charts, pane, max - min);
  const curves = mayCut ? [drawnInView(charts, pane), ...(charts.overlay?.inView(spec, scale) ?? [])] : [];
  const cut = withoutOutliers(...curves);
  pane.beyond = cut ? curves.flat().filter((values) => values.some((at) => at < cut[0] || at > cut[1])).length : 0;
  const looked = yRanges.get(spec.id);
  if (looked && !pane.empty) return looked;
  if (cut && !views.whole.has(spec.id)) [min, max] = cut;
  return yRange(scale, min, max, spec.scale);
}

/** Whether some of the drawn values, evenly chosen, have a small part of the height: most charts are done with here. */
function seemsFlat(charts: Charts, { data }: Pane, height: number) {
  const [from, to] = charts.xRange();
  const x = data[0] as number[];
  const [first, end] = [lowerBound(x, from), lowerBound(x, to)];
  const stride = Math.max(1, Math.floor((end - first) / SAMPLES));
  const values = data[data.length - 1];
  const some = [];
  for (let at = first; at < end; at += stride) {
    const value = values[at];
    if (value !== null) some.push(value);
  }
  return isFlattened(some, height);
}

/** What a chart draws in view, point by point: their finite values. */
function drawnInView(charts: Charts, { data }: Pane): number[][] {
  const [from, to] = charts.xRange();
  const [x, ...lines] = data as [number[], ...(number | null)[][]];
  const points = [];
  for (let at = lowerBound(x, from); at < x.length && x[at] <= to; at++)
    points.push(lines.map((values) => values[at]).filter((value) => value !== null));
  return points;
}

/** Says what a chart's y axis leaves out. */
export function sayReach(charts: Charts, { spec, reach, beyond }: Pane) {
  const { yRanges, views } = charts.store.state;
  const whole = views.whole.has(spec.id);
  const said = `${yRanges.has(spec.id)} ${whole} ${beyond}`; // what is written is laid out again
  if (reach.dataset.said === said) return;
  reach.dataset.said = said;
  reach.hidden = !yRanges.has(spec.id) && !beyond;
  reach.textContent = yRanges.has(spec.id) ? "reset y"
    : whole ? "with outliers" : `${counted(beyond, "outlier")} left out`;
  reach.title = yRanges.has(spec.id) ? "All of the y axis"
    : whole ? "Leave out what flattens the rest" : "Let the axis reach to what flattens the rest";
  reach.setAttribute("aria-label", `${spec.title}: ${reach.textContent}`);
}
