/**
 * The heat map: tensors by steps, on the x axis of the charts above it, moved through by pointer and keys. What is not
 * finite is hatched, so that it is seen without colours.
 */

import { hover, openTensor } from "./actions.ts";
import { button, element, factTable, placeBeside, table } from "./elements.ts";
import { counted, formatCount, formatNumber, linearTicks, stepLabels, timeLabels, timeTicks } from "./format.ts";
import { wheelZoom } from "./gestures.ts";
import { badnessOf, brokenRows, colourMap, deepest, depthAtFirst, heatRows, spans } from "./heatcells.ts";
import { LABEL_HEIGHT, paintCells } from "./heatpaint.ts";
import { lowerBound } from "./sorted.ts";
import { zoomTo } from "./zoom.ts";

import type { Cells } from "./answers.ts";
import type { Geometry } from "./charts.ts";
import type { HeatMode, HeatRow } from "./heatcells.ts";
import type { PanelStore } from "./state.ts";

export type HeatState = {
  names: string[];
  modes: HeatMode[];
  mode: HeatMode;
  cells: Cells;
  /** what the ends of the colours stand for */
  range: [number, number];
  view: [number, number];
  geometry: Geometry;
  cursor: number | null;
  pinned: number | null;
};

const ROW_HEIGHTS = { least: 3, most: 26 };
const LABELLED_ROWS = 60; // so many scroll rather than lose their names

