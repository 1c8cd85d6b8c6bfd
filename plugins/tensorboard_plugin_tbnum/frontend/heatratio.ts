/** A heat map held against that of another run: how many times as large each value is. Pure. */

import { lowerBound } from "./sorted.ts";

import type { Cells } from "./answers.ts";
import type { HeatMode } from "./heatcells.ts";

/** What is larger by a factor is held against another run; shares and doublings stay as they are. */
export function canBeHeld({ scale }: HeatMode) {
  return scale === "log";
}

/** @param name of the baseline */
export function ratioMode(mode: HeatMode, name: string): HeatMode {
  return { ...mode, scale: "ratio", title: `${mode.title}, ratio to ${name}` };
}

/**
 * Values over those of the same tensor at the same step, or bucket of steps; NaN where the other run has none, or 0.
 * What is not finite in the run itself stays so.
 */
export function ratioCells(cells: Cells, base: Cells): Cells {
  const width = cells.step.length;
  const rows = new Map(base.rows.map((name, row) => [name, row]));
  const places = Array.from(cells.step, (step, at) => {
    const found = lowerBound(base.stepLast, step); // the first that ends at it or later
    return found < base.step.length && base.step[found] <= cells.stepLast[at] ? found : -1;
  });
  const value = new Float32Array(cells.value.length).fill(NaN);
  cells.rows.forEach((name, row) => {
    const other = rows.get(name);
    if (other === undefined) return;
    for (let at = 0; at < width; at++) {
      const under = places[at] < 0 ? NaN : base.value[other * base.step.length + places[at]];
      if (under > 0) value[row * width + at] = cells.value[row * width + at] / under;
    }
  });
  return { ...cells, value };
}
