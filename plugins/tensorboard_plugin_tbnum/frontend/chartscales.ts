/** Which axis a chart has: what a person chose, as far as its values have a place on it. */

import { lineOf } from "./plotdata.ts";
import { scaleOf } from "./views.ts";

import type { SeriesLike } from "./answers.ts";
import type { Charts } from "./charts.ts";
import type { ChartSpec, Scale } from "./views.ts";

export class ChartScales {
  /** by series and view: whether it has values below 0, or none but 0 */
  below: WeakMap<SeriesLike, Map<string, boolean>> = new WeakMap();

  constructor(readonly charts: Charts) {}

  /** A logarithm has no place for what is not positive: where there is nothing else, or less than 0, it goes on below. */
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
    const lines = spec.lines.flatMap((line) => lineOf(spec, line, series, model.prefix) ?? []);
    const values = lines.flatMap(({ min, max }) => [min, max]);
    const some = (holds: (value: number) => boolean) =>
      values.some((part) => part.some((value) => Number.isFinite(value) && holds(value)));
    const found = some((value) => value < 0) || (some((value) => value === 0) && !some((value) => value > 0));
    this.below.set(series, (this.below.get(series) ?? new Map()).set(spec.id, found));
    return found;
  }
}
