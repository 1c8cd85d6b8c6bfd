/** A chart's plot as uPlot is asked for it: its lines, axes, cursor and gestures. */

import uPlot from "uplot";

import { hover, lookAtY, pin } from "./actions.ts";
import { areaOf, drawRanges } from "./canvas.ts";
import { FONT, element } from "./elements.ts";
import { counted } from "./format.ts";
import { aroundGap } from "./plotdata.ts";
import { lowerBound } from "./sorted.ts";
import { xTickLabels, xTicks } from "./xaxis.ts";
import { yLabels, yTicks } from "./yaxis.ts";
import { reachOf } from "./yreach.ts";
import { resetZoom } from "./zoom.ts";

import type { Charts } from "./charts.ts";
import type { Pane } from "./pane.ts";
import type { Alignment } from "./xaxis.ts";

export type Plot = uPlot;

export type PlotOptions = uPlot.Options;

export type PlotSeries = uPlot.Series;

export const PADDING_RIGHT = 30;
const X_TICKS_HEIGHT = 24;
const X_LABEL_HEIGHT = 20;
export const X_AXIS_HEIGHT = X_TICKS_HEIGHT + X_LABEL_HEIGHT;

/** What is written below the x axis of the last chart. @param pauses how many a time axis leaves out */
export function xLabel(axis: Alignment, pauses = 0) {
  const left = pauses ? `, ${counted(pauses, "pause")} left out` : "";
  return { step: "Step", time: `Time since the first step${left}`,
    updates: "Updates done, skipped steps left out" }[axis];
}

/**
 * Lines whose points crowd are drawn a pixel wide: where they go up and down in every pixel a wider one shows no more,
 * and takes fifty times as long to draw.
 */
export function setWidths({ series }: Plot, { widths }: Pane, step: Float64Array, [from, to]: [number, number],
  width: number) {
  const crowded = 2 * (lowerBound(step, to) - lowerBound(step, from)) > width;
  series.forEach((one, at) => {
    if (widths[at]) one.width = crowded ? 1 : widths[at];
  });
}

/** @param size pixels @param last whether the x axis stands below it */
export function makePlot(charts: Charts, pane: Pane, size: { width: number; height: number }, last: boolean) {
  const { store } = charts;
  const series = seriesOf(charts, pane);
  const ground = (name: string) => () => charts.colors.known[name];
  const axis = { stroke: ground("--text-2"), font: `11px ${FONT}`, labelFont: `11px ${FONT}`,
    incrs: (_: Plot, __: number, min: number, max: number) => [Math.max(5, max - min)] }; // uPlot's own end at 1e16
  const isTime = () => store.state.axis === "time";
  const xAxis = { ...axis, size: last ? X_TICKS_HEIGHT : 1, gap: 6, labelSize: X_LABEL_HEIGHT, labelGap: 0, space: 90,
    label: last ? xLabel(store.state.axis, store.state.loaded?.info.pauses?.length) : undefined,
    splits: (plot: Plot, _: number, min: number, max: number) =>
      xTicks(isTime(), min, max, areaOf(plot).width),
    values: (_: Plot, ticks: number[]) => (last ? xTickLabels(isTime(), ticks) : ticks.map(() => "")),
    grid: { stroke: ground("--grid"), width: 1 }, ticks: { show: last, stroke: ground("--grid"), width: 1, size: 5 } };
  const yAxis = { ...axis, size: charts.gutter, gap: 8,
    splits: (plot: Plot, _: number, min: number,
      max:
        number) => (pane.empty ? [] : yTicks(charts.scaleOf(pane.spec), min, max, areaOf(plot).height || size.height)),
    values: (_: Plot, ticks: number[]) => yLabels(charts.scaleOf(pane.spec), ticks),
    grid: { stroke: ground("--grid"), width: 1 }, ticks: { show: false } };
  const cursor: PlotOptions["cursor"] = {
    y: false,
    sync: { key: "tbnum", scales: ["x", null] },
    // A cursor that snaps looks like a drag to uPlot, which would swallow the click.
    drag: { x: true, y: false, setScale: false, dist: 5, click: () => {} },
    move: (plot, left, top) => [charts.pointer.snapped(plot, left), top],
    dataIdx: (plot, _, hovered,
      x) => (charts.exact && x <= plot.data[0][plot.data[0].length - 1] ? hovered : (null as any)),
    points: { size: 7, width: 0,
      show: (plot, at) => (((plot.series[at].width ?? 0) <= 1 ? false : element("div", "cursor-point")) as any) },
    bind: { dblclick: () => () => {
      resetZoom(store);
      return null;
    } },
  };
  const plot = new uPlot({ ...size, padding: [8, PADDING_RIGHT, last ? 0 : 4, 0], legend: { show: false }, series,
    axes: [xAxis, yAxis], cursor,
    scales: { x: { time: false, auto: false }, y: { range: (_, min, max) => reachOf(charts, pane, min, max) } },
    hooks: { drawClear: [(made) => charts.drawBelow(made)],
      drawAxes: [(made) => drawRanges(made, pane, (line, alpha) => charts.colors.of(pane.spec, line, alpha)),
        (made) => charts.drawBehind(made, pane.spec)], draw: [(made) => charts.drawn(made, pane)],
      setCursor: [(made) => charts.pointer.hovered(made)], setSelect: [(made) => charts.pointer.selected(made)] } },
    pane.data as any, pane.holder);
  const { over } = plot;
  over.append(pane.overlay);
  over.addEventListener("wheel", (event) => charts.pointer.wheel(event, plot), { passive: false });
  let pressed = NaN;
  over.addEventListener("mousedown", (event) => {
    pressed = event.clientX;
  });
  over.addEventListener("click", (event) => {
    if (event.target === over && Math.abs(event.clientX - pressed) < 4)
      pin(store, charts.pointer.stepAt(plot, event.clientX - over.getBoundingClientRect().left));
  });
  over.addEventListener("mouseleave", () => hover(store, null));
  dragOnAxis(charts, pane, plot);
  return plot;
}

