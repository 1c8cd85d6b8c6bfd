/** How the room of the charts is shared between them. */

import { X_AXIS_HEIGHT } from "./plot.ts";

import type { Pane } from "./pane.ts";

const GRIP_HEIGHT = 6;

/**
 * The size of each plot: as high as a person made it, else its share of what is left.
 * @param room of all charts, in pixels @param above what stands above the plots
 */
export function plotSizes(panes: Pane[], room: { width: number; height: number }, above: number,
  heights: Map<string, number>): { width: number; height: number }[] {
  const heads = panes.reduce((sum, pane) => {
    const head = pane.element.firstElementChild as HTMLElement;
    return sum + head.offsetHeight + parseFloat(getComputedStyle(pane.element).marginTop);
  }, 0);
  const given = panes.reduce((sum, { spec }) => sum + (heights.get(spec.id) ?? 0), 0);
  const total = room.height - heads - above - X_AXIS_HEIGHT - 10 - given - GRIP_HEIGHT * panes.length;
  const weights = panes.reduce((sum, { spec }) => sum + (heights.has(spec.id) ? 0 : spec.weight), 0);
  return panes.map(({ spec }, index) => {
    const own = heights.get(spec.id) ?? Math.max(spec.minHeight, (total * spec.weight) / weights);
    return { width: room.width, height: Math.round(own) + below(panes, index) };
  });
}

/** Pixels below what a view's height means: the last one has the x axis. */
export function below(panes: Pane[], index: number) {
  return index === panes.length - 1 ? X_AXIS_HEIGHT : 4;
}