export class HeatMap {
  state: HeatState | null = null;
  rows: HeatRow[] = [];
  /** modules that are opened */
  open: Set<string> = new Set();
  depth = 0;
  worstFirst = false;
  rowHeight = 0; // 0: as fits
  active = { row: 0, bucket: -1 };
  frame = 0;
  modeSelect: HTMLSelectElement;
  depthSlider = element("input", { type: "range", min: 1, step: 1, "aria-label": "Depth of modules", oninput: () => {
    this.depth = Number(this.depthSlider.value);
    this.open.clear();
    this.#rebuild();
  } });
  depthText = element("output");
  heightSlider = element("input", { type: "range", min: ROW_HEIGHTS.least, max: ROW_HEIGHTS.most, step: 1,
    "aria-label": "Height of a row", oninput: () => {
      this.rowHeight = Number(this.heightSlider.value);
      this.#rebuild();
    } });
  orderButton = button("Worst first", "The worst tensors in view above, instead of the model's order", () => {
    this.worstFirst = !this.worstFirst;
    this.scroller.scrollTop = 0;
    this.#rebuild();
  });
  tableButton = button("Table", "The values at the cursor as a table", () => this.#toggleTable());
  legend = element("div", "heat-legend");
  canvas = element("canvas", { "aria-hidden": "true" });
  cursorLine = element("div", { class: "heat-cursor", hidden: true });
  pinnedLine = element("div", { class: "heat-pinned", hidden: true });
  selection = element("div", { class: "heat-selection", hidden: true });
  focusBox = element("div", { class: "heat-focus", hidden: true });
  inner = element("div", "heat-inner", this.canvas, this.pinnedLine, this.cursorLine, this.selection, this.focusBox);
  scroller = element("div", { class: "heat-scroller", tabindex: 0, role: "application",
    "aria-roledescription": "heat map", "aria-describedby": "summary-heatmap", onkeydown: (event) => this.#key(event),
    onpointerdown: (event) => this.#press(event), onpointermove: (event) => this.#hover(event),
    onpointerleave: () => this.#leave() }, this.inner);
  axis = element("div", { class: "heat-axis", "aria-hidden": "true" });
  tip = element("div", { class: "cursor-card heat-tip", hidden: true, "aria-hidden": "true" });
  summary = element("p", { class: "visually-hidden", id: "summary-heatmap" });
  live = element("p", { class: "visually-hidden", role: "status" });
  table = element("div", { class: "heat-table", hidden: true, tabindex: 0, role: "region",
    "aria-label": "Values of the heat map" });
  element: HTMLElement;

  constructor(readonly store: PanelStore) {
    this.modeSelect = element("select", { class: "small", "aria-label": "What the colours show",
      onchange: () => store.set({ column: this.modeSelect.value === "grad_norm" ? null : this.modeSelect.value }) });
    this.scroller.addEventListener("scroll", () => this.#schedule(), { passive: true });
    this.scroller.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    this.scroller.addEventListener("blur", () => {
      this.focusBox.hidden = true;
    });
    this.element = element(
      "section",
      { class: "heat", "aria-label": "Heat map of tensors" },
      element(
        "header",
        "dock-tools",
        this.modeSelect,
        element("label", "slider-label", "Modules", this.depthSlider, this.depthText),
        element("label", "slider-label", "Rows", this.heightSlider),
        this.orderButton,
        this.tableButton,
      ),
      this.scroller,
      this.axis,
      this.table,
      this.summary,
      this.live,
    );
    document.body.append(this.tip);
  }

  show(state: HeatState) {
    const before = this.state;
    this.state = state;
    if (before?.names !== state.names) {
      this.depth = depthAtFirst(state.names);
      this.open.clear();
      this.depthSlider.max = String(deepest(state.names) + 1);
      this.depthSlider.value = String(this.depth);
      this.modeSelect.replaceChildren(...state.modes.map(({ id, title }) => element("option", { value: id }, title)));
    }
    this.modeSelect.value = state.mode.id;
    this.scroller.setAttribute("aria-label", `${state.mode.title} of tensors by steps; arrow keys move, Enter opens`);
    this.#rebuild();
  }

  #rebuild() {
    const { state } = this;
    if (!state) return;
    const { cells, mode, view } = state;
    this.rows = heatRows(cells.rows, { depth: this.depth, open: this.open,
      badness: this.worstFirst ? badnessOf(cells, mode, ...view) : null });
    const levels = deepest(cells.rows);
    this.depthText.textContent = this.depth > levels ? "every tensor"
      : this.depth === 1 ? "1 level" : `${this.depth} levels`;
    this.orderButton.setAttribute("aria-pressed", String(this.worstFirst));
    this.active.row = Math.min(this.active.row, Math.max(0, this.rows.length - 1));
    this.#drawLegend();
    const groups = this.rows.filter(({ group }) => group).length;
    const broken = brokenRows(cells, this.rows, ...view);
    this.summary.textContent =
      `${mode.title}, ${counted(this.rows.length, "row")}${groups ? `, ${groups} of them modules` : ""}, steps ${
        formatCount(view[0])
      } to ${formatCount(view[1])}; `
      + `${broken ? `${counted(broken, "row")} with values that are not finite` : "all values finite"}.`;
    this.#draw();
    if (!this.table.hidden) this.#fillTable();
  }

  /** Pixels of a row. */
  get #height() {
    const fitting = Math.floor(this.scroller.clientHeight / Math.max(1, this.rows.length));
    const least = this.rows.length <= LABELLED_ROWS ? LABEL_HEIGHT + 2 : ROW_HEIGHTS.least;
    return this.rowHeight || Math.max(least, Math.min(18, fitting));
  }

  #schedule() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const { state, canvas, scroller } = this;
    if (!state || !scroller.clientHeight || !scroller.clientWidth) return;
    const { cells, mode, range, geometry } = state;
    const height = this.#height;
    if (!this.rowHeight) this.heightSlider.value = String(height);
    this.inner.style.height = `${Math.max(scroller.clientHeight, this.rows.length * height)}px`;
    paintCells(canvas, { cells, mode, range, geometry, rows: this.rows, height, top: scroller.scrollTop,
      width: scroller.clientWidth, tall: scroller.clientHeight });
    const count = Math.max(2, Math.floor(geometry.width / 100));
    const ticks = geometry.time ? timeTicks(geometry.min, geometry.max, count)
      : linearTicks(geometry.min, geometry.max, count, 1);
    const labels = geometry.time ? timeLabels(ticks) : stepLabels(ticks);
    this.axis.replaceChildren(
      ...ticks.map((tick, at) =>
        element("span", {
          style: `left: ${geometry.left + ((tick - geometry.min) / (geometry.max - geometry.min)) * geometry.width}px`,
        }, labels[at])
      ),
    );
    this.#placeFocus();
    this.#placeLine(this.pinnedLine, state.pinned);
    this.setCursor(state.cursor);
  }

  /** Another step under the cursor of the charts. */
  setCursor(step: number | null) {
    if (!this.state) return;
    this.state.cursor = step;
    this.#placeLine(this.cursorLine, step);
    if (!this.table.hidden) this.#fillTable();
  }

  #placeLine(line: HTMLElement, step: number | null) {
    const { min, max, width, left, xOf } = (this.state as HeatState).geometry;
    const at = step === null ? -1 : (xOf(step) - min) / (max - min);
    line.hidden = !(at >= 0 && at <= 1);
    line.style.transform = `translateX(${left + at * width}px)`;
  }

