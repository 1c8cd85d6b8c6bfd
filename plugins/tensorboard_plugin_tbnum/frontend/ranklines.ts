/** Ranks as lines of their own, thin, and the one that stands out from the others named. */

import { FONT } from "./elements.ts";
import { formatCount } from "./format.ts";
import { ONTO_AXIS } from "./plotdata.ts";
import { lowerBound } from "./sorted.ts";
import { RANK_COLUMN } from "./views.ts";

import type { SeriesLike, Values } from "./answers.ts";
import type { Charts } from "./charts.ts";
import type { Lane } from "./marks.ts";
import type { Plot } from "./plot.ts";
import type { ChartSpec } from "./views.ts";

/** Which rank is at fault, and at which step; `named` by an event, else by its values alone. */
export type Guilty = { rank: number; step: number; named: boolean };

const STANDS_OUT = 6; // times the ranks' usual distance from their median
const LEAST_SPREAD = 0.05; // of the median: ranks that hardly differ stand out by nothing
const [FAINT, CLEAR] = [0.4, 1];

/** The values of each rank in a series, by its number. */
export function rankValues(series: SeriesLike, columns: string[], column: string): Map<number, Values> {
  const found: Map<number, Values> = new Map();
  for (const name of columns) {
    const [, of, rank] = RANK_COLUMN.exec(name) ?? [];
    const line = of === column ? series.line(name) : null;
    if (line) found.set(Number(rank), line.last);
  }
  return found;
}

/** Of the events from step to step, the rank that one names as guilty; the first of them. */
function namedByEvent(lanes: Lane[], from: number, to: number): Guilty | null {
  for (const event of lanes.flatMap(({ events }) => events)) {
    const [rank] = event.data.ranks?.guilty ?? [];
    if (typeof rank === "number" && event.step >= from && event.step <= to)
      return { rank, step: event.step, named: true };
  }
  return null;
}

/**
 * The rank that is furthest from the median of all at any point, where it is far: not finite before all else. Of two
 * ranks neither stands out, unless it is not finite. @param from point @param to point, exclusive
 */
export function standingOut(ranks: ReadonlyMap<number, ArrayLike<number>>, from: number, to: number) {
  let [most, found] = [STANDS_OUT, null as { rank: number; at: number } | null];
  for (let at = from; at < to; at++) {
    const values = [...ranks].map(([rank, own]) => ({ rank, value: own[at] }));
    const finite = values.filter(({ value }) => Number.isFinite(value)).map(({ value }) => value);
    const infinite = values.find(({ value }) => Math.abs(value) === Infinity);
    if (infinite && finite.length) return { rank: infinite.rank, at };
    if (finite.length < 3) continue;
    const median = middle(finite);
    const spread = Math.max(1.4826 * middle(finite.map((value) => Math.abs(value - median))),
      LEAST_SPREAD * Math.abs(median), Number.MIN_VALUE);
    for (const { rank, value } of values) {
      const far = Math.abs(value - median) / spread;
      if (far > most) [most, found] = [far, { rank, at }];
    }
  }
  return found;
}

function middle(values: number[]) {
  return Float64Array.from(values).sort()[values.length >> 1];
}

/** What is drawn of ranks in a chart; null: they have no lines in it. */
function shownRanks(charts: Charts, spec: ChartSpec) {
  const { store: { state } } = charts;
  if (!state.views.ranks.has(spec.id) || !state.loaded || charts.overlay?.data.relativeFor(spec)) return null;
  const series = charts.seriesOf(spec);
  const ranks = rankValues(series, state.loaded.info.derived, spec.lines[0].column);
  return ranks.size ? { series, ranks, lanes: state.loaded.lanes } : null;
}

/** Which rank is at fault in view. */
export function guiltyRank(charts: Charts, spec: ChartSpec): Guilty | null {
  const shown = shownRanks(charts, spec);
  if (!shown) return null;
  const { series, ranks, lanes } = shown;
  const [from, to] = charts.shown.view;
  const named = namedByEvent(lanes, from, to);
  if (named && ranks.has(named.rank)) return named;
  const out = standingOut(ranks, lowerBound(series.stepLast, from), lowerBound(series.step, to + 1));
  return out && { rank: out.rank, step: series.step[out.at], named: false };
}

/** For the key of a chart. */
export function ranksText(charts: Charts, spec: ChartSpec): string {
  const count = shownRanks(charts, spec)?.ranks.size;
  if (!count) return "";
  const guilty = guiltyRank(charts, spec);
  if (!guilty) return `${count} ranks`;
  const { rank, step, named } = guilty;
  return `${count} ranks; rank ${rank} ${named ? "is at fault" : "stands out"} at step ${formatCount(step)}`;
}

/** The least and the greatest of all ranks in view, on the chart's axis; null: they have no lines. */
export function ranksReach(charts: Charts, spec: ChartSpec): [number, number] | null {
  const shown = shownRanks(charts, spec);
  if (!shown) return null;
  const onto = ONTO_AXIS[charts.scaleOf(spec)];
  const [from, to] = charts.shown.view;
  const [first, end] = [lowerBound(shown.series.stepLast, from), lowerBound(shown.series.step, to + 1)];
  let [low, high] = [Infinity, -Infinity];
  for (const values of shown.ranks.values()) {
    for (let at = first; at < end; at++) {
      const value = onto(values[at]);
      if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
  }
  return low <= high ? [low, high] : null;
}

/** Draws them behind the chart's own line. */
export function drawRankLines(plot: Plot, charts: Charts, spec: ChartSpec) {
  const shown = shownRanks(charts, spec);
  if (!shown) return;
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const { series, ranks } = shown;
  const guilty = guiltyRank(charts, spec);
  const onto = ONTO_AXIS[charts.scaleOf(spec)];
  const [from, to] = charts.shown.view;
  const [first, end] = [Math.max(0, lowerBound(series.stepLast, from) - 1), lowerBound(series.step, to + 1) + 1];
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.font = `600 ${11 * ratio}px ${FONT}`;
  ctx.textAlign = "left";
  const stands = (rank: number) => Number(rank === guilty?.rank); // it is drawn above the others
  const order = [...ranks].sort(([a], [b]) => stands(a) - stands(b));
  for (const [rank, values] of order) {
    ctx.globalAlpha = stands(rank) ? CLEAR : FAINT;
    ctx.strokeStyle = ctx.fillStyle = charts.colors.known[stands(rank) ? "--nonfinite" : "--text-2"];
    ctx.lineWidth = (stands(rank) ? 1.75 : 1) * ratio;
    ctx.beginPath();
    let open = false;
    let mark: [number, number] | null = null; // where it stands out
    for (let at = first; at < Math.min(end, series.length); at++) {
      const value = onto(values[at]);
      if (value === null) {
        open = false;
        continue;
      }
      const middleStep = (series.step[at] + series.stepLast[at]) / 2;
      const [x, y] = [plot.valToPos(charts.xAxis.xOf(series.exact ? series.step[at] : middleStep), "x", true),
        plot.valToPos(value, "y", true)];
      if (open) ctx.lineTo(x, y);
      else ctx.moveTo(x, y);
      open = true;
      if (series.step[at] <= (guilty?.step ?? NaN)) mark = [x, y];
    }
    ctx.stroke();
    if (stands(rank) && mark)
      ctx.fillText(`rank ${rank}`, Math.min(mark[0] + 6 * ratio, bbox.left + bbox.width - 50 * ratio),
        Math.max(mark[1] - 6 * ratio, bbox.top + 12 * ratio));
  }
  ctx.restore();
}
