/** What pointer and keys do on the heat map. */

import { hover } from "./actions.ts";
import { wheelZoom } from "./gestures.ts";
import { bucketOf } from "./heatcells.ts";
import { zoomTo } from "./zoom.ts";

import type { HeatMap } from "./heatmap.ts";

/** Where the pointer is. */
type Spot = { row: number; x: number; step: number; /** whether it is on the cells, not on names */ inside: boolean };

export class HeatInput {
  constructor(readonly map: HeatMap) {
    const { scroller } = map;
    scroller.addEventListener("keydown", (event) => this.#key(event));
    scroller.addEventListener("pointerdown", (event) => this.#press(event));
    scroller.addEventListener("pointermove", (event) => this.#hover(event));
    scroller.addEventListener("pointerleave", () => this.#leave());
    scroller.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
  }

  #at(event: MouseEvent): Spot {
    const { shown: { geometry, view }, rows, scroller } = this.map;
    const box = scroller.getBoundingClientRect();
    const x = event.clientX - box.left;
    const row = Math.floor((event.clientY - box.top + scroller.scrollTop) / this.map.height);
    const share = Math.max(0, Math.min(1, (x - geometry.left) / geometry.width));
    const step = Math.round(geometry.stepOf(geometry.min + share * (geometry.max - geometry.min)));
    return { row: row < rows.length ? row : -1, x, step: Math.max(view[0], Math.min(view[1], step)),
      inside: x >= geometry.left && x <= geometry.left + geometry.width };
  }

  #hover(event: PointerEvent) {
    const { state, scroller, store } = this.map;
    if (!state || scroller.hasPointerCapture(event.pointerId)) return;
    const { row, step, inside } = this.#at(event);
    scroller.style.cursor = row < 0 ? "default" : inside ? "crosshair" : "pointer";
    if (row < 0) return this.#leave();
    if (inside) hover(store, step, { inCharts: false });
    this.map.showTip(row, inside ? bucketOf(state.cells, step) : -1, event.clientX, event.clientY);
  }

  #leave() {
    this.map.tip.hidden = true;
    hover(this.map.store, null);
  }

  /** A drag zooms, a click opens. */
  #press(event: PointerEvent) {
    const { map, map: { state, scroller, selection, store } } = this;
    if (!state || event.button !== 0) return;
    const start = this.#at(event);
    if (event.offsetX > scroller.clientWidth && event.target === scroller) return; // the scroll bar
    map.tip.hidden = true;
    scroller.setPointerCapture(event.pointerId);
    let far = false;
    const move = (moved: PointerEvent) => {
      const now = this.#at(moved);
      far ||= start.inside && Math.abs(now.x - start.x) > 5;
      selection.hidden = !far;
      const { left, width } = map.shown.geometry;
      const [a, b] = [start.x, now.x].map((x) => Math.max(left, Math.min(left + width, x))).sort((p, q) => p - q);
      selection.style.left = `${a}px`;
      selection.style.width = `${b - a}px`;
    };
    const end = (up: PointerEvent) => {
      scroller.removeEventListener("pointermove", move);
      selection.hidden = true;
      if (up.type !== "pointerup") return;
      const now = this.#at(up);
      if (far) zoomTo(store, Math.min(start.step, now.step), Math.max(start.step, now.step));
      else if (start.row >= 0) map.enter(start.row, start.inside ? start.step : null);
    };
    scroller.addEventListener("pointermove", move);
    scroller.addEventListener("pointerup", end, { once: true });
    scroller.addEventListener("pointercancel", end, { once: true });
  }

  #wheel(event: WheelEvent) {
    const { state, store } = this.map;
    if (state)
      wheelZoom(event, state.view, state.geometry.width, () => this.#at(event).step,
        (from, to) => zoomTo(store, from, to));
  }

  #key(event: KeyboardEvent) {
    const { map, map: { state, rows, active } } = this;
    if (!state || !rows.length || event.altKey || event.metaKey || event.ctrlKey) return;
    const { cells, view } = state;
    const [first, last] = view.map((step) => Math.max(0, bucketOf(cells, step)));
    const bucket = active.bucket < 0 ? bucketOf(cells, state.cursor ?? view[0]) : active.bucket;
    const stride = event.shiftKey ? 10 : 1;
    const page = Math.max(1, Math.floor(map.scroller.clientHeight / map.height) - 1);
    const { row } = active;
    const moves: Record<string, [number, number]> = { ArrowUp: [row - stride, bucket],
      ArrowDown: [row + stride, bucket], ArrowLeft: [row, bucket - stride], ArrowRight: [row, bucket + stride],
      PageUp: [row - page, bucket], PageDown: [row + page, bucket], Home: [row, first], End: [row, last] };
    if (event.key in moves) {
      const [to, at] = moves[event.key];
      map.moveTo(Math.max(0, Math.min(rows.length - 1, to)), Math.max(first, Math.min(last, at)));
    } else if (event.key === "Enter" || event.key === " ") {
      map.enter(row, bucket >= 0 ? cells.step[bucket] : null);
    } else return;
    event.preventDefault();
  }
}
