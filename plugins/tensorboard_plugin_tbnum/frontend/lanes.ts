/**
 * The marks of events: a lane for each kind above the charts, moved through by keys, and the same marks on the loss
 * curve.
 * What kinds there are, and how marks cluster, is in `marks.ts`.
 */

import { hover, select } from "./actions.ts";
import { areaOf } from "./canvas.ts";
import { svg } from "./elements.ts";
import { eventAt } from "./events.ts";
import { counted, formatCount } from "./format.ts";
import { cluster, glyph, isQuiet, onCurve, pillWidth, shownLanes } from "./marks.ts";
import { ONTO_AXIS } from "./plotdata.ts";
import { indexOfStep } from "./sorted.ts";
import { zoomTo } from "./zoom.ts";

import type { Series } from "./api.ts";
import type { TbnumEvent } from "./answers.ts";
import type { Drawing, Model } from "./model.ts";
import type { Cluster, Lane } from "./marks.ts";
import type { Plot } from "./plot.ts";
import type { PanelStore } from "./state.ts";
import type { Scale } from "./views.ts";

const LANE_HEIGHT = 20;

export class MarkLanes {
  element = svg("svg", { class: "lanes", role: "group", "aria-label": "Marks by kind" });
  /** Those that are drawn. */
  clusters: { lane: Lane; clusters: Cluster[] }[] = [];
  drawn = "";
  height = 0;

  constructor(readonly store: PanelStore) {
    this.element.addEventListener("keydown", (event) => this.#moveFocus(event));
  }

  /** Makes room for a model's lanes. @returns whether they are higher or lower now */
  layout({ lanes, hidden }: Model, width: number): boolean {
    const { length } = shownLanes(lanes, hidden);
    const before = this.height;
    this.height = length * LANE_HEIGHT + (length ? 6 : 0);
    this.element.setAttribute("height", String(this.height));
    this.element.setAttribute("width", String(width));
    return this.height !== before;
  }

  /**
   * Draws the marks, where they have changed.
   * @param area of the plots
   * @param curve the chart of the loss
   */
  draw(drawing: Drawing, { left, width }: { left: number; width: number },
    { plot, overlay, scale }: { plot: Plot | null; overlay: SVGSVGElement; scale: Scale }) {
    const { model, xAxis, range: [min, max] } = drawing;
    const lanes = shownLanes(model.lanes, model.hidden);
    this.clusters = lanes.map((lane) => {
      const positions = model.axis !== "step" ? lane.steps.map((step) => xAxis.xOf(step)) : lane.steps;
      return { lane, clusters: cluster(positions, { min, max, width }) };
    });
    const key = JSON.stringify([width, plot && areaOf(plot).height, left, min, max, model.selected?.step,
      model.selected?.kind, model.series.header.version, lanes.map((lane) => [lane.kind.id, lane.steps.length]),
      plot?.scales.y.min, plot?.scales.y.max, model.series.bucketSteps]);
    if (key === this.drawn) return;
    this.drawn = key;

    const focused = (this.element.contains(document.activeElement) ? document.activeElement : null) as
      | SVGElement
      | null;
    const focusKey = focused?.dataset.key;
    const rows = this.clusters.map(({ lane, clusters }, row) =>
      this.#laneRow(lane, clusters, row, left, width, model.selected)
    );
    this.element.replaceChildren(...rows);
    const marks = this.element.querySelectorAll<SVGElement>(".mark");
    let target = marks[0];
    for (const mark of marks) if (mark.dataset.key === focusKey) target = mark;
    target?.setAttribute("tabindex", "0");
    if (focusKey !== undefined) target?.focus();

    if (!plot) return;
    overlay.replaceChildren(
      ...onCurve(this.clusters.map(({ clusters }) => clusters), width).map(({ lane, cluster: placed }) => {
        const { lane: source } = this.clusters[lane];
        const event = eventAt(source, placed.first);
        const y = curveY(plot, model.series, scale, source, placed.first);
        const mark = svg(
          "g",
          {
            class: `mark lane-${source.kind.id}${event === model.selected ? " selected" : ""}${
              isQuiet(source, placed) ? " quiet" : " grave"
            }`,
            transform: `translate(${placed.x.toFixed(1)} ${y.toFixed(1)})`,
          },
          svg("circle", { class: "halo", r: 10 }),
          svg("circle", { class: "hit", r: 12 }),
          glyph(source.kind),
        );
        this.#wire(mark, source, placed);
        return mark;
      }),
    );
  }

  /** Draws all of it at the next drawing. */
  forget() {
    this.drawn = "";
  }

  #laneRow(lane: Lane, clusters: Cluster[], row: number, left: number, width: number, selected: TbnumEvent | null) {
    const middle = row * LANE_HEIGHT + LANE_HEIGHT / 2 + 1;
    return svg(
      "g",
      { class: `lane lane-${lane.kind.id}`, "data-lane": lane.kind.id, role: "group",
        "aria-label": counted(lane.steps.length, lane.kind.name, lane.kind.plural) },
      svg("text", { class: "lane-label", x: 18, y: middle + 4, "aria-hidden": "true" }, lane.kind.label),
      svg("line", { class: "lane-line", x1: left, x2: left + width, y1: middle, y2: middle }),
      ...clusters.map((one) => this.#laneMark(lane, one, left, middle, selected)),
    );
  }

  #laneMark(lane: Lane, one: Cluster, left: number, middle: number, selected: TbnumEvent | null) {
    const steps = [lane.steps[one.first], lane.steps[one.first + one.count - 1]];
    const chosen = selected && selected.step <= steps[1] && (selected.data.last_step ?? selected.step) >= steps[0]
      && lane.events.includes(selected);
    const what = one.count === 1
      ? `${lane.kind.name} at step ${formatCount(steps[0])}`
      : `${formatCount(one.count)} ${lane.kind.plural}, ${
        one.single ? `step ${formatCount(steps[0])}` : `steps ${formatCount(steps[0])} to ${formatCount(steps[1])}`
      }`;
    const quiet = isQuiet(lane, one) ? " quiet" : " grave";
    const mark = svg("g", { class: `mark lane-${lane.kind.id}${chosen ? " selected" : ""}${quiet}`, role: "button",
      tabindex: -1, "aria-label": what, transform: `translate(${(left + one.x).toFixed(1)} ${middle})`,
      "data-key": `${lane.kind.id}:${steps[0]}`, "data-step": steps[0], "data-count": one.count,
      "data-kind": lane.kind.id });
    if (one.count === 1) {
      mark.append(svg("circle", { class: "halo", r: 9 }),
        svg("rect", { class: "hit", x: -8, y: -LANE_HEIGHT / 2, width: 16, height: LANE_HEIGHT }), glyph(lane.kind));
    } else {
      const width = pillWidth(one.count);
      mark.append(
        svg("rect", { class: "pill", x: -width / 2, y: -8, width, height: 16, rx: 8 }),
        svg("text", { class: "pill-count", y: 3.8, "text-anchor": "middle" }, formatCount(one.count)),
      );
    }
    this.#wire(mark, lane, one);
    return mark;
  }

