/** How far the y axis of a chart reaches: to what is in view, to what a person looks at, or but for outliers. */

import { counted } from "./format.ts";
import { lowerBound } from "./sorted.ts";
import { withoutOutliers, yRange } from "./yaxis.ts";

import type { Charts } from "./charts.ts";
import type { Pane } from "./pane.ts";

/** The y axis from end to end. @param min of what uPlot draws in view; null: there is nothing */
export function reachOf(charts: Charts, pane: Pane, min: number | null, max: number | null): [number, number] {
  const { spec } = pane;
  const scale = charts.scaleOf(spec);
  const { yRanges, views } = charts.store.state;
  const others = charts.overlay?.range(spec, scale);
  if (others) [min, max] = [Math.min(min ?? Infinity, others[0]), Math.max(max ?? -Infinity, others[1])];
  pane.empty = min === null || max === null;
  const cut = others || scale !== "linear" || pane.empty ? null : withoutOutliers(drawnInView(charts, pane));
  pane.beyond = cut
    ? drawnInView(charts, pane).filter((values) => values.some((at) => at < cut[0] || at > cut[1])).length
    : 0;
  const looked = yRanges.get(spec.id);
  if (looked && !pane.empty) return looked;
  if (cut && !views.whole.has(spec.id)) [min, max] = cut;
  return yRange(scale, min, max, spec.scale);
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
  reach.hidden = !yRanges.has(spec.id) && !beyond;
  reach.textContent = yRanges.has(spec.id) ? "reset y"
    : whole ? "with outliers" : `${counted(beyond, "outlier")} left out`;
  reach.title = yRanges.has(spec.id) ? "All of the y axis"
    : whole ? "Leave out what flattens the rest" : "Let the axis reach to what flattens the rest";
  reach.setAttribute("aria-label", `${spec.title}: ${reach.textContent}`);
}
