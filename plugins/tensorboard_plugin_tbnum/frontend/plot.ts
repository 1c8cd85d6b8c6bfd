/** A chart's plot as uPlot is asked for it: its lines, axes, cursor and gestures. */

import uPlot from "uplot";

import { areaOf, drawRanges } from "./canvas.ts";
import { FONT, element } from "./elements.ts";
import { aroundGap } from "./plotdata.ts";

import type { Pane } from "./pane.ts";
import type { LineSpec } from "./views.ts";

export type Plot = uPlot;

export type PlotOptions = uPlot.Options;

export type PlotSeries = uPlot.Series;

/** What a plot asks its chart for, and tells it. */
export type PlotCallbacks = {
  /** whether points are steps */
  exact: () => boolean;
  color: (line: LineSpec, alpha: number) => string;
  /** of what is no line, by the name of a CSS variable */
  ground: (name: string) => string;
  gutter: () => number;
  xLabel: string | undefined;
  xTicks: (min: number, max: number, count: number) => number[];
  xLabels: (ticks: number[]) => string[];
  yRange: (min: number | null, max: number | null) => [number, number];
  yTicks: (min: number, max: number, height: number) => number[];
  yLabels: (ticks: number[]) => string[];
  /** the pixel of the step that is nearest */
  snapped: (plot: Plot, left: number) => number;
  drawBelow: (plot: Plot) => void;
  drawBehind: (plot: Plot) => void;
  drawn: (plot: Plot) => void;
  hovered: (plot: Plot) => void;
  left: () => void;
  selected: (plot: Plot) => void;
  clicked: (plot: Plot, left: number) => void;
  reset: () => void;
  wheel: (plot: Plot, event: WheelEvent) => void;
};

export const PADDING_RIGHT = 30;
const X_TICKS_HEIGHT = 24;
const X_LABEL_HEIGHT = 20;
export const X_AXIS_HEIGHT = X_TICKS_HEIGHT + X_LABEL_HEIGHT;

/** @param size pixels @param last whether the x axis stands below it */
export function makePlot(pane: Pane, size: { width: number; height: number }, last: boolean, own: PlotCallbacks) {
  const series = seriesOf(pane, own);
  const ground = (name: string) => () => own.ground(name);
  const axis = { stroke: ground("--text-2"), font: `11px ${FONT}`, labelFont: `11px ${FONT}` };
  const options: PlotOptions = { ...size, padding: [8, PADDING_RIGHT, last ? 0 : 4, 0], legend: { show: false }, series,
    scales: { x: { time: false, auto: false }, y: { range: (_, min, max) => own.yRange(min, max) } }, axes: [
      { ...axis, size: last ? X_TICKS_HEIGHT : 1, gap: 6, label: own.xLabel, labelSize: X_LABEL_HEIGHT, labelGap: 0,
        space: 90,
        splits: (plot, _, min, max) => own.xTicks(min, max, Math.max(2, Math.floor(areaOf(plot).width / 100))),
        values: (_, ticks) => (last ? own.xLabels(ticks) : ticks.map(() => "")),
        grid: { stroke: ground("--grid"), width: 1 },
        ticks: { show: last, stroke: ground("--grid"), width: 1, size: 5 } },
      { ...axis, size: own.gutter, gap: 8,
        splits: (plot, _, min, max) => own.yTicks(min, max, areaOf(plot).height || size.height),
        values: (_, ticks) => own.yLabels(ticks), grid: { stroke: ground("--grid"), width: 1 },
        ticks: { show: false } },
    ], cursor: {
      y: false,
      sync: { key: "tbnum", scales: ["x", null] },
      // A cursor that snaps looks like a drag to uPlot, which would swallow the click.
      drag: { x: true, y: false, setScale: false, dist: 5, click: () => {} },
      move: (plot, left, top) => [own.snapped(plot, left), top],
      dataIdx: (plot, _, hovered,
        x) => (own.exact() && x <= plot.data[0][plot.data[0].length - 1] ? hovered : (null as any)),
      points: { size: 7,
        show: (plot, at) => (((plot.series[at].width ?? 0) <= 1 ? false : element("div", "cursor-point")) as any),
        width: 0 },
      bind: { dblclick: () => () => {
        own.reset();
        return null;
      } },
    },
    hooks: { drawClear: [own.drawBelow], drawAxes: [(plot) => drawRanges(plot, pane, own.color), own.drawBehind],
      draw: [own.drawn], setCursor: [own.hovered], setSelect: [own.selected] } };
  const plot = new uPlot(options, pane.data as any, pane.holder);
  const { over } = plot;
  over.append(pane.overlay);
  over.addEventListener("wheel", (event) => own.wheel(plot, event), { passive: false });
  let pressed = NaN;
  over.addEventListener("mousedown", (event) => {
    pressed = event.clientX;
  });
  over.addEventListener("click", (event) => {
    if (event.target === over && Math.abs(event.clientX - pressed) < 4)
      own.clicked(plot, event.clientX - over.getBoundingClientRect().left);
  });
  over.addEventListener("mouseleave", own.left);
  return plot;
}

/** uPlot's series in the order of `plotData`; notes which are ranges, and how wide lines are. */
function seriesOf(pane: Pane, own: PlotCallbacks) {
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  /** Dots where steps are far enough apart to be told from each other. */
  const showPoints: (plot: Plot, at: number, from: number, to: number) => boolean = (plot, _, from, to) =>
    own.exact() && (to - from + 1) * 9 < areaOf(plot).width;
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
    const faint = (alpha: number) => () => own.color(line, alpha);
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
