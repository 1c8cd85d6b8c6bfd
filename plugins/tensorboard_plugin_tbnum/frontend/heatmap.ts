/**
 * The heat map: tensors by steps, on the x axis of the charts above it, moved through by pointer and keys. What is not
 * finite is hatched, so that it is seen without colours.
 */

import { hover, openTensor } from "./actions.ts";
import { button, element, factTable, placeBeside } from "./elements.ts";
import { counted } from "./format.ts";
import { badnessOf, deepest, depthAtFirst, heatRows, spans } from "./heatcells.ts";
import { HeatInput } from "./heatinput.ts";
import { LABEL_HEIGHT, paintCells } from "./heatpaint.ts";
import { cellFacts, heatKey, heatSummary, heatTable } from "./heatwords.ts";
import { xTickLabels, xTicks } from "./xaxis.ts";

import type { Cells } from "./answers.ts";
import type { Geometry } from "./model.ts";
import type { HeatMode, HeatRow } from "./heatcells.ts";
import type { Trend } from "./heatwords.ts";
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
    "aria-roledescription": "heat map", "aria-describedby": "summary-heatmap" }, this.inner);
  axis = element("div", { class: "heat-axis", "aria-hidden": "true" });
  tip = element("div", { class: "cursor-card heat-tip", hidden: true, "aria-hidden": "true" });
  summary = element("p", { class: "visually-hidden", id: "summary-heatmap" });
  live = element("p", { class: "visually-hidden", role: "status" });
  table = element("div", { class: "heat-table", hidden: true, tabindex: 0, role: "region",
    "aria-label": "Values of the heat map" });
  element: HTMLElement;

  trends: Trend[] = [];

  /** @param askTrends for cells of all that a run has, once they are to be seen */
  constructor(readonly store: PanelStore, readonly askTrends: () => Promise<Trend[]>) {
    this.modeSelect = element("select", { class: "small", "aria-label": "What the colours show",
      onchange: () => store.set({ column: this.modeSelect.value === "grad_norm" ? null : this.modeSelect.value }) });
    this.scroller.addEventListener("scroll", () => this.#schedule(), { passive: true });
    new HeatInput(this);
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
    if (!this.table.hidden && before?.names !== state.names) this.#loadTrends();
    this.#rebuild();
  }

  #rebuild() {
    const { state } = this;
    if (!state) return;
    const { cells, mode, view } = state;
    const counts = mode.scale === "none"; // of what is not finite: most first, and how many beside the name
    const badness = counts || this.worstFirst ? badnessOf(cells, mode, ...view) : null;
    this.rows = heatRows(cells.rows, { depth: this.depth, open: this.open, badness, counts });
    const levels = deepest(cells.rows);
    this.depthText.textContent = this.depth > levels ? "every tensor"
      : this.depth === 1 ? "1 level" : `${this.depth} levels`;
    this.orderButton.setAttribute("aria-pressed", String(this.worstFirst));
    this.active.row = Math.min(this.active.row, Math.max(0, this.rows.length - 1));
    this.legend.replaceChildren(...heatKey(mode, state.range));
    this.summary.textContent = heatSummary(cells, mode, this.rows, view);
    this.#draw();
    if (!this.table.hidden) this.#fillTable();
  }

  /** The state, once there is one. */
  get shown() {
    return (this.state as HeatState);
  }

  /** Pixels of a row. */
  get height() {
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
    const height = this.height;
    if (!this.rowHeight) this.heightSlider.value = String(height);
    this.inner.style.height = `${Math.max(scroller.clientHeight, this.rows.length * height)}px`;
    paintCells(canvas, { cells, mode, range, geometry, rows: this.rows, height, top: scroller.scrollTop,
      width: scroller.clientWidth, tall: scroller.clientHeight });
    const ticks = xTicks(geometry.time, geometry.min, geometry.max, geometry.width);
    const labels = xTickLabels(geometry.time, ticks);
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
    const { min, max, width, left, xOf } = this.shown.geometry;
    const at = step === null ? -1 : (xOf(step) - min) / (max - min);
    line.hidden = !(at >= 0 && at <= 1);
    line.style.transform = `translateX(${left + at * width}px)`;
  }

  /** @param index of the row @param bucket -1: none, of the row alone */
  showTip(index: number, bucket: number, x: number, y: number) {
    const { cells, mode } = this.shown;
    const row = this.rows[index];
    const title = row.group ? `${row.label} (${counted(row.members.length, "tensor")})` : row.name;
    this.tip.replaceChildren(element("header", {}, element("strong", {}, title)),
      factTable(cellFacts(cells, mode, row, bucket)));
    this.tip.hidden = false;
    placeBeside(this.tip, x, y + 14);
  }

  /** Opens or closes a module, or opens a tensor. @param index of the row */
  enter(index: number, step: number | null) {
    const row = this.rows[index];
    this.active.row = index;
    if (!row.group) return openTensor(this.store, row.name, step);
    if (!this.open.delete(row.name)) this.open.add(row.name);
    this.#rebuild();
  }

  /** Puts the focus on a cell, and says what is known of it. */
  moveTo(row: number, bucket: number) {
    const { cells, mode } = this.shown;
    this.active = { row, bucket };
    this.#reveal();
    hover(this.store, cells.step[bucket], { inCharts: false });
    const facts = cellFacts(cells, mode, this.rows[row], bucket);
    this.live.textContent = `${this.rows[row].label}: ${facts.map(([name, value]) => `${name} ${value}`).join(", ")}`;
    this.#placeFocus();
  }

  #reveal() {
    const height = this.height;
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
    this.focusBox.style.transform = `translate(${this.state.geometry.left + left[bucket]}px, ${row * this.height}px)`;
    this.focusBox.style.width = `${Math.max(4, right[bucket] - left[bucket])}px`;
    this.focusBox.style.height = `${this.height}px`;
  }

  // ---- The same in words

  #toggleTable() {
    this.table.hidden = !this.table.hidden;
    this.scroller.hidden = this.axis.hidden = !this.table.hidden;
    this.tableButton.setAttribute("aria-pressed", String(!this.table.hidden));
    if (this.table.hidden) return this.#draw();
    this.#fillTable();
    this.#loadTrends();
  }

  async #loadTrends() {
    this.trends = await this.askTrends();
    if (!this.table.hidden) this.#fillTable();
  }

  #fillTable() {
    const { state } = this;
    if (!state) return;
    const { cells, mode, view, cursor } = state;
    this.table.replaceChildren(heatTable(cells, mode, this.rows, cursor ?? view[1], this.trends, view));
  }

  remove() {
    cancelAnimationFrame(this.frame);
    this.tip.remove();
    this.element.remove();
  }
}
