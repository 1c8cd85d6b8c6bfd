/** Which axis a chart has: what a person chose, as far as its values have a place on it. */

import { lineOf } from "./plotdata.ts";
import { scaleOf } from "./views.ts";

import type { SeriesLike } from "./answers.ts";
import type { Charts } from "./charts.ts";
import type { ChartSpec, Scale } from "./views.ts";

export class ChartScales {
  /** by series and view: whether it has values below 0 */
  below: WeakMap<SeriesLike, Map<string, boolean>> = new WeakMap();

  constructor(readonly charts: Charts) {}

  /** A logarithm has no place for what is not positive: where there is such, it goes on below 0. */
  of(spec: ChartSpec): Scale {
    const { store: { state }, overlay } = this.charts;
    if (overlay?.data.relativeFor(spec))
      return !state.views.log.get(spec.id) ? "linear" : state.against === "ratio" ? "log10" : "symlog";
    const scale = scaleOf(state.views, spec);
    return scale === "log10" && this.#reachesBelow(spec) ? "symlog" : scale;
  }

  /** Looked at once for each series. */
  #reachesBelow(spec: ChartSpec): boolean {
    const { model } = this.charts;
    if (!model) return false;
    const series = this.charts.seriesOf(spec);
    const known = this.below.get(series)?.get(spec.id);
    if (known !== undefined) return known;
    const found = spec.lines.some((line) =>
      lineOf(spec, line, series, model.prefix)?.min.some((value) => value < 0 && Number.isFinite(value))
    );
    this.below.set(series, (this.below.get(series) ?? new Map()).set(spec.id, found));
    return found;
  }
}
