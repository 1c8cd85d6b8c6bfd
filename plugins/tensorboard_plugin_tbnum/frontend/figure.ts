/**
 * The charts as a picture to take away: SVG, drawn by what draws the page, with titles, marks, lanes and legends around
 * it; or a PNG of it. Loaded when it is asked for.
 */

import { FONT, styled, svg } from "./elements.ts";
import { drawChart } from "./figurechart.ts";
import { OUTLINES, isOpen } from "./marks.ts";
import { SvgContext } from "./svgcontext.ts";

import type { Charts } from "./charts.ts";
import type { Cluster, Lane } from "./marks.ts";
import type { Pane } from "./pane.ts";

const [HEAD, LANE, TOP, MARGIN] = [26, 20, 40, 18];
const RUN = 220; // width of a run's name
const TIMES = 2; // the size of the page

/** Where several runs are in the charts, what distinguishes them. */
export type Named = { text: string; color: string; dash: number[] };

/** On the page's ground, as wide as on the page. */
export function figureSvg(charts: Charts, title: string, runs: Named[]): SVGSVGElement {
  const panes = charts.panes.filter(({ plot }) => plot);
  const width = charts.root.clientWidth;
  const perRow = Math.max(1, Math.floor((width - 2 * MARGIN) / RUN));
  const strip = charts.overlay?.skips.height ?? 0;
  const height = TOP + Math.ceil(runs.length / perRow) * LANE + charts.marks.clusters.length * LANE + strip
    + panes.reduce((sum, { plot }) => sum + (plot?.height ?? 0) + HEAD, 0) + 8;
  const root = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` },
    svg("title", {}, title));
  const context = new SvgContext(root);
  const colour = styled();
  context.fillStyle = colour("--bg");
  context.fillRect(0, 0, width, height);
  context.textBaseline = "middle";
  write(context, title, MARGIN, TOP / 2, "--text", 16, 500);
  let top = drawNames(context, runs, TOP, perRow);
  for (const { lane, clusters } of charts.marks.clusters) {
    drawLane(context, charts, lane, clusters, top);
    top += LANE;
  }
  if (strip) {
    context.save();
    context.translate(0, top);
    charts.overlay?.skips.draw(charts.gutter, charts.plotWidth, context as unknown as CanvasRenderingContext2D);
    context.restore();
    top += strip;
  }
  for (const pane of panes) {
    drawHead(context, pane, top);
    context.save();
    context.translate(0, top + HEAD);
    drawChart(context, charts, pane);
    context.restore();
    top += HEAD + (pane.plot?.height ?? 0);
  }
  return root;
}

export function svgBlob(root: SVGSVGElement) {
  return new Blob([new XMLSerializer().serializeToString(root)], { type: "image/svg+xml" });
}

/** The same in pixels, twice as many as on the page. */
export async function pngBlob(root: SVGSVGElement): Promise<Blob> {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(root))}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [root.width, root.height].map(({ baseVal }) => TIMES * baseVal.value);
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png")
  );
}

/** @param name of a colour */
function write(context: SvgContext, text: string, x: number, y: number, name: string, size: number, weight = 400) {
  context.font = `${weight} ${size}px ${FONT}`;
  context.fillStyle = styled()(name);
  context.fillText(text, x, y);
}

/** @returns where they end */
function drawNames(context: SvgContext, runs: Named[], top: number, perRow: number) {
  runs.forEach(({ text, color, dash }, at) => {
    const [x, y] = [MARGIN + (at % perRow) * RUN, top + Math.floor(at / perRow) * LANE + LANE / 2];
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x + 16, y);
    context.stroke();
    write(context, text, x + 22, y, "--text-2", 12);
  });
  context.setLineDash([]);
  return top + Math.ceil(runs.length / perRow) * LANE;
}

function drawLane(context: SvgContext, charts: Charts, { kind }: Lane, clusters: Cluster[], top: number) {
  const colour = styled();
  const middle = top + LANE / 2;
  const { left } = charts.geometry;
  write(context, kind.label, MARGIN, middle, "--text-2", 11);
  context.fillStyle = colour("--grid");
  context.fillRect(left, middle, charts.plotWidth, 1);
  const lane = charts.marks.element.querySelector(`.lane-${kind.id}`) ?? charts.marks.element;
  const own = getComputedStyle(lane).getPropertyValue("--mark").trim() || colour("--text");
  const open = isOpen(kind);
  for (const { x, count } of clusters) {
    context.save();
    context.translate(left + x, middle);
    if (count > 1) {
      context.textAlign = "center";
      context.lineWidth = 4;
      context.strokeStyle = colour("--bg");
      context.strokeText(String(count), 0, 0);
      context.fillStyle = own;
      context.fillText(String(count), 0, 0);
    } else {
      context.fillStyle = context.strokeStyle = own;
      context.lineWidth = open ? 2.4 : 1;
      context.outline(OUTLINES[kind.shape]);
      if (!open) context.fill();
      context.stroke();
    }
    context.restore();
  }
}

/** A chart's title and key. */
function drawHead(context: SvgContext, { title, legend }: Pane, top: number) {
  const colour = styled();
  const middle = top + HEAD / 2;
  write(context, title.textContent ?? "", MARGIN, middle, "--text", 13, 600);
  let x = 2 * MARGIN + context.measureText(title.textContent ?? "").width;
  for (const item of legend.children) {
    const swatch = item.querySelector(".swatch");
    if (swatch instanceof HTMLElement) {
      const own = swatch.style.getPropertyValue("--color").trim();
      const [, named] = /var\((--[\w-]+)\)/.exec(own) ?? [];
      context.fillStyle = (named ? colour(named) : own) || colour("--text-2");
      context.fillRect(x, middle - 1, 16, 2);
      x += 22;
    }
    const text = item.textContent ?? "";
    write(context, text, x, middle, "--text-2", 12);
    x += context.measureText(text).width + 16;
  }
}
