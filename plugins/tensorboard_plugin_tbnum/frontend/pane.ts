/**
 * One chart on the page: its head with the key and the buttons, the room for its plot, and the bar below that sizes it.
 */

import { changeViews, lookAtY, openTensor, pressOnChart } from "./actions.ts";
import { button, element, iconButton, svg } from "./elements.ts";
import { LARGEST_PLOT, SMALLEST_PLOT, TENSOR_CHART, moveView, scaleOf, toggleView } from "./views.ts";

import type { Plot } from "./plot.ts";
import type { Edge } from "./plotdata.ts";
import type { PanelStore } from "./state.ts";
import type { ChartSpec, LineSpec } from "./views.ts";

/** One chart on the page. */
export type Pane = {
  spec: ChartSpec;
  element: HTMLElement;
  /** the bar below it that sizes it */
  grip: HTMLElement;
  log: HTMLButtonElement;
  smooth: HTMLButtonElement;
  ranks: HTMLButtonElement;
  /** says what the y axis leaves out, and changes that */
  reach: HTMLButtonElement;
  title: HTMLElement;
  holder: HTMLElement;
  summary: HTMLElement;
  legend: HTMLElement;
  plot: Plot | null;
  /** whether nothing finite is in view */
  empty: boolean;
  /** how many values in view the axis does not reach, as they would flatten the rest */
  beyond: number;
  /** at which of uPlot's series the greatest values of a line's buckets are; the least follow */
  ranges: { line: LineSpec; at: number }[];
  /** of uPlot's series that are thinner where points crowd; 0: as they are */
  widths: number[];
  /** points of `data` after which steps are missing */
  missing: Set<number>;
  /** what `data`, `edge` and `missing` were made from */
  made: unknown[];
  data: (number | null)[][];
  edge: Edge;
  overlay: SVGSVGElement;
};

/** @param tools further ones for its head */
export function makePane(spec: ChartSpec, store: PanelStore, ...tools: Node[]): Pane {
  const { id } = spec;
  const close = iconButton("✕", "Close the tensor", () => openTensor(store, null, null));
  const hide = () => changeViews(store, (views) => toggleView(views, id));
  const move = (by: 1 | -1) => () => changeViews(store, (views) => moveView(views, id, by));
  const resize = (pixels: number | null) =>
    changeViews(store, ({ heights }) => {
      if (pixels === null) heights.delete(id);
      else heights.set(id, pixels);
    });
  const legend = element("ul", "key");
  const title = element("h2", {}, spec.title);
  const log = button("log", "Logarithmic axis",
    () => changeViews(store, (views) => views.log.set(id, scaleOf(views, spec) !== "log10")));
  log.setAttribute("aria-label", `Logarithmic axis of ${spec.title}`);
  const smooth = button("smooth", "Smoothed as the loss is",
    () => changeViews(store, (views) => flip(views.smooth, id)));
  smooth.setAttribute("aria-label", `Smoothed ${spec.title.toLowerCase()}`);
  const ranks = button("ranks", "A line for each rank", () => changeViews(store, (views) => flip(views.ranks, id)));
  ranks.setAttribute("aria-label", `${spec.title} of each rank`);
  ranks.hidden = true;
  const reach = button("", "", () => {
    if (store.state.yRanges.has(id)) lookAtY(store, id, null);
    else changeViews(store, (views) => flip(views.whole, id));
  });
  reach.classList.add("reach");
  const order = spec === TENSOR_CHART ? [close] : [
    iconButton("↑", `Move ${spec.title} up`, move(-1)),
    iconButton("↓", `Move ${spec.title} down`, move(1)),
    iconButton("✕", `Hide ${spec.title}`, hide),
  ];
  const summary = element("p", { class: "visually-hidden", id: `summary-${spec.id}` });
  const holder = element("div", { class: "plot", tabindex: 0, role: "slider", "aria-label": `${spec.title}: cursor`,
    "aria-describedby": summary.id, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0,
    onkeydown: (event) => pressOnChart(store, event) });
  return { spec, log, smooth, ranks, reach, title, holder, summary, legend, grip: makeGrip(spec.title, resize),
    overlay: svg("svg", { class: "on-curve", "aria-hidden": "true" }), element: element(
      "section",
      { class: "chart", "data-chart": spec.id },
      element("header", "chart-head", title, legend,
        element("div", "chart-tools", element("span", "chart-order", ...order), reach,
          ...(spec.canRanks ? [ranks] : []), ...(spec.canSmooth ? [smooth] : []), ...(spec.canLog ? [log] : []),
          ...tools)),
      holder,
      summary,
    ), plot: null, empty: false, beyond: 0, ranges: [], widths: [], made: [], data: [],
    edge: { step: [], infinite: [] }, missing: new Set() };
}

/** Puts an id in where it is not, else out. */
function flip(ids: Set<string>, id: string) {
  if (!ids.delete(id)) ids.add(id);
}

/** The bar below a view: dragged, or moved by keys, it makes the view higher. @param resize null: as at first */
function makeGrip(title: string, resize: (pixels: number | null) => void) {
  const grip = element("div", { class: "grip", role: "separator", tabindex: 0, "aria-orientation": "horizontal",
    "aria-label": `Height of ${title}`, "aria-valuemin": SMALLEST_PLOT, "aria-valuemax": LARGEST_PLOT,
    title: "Drag, or use the arrow keys; double click: as at first" });
  const height = () => Number(grip.getAttribute("aria-valuenow"));
  const set = (pixels: number) => resize(Math.max(SMALLEST_PLOT, Math.min(LARGEST_PLOT, Math.round(pixels))));
  grip.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -16, ArrowDown: 16, PageUp: -64, PageDown: 64 }[event.key];
    if (by === undefined && event.key !== "Home") return;
    event.preventDefault();
    if (by === undefined) resize(null);
    else set(height() + by);
  });
  grip.addEventListener("dblclick", () => resize(null));
  grip.addEventListener("pointerdown", (event) => {
    const [start, before] = [event.clientY, height()];
    grip.setPointerCapture(event.pointerId);
    const drag = (moved: PointerEvent) => {
      if (moved.clientY !== start) set(before + moved.clientY - start);
    };
    grip.addEventListener("pointermove", drag);
    grip.addEventListener("lostpointercapture", () => grip.removeEventListener("pointermove", drag), { once: true });
  });
  return grip;
}
