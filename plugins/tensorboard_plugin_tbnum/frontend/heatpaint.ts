/** The heat map's picture: cells in colour, what is not finite hatched, and the names of rows. */

import { FONT, sized, styled } from "./elements.ts";
import { rowPixels, spans } from "./heatcells.ts";
import { coloursOf, packed } from "./heatcolours.ts";

import type { Cells } from "./answers.ts";
import type { Geometry } from "./model.ts";
import type { HeatMode, HeatRow } from "./heatcells.ts";

/** Pixels that a name needs. */
export const LABEL_HEIGHT = 11;

export type HeatPicture = {
  cells: Cells;
  mode: HeatMode;
  range: [number, number];
  geometry: Geometry;
  rows: HeatRow[];
  /** pixels of a row */
  height: number;
  /** pixels that are scrolled away, and those that are seen */
  top: number;
  width: number;
  tall: number;
};

export function paintCells(canvas: HTMLCanvasElement,
  { cells, mode, range, geometry, rows, height, top: scrolled, width, tall }: HeatPicture) {
  const ratio = devicePixelRatio || 1;
  const context = sized(canvas, width, tall);
  const colour = styled();
  const dark = document.documentElement.classList.contains("dark");
  const map = coloursOf(mode, dark);
  const [ink, ground] = dark ? [packed([255, 120, 215]), packed([40, 10, 34])]
    : [packed([163, 18, 122]), packed([255, 226, 246])];
  const pixels = Math.round(geometry.width * ratio);
  const places = spans(cells, geometry, ratio);
  const first = Math.floor(scrolled / height);
  const last = Math.min(rows.length, Math.ceil((scrolled + tall) / height));
  const gap = height >= 6 ? Math.max(1, Math.round(ratio)) : 0;
  const image = context.createImageData(Math.max(1, pixels), canvas.height);
  const data = new Uint32Array(image.data.buffer);
  for (let index = first; index < last; index++) {
    const line = rowPixels(cells, rows[index].members, places, pixels, mode, range);
    const top = Math.round((index * height - scrolled) * ratio);
    const bottom = Math.round(((index + 1) * height - scrolled) * ratio) - gap;
    for (let y = Math.max(0, top); y < Math.min(canvas.height, Math.max(bottom, top + 1)); y++) {
      for (let x = 0; x < pixels; x++) {
        const share = line[x];
        if (share >= 0) data[y * pixels + x] = map[share];
        else if (share === -2) data[y * pixels + x] = (x + y) % 4 < 2 ? ink : ground;
      }
    }
  }
  context.putImageData(image, Math.round(geometry.left * ratio), 0);
  context.scale(ratio, ratio);
  context.font = `${Math.min(12, Math.max(10, height - 3))}px ${FONT}`;
  context.textBaseline = "middle";
  let written = -Infinity;
  for (let index = first; index < last; index++) {
    const middle = (index + 0.5) * height - scrolled;
    if (middle - written < LABEL_HEIGHT) continue;
    written = middle;
    const row = rows[index];
    context.fillStyle = colour(row.group ? "--text" : "--text-2");
    const indent = 16 + (row.level ? 14 : 0);
    if (row.group) context.fillText(row.open ? "▾" : "▸", 4, middle);
    context.fillText(shortened(context, row.label, geometry.left - indent - 8), indent, middle);
  }
}

/** A name cut at its front, where it says least, to fit. */
function shortened(context: CanvasRenderingContext2D, text: string, room: number) {
  if (context.measureText(text).width <= room) return text;
  let cut = 1;
  while (cut < text.length && context.measureText(`…${text.slice(cut)}`).width > room) cut++;
  return `…${text.slice(cut)}`;
}
