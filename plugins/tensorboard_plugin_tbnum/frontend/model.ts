/** What the charts draw, as it follows from the state. */

import { isPlain } from "./format.ts";
import { whyEmpty } from "./notices.ts";
import { chosenEvent, prefixOf, rowOf, seriesOf, viewOf } from "./state.ts";

import type { SeriesLike, TbnumEvent } from "./answers.ts";
import type { Series } from "./api.ts";
import type { Lane } from "./marks.ts";
import type { Loaded } from "./rundata.ts";
import type { State } from "./state.ts";
import type { ChartSpec } from "./views.ts";
import type { Alignment, XAxis } from "./xaxis.ts";

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
  hidden: ReadonlySet<string>;
  /** steps */
  view: [number, number];
  axis: Alignment;
  /** the step before each, and the seconds that a time axis leaves out */
  pauses: [number, number][];
  smoothing: number;
  /** ids of views that are smoothed though they are not the loss */
  smooth: ReadonlySet<string>;
  /** ids of views whose axis goes below 0 */
  symlog: ReadonlySet<string>;
  /** of the columns of the optimizer that is shown */
  prefix: string;
  selected: TbnumEvent | null;
  /** the step that others are held against */
  pinned: number | null;
  /** what is written where a view has no value at all: that it is on its way, or how to have it recorded */
  whyEmpty: (spec: ChartSpec) => string;
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

/** What the charts draw again for. */
export const DRAWN = ["loaded", "detail", "zoom", "axis", "smoothing", "optimizer", "hidden", "event", "pin", "tensors",
  "views", "over", "grouped", "filter", "filterAside", "beside", "opened", "yRanges", "baseline", "against"] as const;

/** @param symlog ids of views whose axis goes below 0 */
export function modelOf(state: State, loaded: Loaded, symlog: ReadonlySet<string>): Model {
  const series = seriesOf(state);
  const prefix = prefixOf(state);
  const { axis, smoothing, tensors, hidden, pin: pinned } = state;
  const row = rowOf(state);
  return { series, overview: loaded.overview, lanes: loaded.lanes, hidden, view: viewOf(state), axis, smoothing,
    smooth: state.views.smooth, symlog, pauses: loaded.info.pauses ?? [], tensors, prefix,
    selected: chosenEvent(state), pinned,
    whyEmpty: (spec) => whyEmpty(spec, loaded, { series, prefix, tensors, plain: !!row && isPlain(row) }) };
}