  #wire(mark: SVGElement, lane: Lane, one: Cluster) {
    const event = eventAt(lane, one.first);
    const step = lane.steps[one.first]; // within the event's stretch, for a non-finite loss
    const activate = () => {
      if (one.single) return select(this.store, event);
      const [first, last] = [lane.steps[one.first], lane.steps[one.first + one.count - 1]];
      const around = Math.max(2, (last - first) * 0.15);
      zoomTo(this.store, first - around, last + around);
    };
    mark.addEventListener("mousedown", (press) => press.stopPropagation());
    mark.addEventListener("click", (press) => {
      press.stopPropagation(); // the plot below would pin the step
      activate();
    });
    mark.addEventListener("keydown", (press) => {
      if (press.key !== "Enter" && press.key !== " ") return;
      press.preventDefault();
      activate();
    });
    const look = () => hover(this.store, step);
    mark.addEventListener("mouseenter", look);
    mark.addEventListener("mouseleave", () => hover(this.store, null));
    if (!mark.hasAttribute("tabindex")) return; // what hears of the focus can be tabbed to
    mark.addEventListener("focus", () => {
      if (mark.matches(":focus-visible")) look();
    });
    mark.addEventListener("blur", () => hover(this.store, null));
  }

  /** Arrows move between marks: left and right in a lane, up and down between lanes. */
  #moveFocus(event: KeyboardEvent) {
    const from = event.target as SVGElement;
    const row = from.parentElement;
    if (!row || !from.classList.contains("mark")) return;
    let to: Element | null | undefined;
    if (event.key === "ArrowRight") to = from.nextElementSibling;
    else if (event.key === "ArrowLeft") to = from.previousElementSibling;
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const other = event.key === "ArrowDown" ? row.nextElementSibling : row.previousElementSibling;
      const marks = [...(other?.querySelectorAll(".mark") ?? [])] as SVGElement[];
      const at = from.getBoundingClientRect().left;
      to = marks.sort((a, b) =>
        Math.abs(a.getBoundingClientRect().left - at) - Math.abs(b.getBoundingClientRect().left - at)
      )[0];
    } else return;
    event.preventDefault();
    if (!to?.classList.contains("mark")) return;
    from.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    (to as SVGElement).focus();
  }
}

/**
 * Where on the loss curve an event stands; at the upper edge where the loss was not finite. @param scale of the loss
 */
function curveY(plot: Plot, series: Series, scale: Scale, lane: Lane, index: number) {
  const step = lane.steps[index];
  const at = indexOfStep(series, step);
  const line = series.line("loss");
  const known = eventAt(lane, index).data.loss;
  let value = series.exact && line && at >= 0 ? line.last[at] : known ?? (line && at >= 0 ? line.last[at] : null);
  if (lane.kind.id === "nonfinite_loss" || typeof value !== "number" || !Number.isFinite(value)) value = Infinity;
  const mapped = ONTO_AXIS[scale](value);
  const y = mapped === null ? 0 : plot.valToPos(mapped, "y");
  return Math.max(8, Math.min(areaOf(plot).height - 8, y));
}
