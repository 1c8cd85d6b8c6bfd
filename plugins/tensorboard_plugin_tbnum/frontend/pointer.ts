/** What a pointer does on the plots of the charts: which step it is on, and what a drag or the wheel zooms to. */

import { hover } from "./actions.ts";
import { areaOf } from "./canvas.ts";
import { wheelZoom } from "./gestures.ts";
import { zoomTo } from "./zoom.ts";

import type { Charts } from "./charts.ts";
import type { Plot } from "./plot.ts";

export class Pointer {
  constructor(readonly charts: Charts) {}

  stepAt(plot: Plot, left: number) {
    const { view } = this.charts.shown;
    const step = Math.round(this.charts.xAxis.stepOf(plot.posToVal(left, "x")));
    return Math.max(Math.ceil(view[0]), Math.min(Math.floor(view[1]), step));
  }

  /** The pixel of the step nearest to a pixel. */
  snapped(plot: Plot, left: number) {
    if (!this.charts.model || left < 0) return left;
    const at = plot.valToPos(this.charts.xAxis.xOf(this.stepAt(plot, left)), "x");
    return Math.max(0, Math.min(areaOf(plot).width, at));
  }

  hovered(plot: Plot) {
    const left = plot.cursor.left ?? -1;
    if (!this.charts.model || left < 0 || !plot.cursor.event) return;
    const step = this.stepAt(plot, left);
    if (step === this.charts.cursorStep) return;
    this.charts.cursorStep = step;
    hover(this.charts.store, step);
  }

  selected(plot: Plot) {
    const { left, width } = plot.select;
    if (width < 2) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    if (!plot.cursor.event) return; // the other charts only show what is selected in this one
    const [from, to] = [left, left + width].map((at) => this.charts.xAxis.stepOf(plot.posToVal(at, "x")));
    zoomTo(this.charts.store, from, to);
  }

  wheel(event: WheelEvent, plot: Plot) {
    if (!this.charts.model) return;
    const stepAt = (x: number) =>
      this.charts.xAxis.stepOf(plot.posToVal(x - plot.over.getBoundingClientRect().left, "x"));
    wheelZoom(event, this.charts.model.view, areaOf(plot).width, stepAt,
      (from, to) => zoomTo(this.charts.store, from, to));
  }
}