/** A drag on the y axis chooses what of it is looked at; a double click shows all of it again. */
function dragOnAxis({ store }: Charts, { spec, holder }: Pane, plot: Plot) {
  const axis = element("div", { class: "y-axis", title: "Drag to look at a part of this axis; double click: all of it",
    ondblclick: () => lookAtY(store, spec.id, null), onpointerdown: (event) => {
      const top = plot.over.getBoundingClientRect().top;
      const at = (y: number) => Math.max(0, Math.min(areaOf(plot).height, y - top));
      const start = at(event.clientY);
      axis.setPointerCapture(event.pointerId);
      const drag = (moved: PointerEvent) => {
        const now = at(moved.clientY);
        chosen.hidden = Math.abs(now - start) < 5;
        chosen.style.top = `${Math.min(start, now)}px`;
        chosen.style.height = `${Math.abs(now - start)}px`;
      };
      axis.addEventListener("pointermove", drag);
      axis.addEventListener("lostpointercapture", () => axis.removeEventListener("pointermove", drag), { once: true });
      axis.addEventListener("pointerup", (up) => {
        const now = at(up.clientY);
        chosen.hidden = true;
        if (Math.abs(now - start) < 5) return;
        const [high, low] = [start, now].sort((a, b) => a - b).map((y) => plot.posToVal(y, "y"));
        lookAtY(store, spec.id, [low, high]);
      }, { once: true });
    } });
  const chosen = element("div", { class: "y-chosen", hidden: true });
  plot.over.append(chosen);
  plot.root.append(axis);
  axis.style.width = `${areaOf(plot).left - 2}px`;
  holder.dataset.yAxis = "";
}

/** uPlot's series in the order of `plotData`; notes which are ranges, and how wide lines are. */
function seriesOf(charts: Charts, pane: Pane) {
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  /** Dots where steps are far enough apart to be seen as several. */
  const showPoints: (plot: Plot, at: number, from: number, to: number) => boolean = (plot, _, from, to) =>
    charts.exact && (to - from + 1) * 9 < areaOf(plot).width;
  /** Where no line goes, in pixels of the canvas; one that was measured now and then leads over what is unknown. */
  const gapsOf: (
    sparse: boolean | undefined,
  ) => (plot: Plot, at: number, from: number, to: number, unknown: [number, number][]) => [number, number][] =
    (sparse) => (plot, at, from, to, unknown) => {
      const known = sparse ? [] : unknown;
      const px = (index: number) => Math.round(plot.valToPos(plot.data[0][index], "x", true));
      const missing = [...pane.missing].map((index) => (sparse ? aroundGap(plot.data[at], index) : [index, index + 1]))
        .filter(([left, right]) => right > from && left < to)
        .map(([left, right]) => ([px(left), px(right)] as [number, number]));
      return missing.length ? [...known, ...missing].sort((a, b) => a[0] - b[0]) : known;
    };
  const series: PlotSeries[] = [{}];
  pane.ranges = [];
  for (const line of pane.spec.lines) {
    const faint = (alpha: number) => () => charts.colors.of(pane.spec, line, alpha);
    const full = faint(1);
    const gaps = gapsOf(line.sparse);
    const edge = { stroke: faint(0.45), width: 1, points: { show: false }, gaps };
    series.push(edge, { ...edge });
    pane.ranges.push({ line, at: series.length - 2 });
    const drawn: PlotSeries = { stroke: full, width: line.width, dash: line.dash, gaps,
      paths: line.stepped ? stepped : undefined,
      points: { show: line.stepped || line.dash ? false : showPoints, size: 5, filter: isolated as any, fill: full,
        stroke: full } };
    if (line.smooth)
      series.push({ ...drawn, stroke: faint(0.35), width: 1,
        points: { ...drawn.points, fill: faint(0.5), stroke: faint(0) } });
    series.push(drawn);
  }
  pane.widths = series.map(({ width = 0, dash, paths }) => (width > 1 && !dash && !paths ? width : 0));
  return series;
}

/** Points that no line reaches, because both neighbours are gaps. */
function isolated(plot: Plot, at: number, all: boolean) {
  if (all) return null;
  const values = plot.data[at];
  const [from, to] = plot.series[0].idxs ?? [0, values.length - 1];
  const alone: number[] = [];
  for (let index = from; index <= to; index++) {
    if (values[index] != null && values[index - 1] == null && values[index + 1] == null) alone.push(index);
  }
  return alone.length ? alone : null;
}