  #drawLegend() {
    const { mode, range } = this.state as HeatState;
    const bar = element("canvas", { width: 256, height: 1, class: "heat-bar", "aria-hidden": "true" });
    const context = bar.getContext("2d") as CanvasRenderingContext2D;
    const image = context.createImageData(256, 1);
    new Uint32Array(image.data.buffer).set(colourMap(document.documentElement.classList.contains("dark")));
    context.putImageData(image, 0, 0);
    const ends = mode.scale === "doublings" ? [range[1], range[0]] : range;
    const texts = ends.map((
      end,
    ) => (mode.scale === "share" ? `${end * 100} %` : formatNumber(Number(end.toPrecision(2)))));
    const scale = mode.scale === "none" ? []
      : [element("span", {}, texts[0]), bar,
        element("span", {}, texts[1] + (mode.scale === "doublings" ? " doublings" : ""))];
    this.legend.replaceChildren(
      ...scale,
      ...(scale.length ? [element("span", {}, "up to the next sample")] : []),
      element("span", {}, element("span", "heat-broken"), "not finite, at its steps"),
      element("span", {}, element("span", "heat-none"), "no value"),
    );
  }

  // ---- Pointer

  #at(event: MouseEvent): { row: number; x: number; step: number; inside: boolean } {
    const { geometry, view } = this.state as HeatState;
    const box = this.scroller.getBoundingClientRect();
    const x = event.clientX - box.left;
    const row = Math.floor((event.clientY - box.top + this.scroller.scrollTop) / this.#height);
    const share = Math.max(0, Math.min(1, (x - geometry.left) / geometry.width));
    const step = Math.round(geometry.stepOf(geometry.min + share * (geometry.max - geometry.min)));
    return { row: row < this.rows.length ? row : -1, x, step: Math.max(view[0], Math.min(view[1], step)),
      inside: x >= geometry.left && x <= geometry.left + geometry.width };
  }

  #hover(event: PointerEvent) {
    if (!this.state || this.scroller.hasPointerCapture(event.pointerId)) return;
    const { row, step, inside } = this.#at(event);
    this.scroller.style.cursor = row < 0 ? "default" : inside ? "crosshair" : "pointer";
    if (row < 0) return this.#leave();
    if (inside) hover(this.store, step, { inCharts: false });
    this.#showTip(this.rows[row], inside ? this.#bucket(step) : -1, event.clientX, event.clientY);
  }

  #leave() {
    this.tip.hidden = true;
    hover(this.store, null);
  }

  /** The bucket whose sample stands for a step. */
  #bucket(step: number) {
    const { cells } = this.state as HeatState;
    return lowerBound(cells.step, step + 1) - 1;
  }

  /** What is known of a cell, as pairs. */
  #facts(row: HeatRow, bucket: number): [string, string][] {
    const { cells, mode } = this.state as HeatState;
    const width = cells.step.length;
    if (bucket < 0 || bucket >= width) return [];
    let [worst, at, broken] = [-Infinity, -1, 0];
    for (const member of row.members) {
      const value = cells.value[member * width + bucket];
      broken += cells.nonfinite[member * width + bucket];
      const bad = cells.minimum ? -value : value;
      if (bad > worst) [worst, at] = [bad, member];
    }
    const [from, to] = [cells.step[bucket], cells.stepLast[bucket]];
    const value = at < 0 ? null : cells.value[at * width + bucket];
    const facts: [string, string][] = [[from === to ? "Step" : "Steps",
      from === to ? formatCount(from) : `${formatCount(from)} to ${formatCount(to)}`]];
    const written = mode.scale === "share" && value !== null ? `${formatNumber(Number((100 * value).toPrecision(3)))} %`
      : formatNumber(value === null ? null : Number(value.toPrecision(5)));
    facts.push([(row.group ? "worst " : "") + (mode.scale === "none" ? "gradient norm" : mode.title.toLowerCase()),
      written]);
    if (row.group && at >= 0) facts.push(["of", cells.rows[at]]);
    if (broken) facts.push(["Not finite", counted(broken, "sample")]);
    return facts;
  }

  #showTip(row: HeatRow, bucket: number, x: number, y: number) {
    const facts = this.#facts(row, bucket);
    const title = row.group ? `${row.label} (${counted(row.members.length, "tensor")})` : row.name;
    this.tip.replaceChildren(
      element("header", {}, element("strong", {}, title)),
      factTable(facts),
    );
    this.tip.hidden = false;
    placeBeside(this.tip, x, y + 14);
  }

  /** A drag zooms, a click opens. */
  #press(event: PointerEvent) {
    if (!this.state || event.button !== 0) return;
    const start = this.#at(event);
    if (event.offsetX > this.scroller.clientWidth && event.target === this.scroller) return; // the scroll bar
    this.tip.hidden = true;
    this.scroller.setPointerCapture(event.pointerId);
    let far = false;
    const move = (moved: PointerEvent) => {
      const now = this.#at(moved);
      far ||= start.inside && Math.abs(now.x - start.x) > 5;
      this.selection.hidden = !far;
      const { left, width } = this.state?.geometry ?? { left: 0, width: 0 };
      const [a, b] = [start.x, now.x].map((x) => Math.max(left, Math.min(left + width, x))).sort((p, q) => p - q);
      this.selection.style.left = `${a}px`;
      this.selection.style.width = `${b - a}px`;
    };
    const end = (up: PointerEvent) => {
      this.scroller.removeEventListener("pointermove", move);
      this.selection.hidden = true;
      if (up.type !== "pointerup") return;
      const now = this.#at(up);
      if (far) zoomTo(this.store, Math.min(start.step, now.step), Math.max(start.step, now.step));
      else if (start.row >= 0) this.#enter(start.row, start.inside ? start.step : null);
    };
    this.scroller.addEventListener("pointermove", move);
    this.scroller.addEventListener("pointerup", end, { once: true });
    this.scroller.addEventListener("pointercancel", end, { once: true });
  }

  /** Opens or closes a module, or opens a tensor. @param index of the row */
  #enter(index: number, step: number | null) {
    const row = this.rows[index];
    this.active.row = index;
    if (!row.group) return openTensor(this.store, row.name, step);
    if (!this.open.delete(row.name)) this.open.add(row.name);
    this.#rebuild();
  }

  #wheel(event: WheelEvent) {
    if (this.state)
      wheelZoom(event, this.state.view, this.state.geometry.width, () => this.#at(event).step,
        (from, to) => zoomTo(this.store, from, to));
  }

  // ---- Keys

  #key(event: KeyboardEvent) {
    if (!this.state || !this.rows.length || event.altKey || event.metaKey || event.ctrlKey) return;
    const { cells, view } = this.state;
    const [first, last] = [Math.max(0, this.#bucket(view[0])), Math.max(0, this.#bucket(view[1]))];
    const bucket = this.active.bucket < 0 ? this.#bucket(this.state.cursor ?? view[0]) : this.active.bucket;
    const stride = event.shiftKey ? 10 : 1;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.#height) - 1);
    const row = this.active.row;
    const moves: Record<string, [number, number]> = { ArrowUp: [row - stride, bucket],
      ArrowDown: [row + stride, bucket], ArrowLeft: [row, bucket - stride], ArrowRight: [row, bucket + stride],
      PageUp: [row - page, bucket], PageDown: [row + page, bucket], Home: [row, first], End: [row, last] };
    if (event.key in moves) {
      const [to, at] = moves[event.key];
      this.active = { row: Math.max(0, Math.min(this.rows.length - 1, to)),
        bucket: Math.max(first, Math.min(last, at)) };
      this.#reveal();
      const step = cells.step[this.active.bucket];
      hover(this.store, step, { inCharts: false });
      const facts = this.#facts(this.rows[this.active.row], this.active.bucket);
      this.live.textContent = `${this.rows[this.active.row].label}: ${
        facts.map(([name, value]) => `${name} ${value}`).join(", ")
      }`;
      this.#placeFocus();
    } else if (event.key === "Enter" || event.key === " ") {
      this.#enter(row, bucket >= 0 ? cells.step[bucket] : null);
    } else return;
    event.preventDefault();
  }

  #reveal() {
    const height = this.#height;
    const top = this.active.row * height;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + height > this.scroller.scrollTop + this.scroller.clientHeight)
      this.scroller.scrollTop = top + height - this.scroller.clientHeight;
  }

  #placeFocus() {
    const { bucket, row } = this.active;
    this.focusBox.hidden = bucket < 0 || document.activeElement !== this.scroller;
    if (this.focusBox.hidden || !this.state) return;
    const { left, right } = spans(this.state.cells, this.state.geometry, 1);
    this.focusBox.style.transform = `translate(${this.state.geometry.left + left[bucket]}px, ${row * this.#height}px)`;
    this.focusBox.style.width = `${Math.max(4, right[bucket] - left[bucket])}px`;
    this.focusBox.style.height = `${this.#height}px`;
  }

  // ---- The same in words

  #toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.scroller.hidden = this.axis.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.table.hidden));
    if (!this.table.hidden) this.#fillTable();
    else this.#draw();
  }

  #fillTable() {
    const { state } = this;
    if (!state) return;
    const bucket = this.#bucket(state.cursor ?? state.view[1]);
    const { step, stepLast } = state.cells;
    const what = state.mode.scale === "none" ? "Gradient norm" : state.mode.title;
    this.table.replaceChildren(table(
      "small-table",
      ["Tensor", what, "Not finite"],
      this.rows.map((row) => {
        const facts = this.#facts(row, bucket);
        return [row.group ? `${row.label} (${row.members.length})` : row.name, facts[1]?.[1] ?? "–",
          facts.find(([name]) => name === "Not finite")?.[1] ?? "–"];
      }),
      bucket < 0 ? "No sample here"
        : step[bucket] === stepLast[bucket] ? `At step ${formatCount(step[bucket])}`
        : `At steps ${formatCount(step[bucket])} to ${formatCount(stepLast[bucket])}`,
    ));
  }

  remove() {
    cancelAnimationFrame(this.frame);
    this.tip.remove();
    this.element.remove();
  }
}
