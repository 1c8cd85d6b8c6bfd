/**
 * The charts as a picture: what uPlot has drawn, with titles, marks and legends around it. Loaded when it is asked for.
 */

import { FONT, styled } from "./elements.ts";
import { OUTLINES } from "./marks.ts";

import type { Charts } from "./charts.ts";

const HEAD = 26;
const LANE = 20;
const RUN = 220; // width of a run's name

/**
 * At twice the size of the page, on the page's ground.
 * @param runs where several are in the charts: what distinguishes them
 */
export function figure(charts: Charts, title: string,
  runs: { text: string; color: string; dash: number[] }[]): Promise<Blob> {
  const panes = charts.panes.filter(({ plot }) => plot);
  const width = charts.root.clientWidth;
  const heights = panes.map(({ plot }) => plot?.height ?? 0);
  const perRow = Math.max(1, Math.floor((width - 36) / RUN));
  const rows = Math.ceil(runs.length / perRow);
  const height = 40 + rows * LANE + charts.marks.clusters.length * LANE
    + heights.reduce((sum, one) => sum + one + HEAD, 0)
    + 8;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * width, 2 * height];
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const colour = styled();
  const font = (size: number, weight = 400) => {
    context.font = `${weight} ${size}px ${FONT}`;
  };
  const write = (text: string, x: number, y: number, name: string) => {
    context.fillStyle = colour(name);
    context.fillText(text, x, y);
  };
  context.scale(2, 2);
  context.fillStyle = colour("--bg");
  context.fillRect(0, 0, width, height);
  context.textBaseline = "middle";
  font(16, 500);
  write(title, 18, 20, "--text");
  let top = 40;
  font(12);
  runs.forEach(({ text, color, dash }, at) => {
    const [x, y] = [18 + (at % perRow) * RUN, top + Math.floor(at / perRow) * LANE + LANE / 2];
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + 16, y);
    context.stroke();
    write(text, x + 22, y, "--text-2");
  });
  context.setLineDash([]);
  top += rows * LANE;
  const { left } = charts.geometry;
  for (const { lane, clusters } of charts.marks.clusters) {
    const middle = top + LANE / 2;
    font(11);
    write(lane.kind.label, 18, middle, "--text-2");
    context.fillStyle = colour("--grid");
    context.fillRect(left, middle, charts.plotWidth, 1);
    const own =
      getComputedStyle((charts.marks.element.querySelector(`.lane-${lane.kind.id}`) ?? charts.marks.element) as Element)
        .getPropertyValue("--mark").trim() || colour("--text");
    for (const { x, count } of clusters) {
      context.save();
      context.translate(left + x, middle);
      context.fillStyle = context.strokeStyle = own;
      if (count > 1) {
        context.textAlign = "center";
        context.lineWidth = 4;
        context.strokeStyle = colour("--bg");
        context.strokeText(String(count), 0, 0);
        context.fillText(String(count), 0, 0);
      } else {
        const open = ["cross", "star", "peak"].includes(lane.kind.shape);
        context.lineWidth = open ? 2.4 : 1;
        const path = new Path2D(OUTLINES[lane.kind.shape]);
        if (!open) context.fill(path);
        context.stroke(path);
      }
      context.restore();
    }
    top += LANE;
  }
  panes.forEach(({ plot, title: name, legend }, index) => {
    if (!plot) return;
    font(13, 600);
    write(name.textContent ?? "", 18, top + HEAD / 2, "--text");
    let x = 18 + context.measureText(name.textContent ?? "").width + 18;
    font(12);
    for (const item of legend.children) {
      const swatch = item.querySelector(".swatch");
      if (swatch instanceof HTMLElement) {
        context.fillStyle = getComputedStyle(swatch).getPropertyValue("--color").trim() || colour("--text-2");
        const named = /var\((--[\w-]+)\)/.exec(swatch.style.getPropertyValue("--color"));
        if (named) context.fillStyle = colour(named[1]);
        context.fillRect(x, top + HEAD / 2 - 1, 16, 2);
        x += 22;
      }
      write(item.textContent ?? "", x, top + HEAD / 2, "--text-2");
      x += context.measureText(item.textContent ?? "").width + 16;
    }
    context.drawImage(plot.ctx.canvas, 0, top + HEAD, plot.width, plot.height);
    top += HEAD + heights[index];
  });
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png")
  );
}
