/** What a chart says of itself: the key of its lines, and its summary for screen readers. */

import { element } from "./elements.ts";
import { counted, formatCount, formatNumber, formatScale, formatShare } from "./format.ts";
import { lineOf } from "./plotdata.ts";
import { ranksText } from "./ranklines.ts";
import { lowerBound } from "./sorted.ts";
import { TENSOR_CHART } from "./views.ts";

import type { SeriesLike } from "./answers.ts";
import type { Charts } from "./charts.ts";
import type { Model } from "./model.ts";
import type { Pane } from "./pane.ts";
import type { ChartSpec, LineSpec } from "./views.ts";

/**
 * The key of a chart's lines.
 * @param lacking names of other runs that have nothing to draw here @param against what is drawn in place of values
 * @param lines those that are drawn
 * @param colorOf as CSS takes it @param edge whether anything in view was not finite
 */
export function keyItems(spec: ChartSpec, lines: LineSpec[], series: SeriesLike, model: Model,
  colorOf: (line: LineSpec) => string, edge: boolean, lacking: string[] = [], against = "") {
  const [from, to] = stepsInView(model);
  const own = colorOf(spec.lines[0]);
  const items = lines.length > 1 || spec.optional
    ? lines.map((line) => keyItem(line.label, `line${line.dash ? " dashed" : ""}`, colorOf(line))) : [];
  if (model.smoothing > 0 && (spec.id === "loss" || model.smooth.has(spec.id))) {
    items.push(keyItem(`smoothed ${model.smoothing.toFixed(2)}`, "line", own));
    if (model.series.exact) items.push(keyItem("raw", "line faint", own));
  }
  if (spec.id === "clip" && lines.length)
    items.push(keyItem(clippedText(model.series, model.prefix, from, to), "", ""));
  const spread = spec.lines.some((line) => line.spread?.every((name) => series.line(name)));
  if (spread) items.push(keyItem("min to max of the ranks", "band", own));
  else if (!series.exact && lines.length)
    items.push(keyItem(`min to max of ${formatCount(series.bucketSteps)} steps`, "band", own));
  if (model.symlog.has(spec.id)) items.push(keyItem("linear between −1 and 1", "", ""));
  if (against) items.push(keyItem(against, "", "", "against"));
  for (const name of lacking) items.push(keyItem(`no ${spec.title.toLowerCase()} in ${name}`, "", "", "lacking"));
  if (edge) items.push(keyItem("▲ ∞  ✕ NaN", "", "", "nonfinite-key"));
  return items;
}

/** @param empty why nothing is drawn, if so */
export function summaryOf(spec: ChartSpec, series: SeriesLike, model: Model, empty: string) {
  const [from, to] = stepsInView(model);
  const format = spec.scale === "log2" ? formatScale : formatNumber;
  const where = `${spec.title}, steps ${formatCount(from)} to ${formatCount(to)}`;
  const line = lineOf(spec, spec.lines[0], series, model.prefix);
  if (!line || !series.length) return `${where}: ${empty}.`;
  let [first, last, low, high] = [NaN, NaN, Infinity, -Infinity];
  for (let index = 0; index < series.length; index++) {
    if (series.stepLast[index] < from || series.step[index] > to) continue;
    const value = line.last[index];
    if (Number.isFinite(value)) {
      if (Number.isNaN(first)) first = value;
      last = value;
    }
    if (Number.isFinite(line.min[index])) low = Math.min(low, line.min[index]);
    if (Number.isFinite(line.max[index])) high = Math.max(high, line.max[index]);
  }
  if (low > high) return `${where}: ${empty}.`;
  const skips = model.lanes.find((lane) => lane.kind.id === "skip")?.steps ?? [];
  const inView = lowerBound(skips, to + 1) - lowerBound(skips, from);
  return `${where}: from ${format(first)} to ${format(last)}, lowest ${format(low)}, highest ${format(high)}; ${
    counted(inView, "skip")
  }.`;
}

/** Whole steps. */
export function stepsInView({ view }: Model): [number, number] {
  return [Math.ceil(view[0]), Math.floor(view[1])];
}

/** In how many of the steps in view that were not skipped gradients were clipped; buckets at the edges count whole. */
export function clippedText(series: SeriesLike, prefix: string, from: number, to: number) {
  const line = series.line(`${prefix}clipped`);
  let [known, clipped] = [0, 0];
  for (let index = 0; line && index < series.length; index++) {
    if (series.stepLast[index] < from || series.step[index] > to || Number.isNaN(line.last[index])) continue;
    const steps = line.known ? line.known[index] : 1;
    known += steps;
    clipped += line.mean ? Math.round(line.mean[index] * steps) : line.last[index];
  }
  return known ? `clipped in ${formatShare(clipped, known)} of ${counted(known, "update")}` : "";
}

/** @param more class */
function keyItem(label: string, shape: string, color: string, more: string = "") {
  return element("li", more,
    ...(shape ? [element("span", { class: `swatch ${shape}`, style: `--color: ${color}` })] : []), label);
}

/** Why a chart has nothing to draw. */
export function emptyText(charts: Charts, { spec, edge }: Pick<Pane, "spec" | "edge">) {
  const { prefix, whyEmpty } = charts.shown;
  const series = charts.seriesOf(spec);
  if (charts.overlay?.data.relativeFor(spec)) return "nothing in common with the baseline in view";
  const recorded = spec.lines.some((line) => lineOf(spec, line, series, prefix)?.last.some(Number.isFinite));
  if (recorded) return "no finite value in view";
  return edge.step.length ? `no finite ${spec.title.toLowerCase()}` : whyEmpty(spec);
}

/** Says in words what a chart shows. @returns whether its key is another, and may need another height */
export function describePane(charts: Charts, pane: Pane): boolean {
  const { spec, title, holder, legend, summary, edge } = pane;
  const { shown: model, overlay, colors } = charts;
  const series = charts.seriesOf(spec);
  const [from, to] = stepsInView(model);
  holder.setAttribute("aria-valuemin", String(from));
  holder.setAttribute("aria-valuemax", String(to));
  if (spec === TENSOR_CHART) title.textContent = model.tensors.name;
  const alone = !!overlay?.data.relativeFor(spec); // the baseline has the first line's values alone
  const drawn = spec.lines.filter((line) =>
    lineOf(spec, line, series, model.prefix)?.max.some(Number.isFinite) && !colors.isLeftOut(spec, line)
    && (!alone || line === spec.lines[0])
  );
  const broken = edge.step.some((step) => step >= from && step <= to);
  const items = keyItems(spec, drawn, series, model, (line) => colors.css(spec, line), broken,
    overlay?.data.active ? overlay.lacking(spec) : [], overlay?.againstText(spec));
  const ofRanks = ranksText(charts, spec);
  if (ofRanks) items.push(keyItem(ofRanks, "line faint", colors.known["--text-2"]));
  summary.textContent = summaryOf(spec, series, model, emptyText(charts, pane))
    + (overlay?.summary(spec, charts.scaleOf(spec)) ?? "");
  const text = colors.css(spec, spec.lines[0]) + items.map((item) => item.textContent).join();
  if (legend.dataset.text === text) return false;
  legend.dataset.text = text;
  legend.replaceChildren(...items);
  return true;
}
