/** A chart's plot in a picture: axes and lines as uPlot has them, and by the page's own code what it draws beside. */

import { drawRanges } from "./canvas.ts";
import { FONT } from "./elements.ts";
import { xTickLabels, xTicks } from "./xaxis.ts";
import { yLabels, yTicks } from "./yaxis.ts";

import type { Charts } from "./charts.ts";
import type { Pane } from "./pane.ts";
import type { Plot } from "./plot.ts";
import type { SvgContext } from "./svgcontext.ts";

/** Of the size that it has on the page, from the upper left corner on. */
export function drawChart(context: SvgContext, charts: Charts, pane: Pane) {
  if (!pane.plot) return;
  const ratio = devicePixelRatio || 1;
  const plot: Plot = Object.create(pane.plot, { ctx: { value: context } }); // its scales, another canvas
  context.scale(1 / ratio, 1 / ratio);
  charts.drawBelow(plot);
  drawAxes(context, charts, plot, pane, ratio);
  drawRanges(plot, pane, (line, alpha) => charts.colors.of(pane.spec, line, alpha));
  charts.drawBehind(plot, pane.spec);
  drawLines(context, plot, pane, ratio);
  charts.drawAbove(plot, pane);
}

function drawAxes(context: SvgContext, charts: Charts, plot: Plot, { spec, empty }: Pane, ratio: number) {
  const { bbox: { left, top, width, height }, scales: { x, y } } = plot;
  const { time } = charts.geometry;
  const xs = xTicks(time, Number(x.min), Number(x.max), width / ratio);
  const scale = charts.scaleOf(spec);
  const ys = empty ? [] : yTicks(scale, Number(y.min), Number(y.max), height / ratio);
  const isLast = charts.panes[charts.panes.length - 1].spec === spec;
  context.save();
  context.font = `${11 * ratio}px ${FONT}`;
  context.strokeStyle = charts.colors.known["--grid"];
  context.fillStyle = charts.colors.known["--text-2"];
  context.lineWidth = ratio;
  context.textBaseline = "middle";
  context.textAlign = "right";
  const write = yLabels(scale, ys);
  context.beginPath();
  ys.forEach((tick, at) => {
    const place = plot.valToPos(tick, "y", true);
    context.moveTo(left, place);
    context.lineTo(left + width, place);
    context.fillText(write[at], left - 8 * ratio, place);
  });
  context.textAlign = "center";
  const labels = xTickLabels(time, xs);
  xs.forEach((tick, at) => {
    const place = plot.valToPos(tick, "x", true);
    context.moveTo(place, top);
    context.lineTo(place, top + height);
    if (isLast) context.fillText(labels[at], place, top + height + 14 * ratio);
  });
  context.stroke();
  const label = plot.axes[0].label;
  if (isLast && typeof label === "string")
    context.fillText(label, left + width / 2, top + height + 32 * ratio);
  context.restore();
}

/** The lines of a chart, each as far as it is drawn on the page. */
function drawLines(context: SvgContext, plot: Plot, { spec, missing }: Pane, ratio: number) {
  const { bbox: { left, top, width, height }, data, series } = plot;
  const [from, to] = plot.series[0].idxs ?? [0, -1];
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.lineJoin = "round";
  const sparse = !!spec.lines[0].sparse;
  series.slice(1).forEach(({ stroke, width: wide, dash, paths }, index) => {
    context.strokeStyle = typeof stroke === "function" ? String(stroke(plot, index + 1)) : "#0000";
    context.lineWidth = (wide || 1) * ratio;
    context.setLineDash((dash ?? []).map((length) => length * ratio));
    const values = data[index + 1];
    context.beginPath();
    let before: number | null = null; // what the line goes on from
    for (let at = Math.max(0, from - 1); at <= Math.min(values.length - 1, to + 1); at++) {
      const value = values[at];
      if (missing.has(at - 1)) before = null;
      if (value == null) {
        if (!sparse) before = null;
        continue;
      }
      const [x, y] = [plot.valToPos(data[0][at], "x", true), plot.valToPos(value, "y", true)];
      if (before !== null && paths) context.lineTo(x, before); // stepped
      if (before !== null) context.lineTo(x, y);
      else {
        context.moveTo(x, y);
        if (values[at + 1] == null || missing.has(at)) context.lineTo(x + ratio, y); // one alone is a dot
      }
      before = y;
    }
    context.stroke();
  });
  context.restore();
}
