/** The colours of the charts, as the page's theme has them. */

import { styled } from "./elements.ts";
import { CHARTS, TENSOR_CHART } from "./views.ts";

import type { Overlay } from "./overlay.ts";
import type { ChartSpec, LineSpec } from "./views.ts";

const GROUND = ["--text-2", "--grid", "--skip-band", "--skip-tick", "--selected", "--nonfinite"];

export class ChartColors {
  /** by the names of CSS variables */
  known: Record<string, string> = {};

  /** @param overlay other runs in the same charts */
  constructor(readonly overlay: () => Overlay | null) {}

  /** Dark or light. */
  read() {
    const read = styled();
    const lines = [...CHARTS, TENSOR_CHART].flatMap((spec) => spec.lines.map((line) => line.color));
    this.known = Object.fromEntries([...GROUND, ...lines].map((name) => [name, read(name)]));
  }

  /** As CSS takes it: beside other runs, a view's first line has its run's colour. */
  css(spec: ChartSpec, line: LineSpec) {
    const overlay = this.overlay();
    return overlay?.data.active && line === spec.lines[0] && spec !== TENSOR_CHART ? overlay.currentColor
      : `var(${line.color})`;
  }

  /** Beside other runs, a second plain line would be taken for one of theirs. */
  isLeftOut(spec: ChartSpec, line: LineSpec) {
    return !!this.overlay()?.data.active && line !== spec.lines[0] && !line.dash && spec !== TENSOR_CHART;
  }

  /** As a canvas takes it. */
  of(spec: ChartSpec, line: LineSpec, alpha: number = 1) {
    if (this.isLeftOut(spec, line)) return "#0000";
    const css = this.css(spec, line);
    return withAlpha(css.startsWith("#") ? css : this.known[line.color], alpha);
  }
}

/** @param color #rrggbb */
function withAlpha(color: string, alpha: number) {
  return color + Math.round(alpha * 255).toString(16).padStart(2, "0");
}
