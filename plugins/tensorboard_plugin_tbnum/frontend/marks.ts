/**
 * Which marks there are, and where they go: lanes by kind, clusters where they crowd, places on the curve.
 * Pure but for `glyph` and `icon`, which make one SVG element.
 *
 * A lane holds the sorted x positions of all its events. What is drawn follows from binary searches over
 * them, so a drawing costs the width of the chart, not the number of events.
 */

import { lanes as laneKinds, open_shapes as openShapes, shapes } from "../../../tbnum/look.json";
import { svg } from "./elements.ts";
import { lowerBound } from "./sorted.ts";

import type { NonfiniteAnswer, TbnumEvent } from "./answers.ts";

export type LaneKind = {
  id: string;
  /** short, beside the lane */
  label: string;
  /** in a sentence: "3 scale growths" */
  name: string;
  plural: string;
  /** event kinds that go here; the lane "finding" takes those that none names */
  kinds: string[];
  shape: string;
};

export type Lane = {
  kind: LaneKind;
  /** in order of step; a non-finite loss stands for its whole stretch */
  events: TbnumEvent[];
  /** one entry a mark, sorted */
  steps: Float64Array;
  /** index into `events` of each mark; null: they are the same */
  owner: Uint32Array | null;
};

export type Cluster = {
  /** index of its first mark in the lane */
  first: number;
  count: number;
  /** whether all of it is at one position, so that no zoom takes it apart */
  single: boolean;
  /** pixel of its middle */
  x: number;
};

/** In the order in which they are drawn from top to bottom, which is also the order of precedence on the curve. */
export const LANES: LaneKind[] = laneKinds;

const LANE_OF = new Map(LANES.flatMap((lane) => lane.kinds.map((kind) => [kind, lane.id])));

/** The id of the lane that shows events of a kind; a kind of a newer tbnum is a finding. */
export function laneOf(kind: string) {
  return LANE_OF.get(kind) ?? "finding";
}

/** The lanes that a run needs, in their order, with their marks. @param events in order of step */
export function buildLanes(events: TbnumEvent[], nonfiniteLoss: NonfiniteAnswer | null): Lane[] {
  const byLane: Map<string, TbnumEvent[]> = new Map();
  for (const event of events) {
    const id = laneOf(event.kind);
    const lane = byLane.get(id);
    if (lane) lane.push(event);
    else byLane.set(id, [event]);
  }
  const lanes: Lane[] = [];
  for (const kind of LANES) {
    if (kind.id === "nonfinite_loss") {
      if (nonfiniteLoss && nonfiniteLoss.step.length) lanes.push(nonfiniteLane(kind, nonfiniteLoss));
      continue;
    }
    const own = byLane.get(kind.id);
    if (own) lanes.push(laneWith(kind, own));
  }
  return lanes;
}

/** A mark for each step: of several optimizers' events at one step, the first one's. @param events in order of step */
function laneWith(kind: LaneKind, events: TbnumEvent[]): Lane {
  const first = [...events.keys()].filter((at) => at === 0 || events[at].step !== events[at - 1].step);
  return { kind, events, steps: Float64Array.from(first, (at) => events[at].step),
    owner: first.length === events.length ? null : Uint32Array.from(first) };
}

/** What the legend turns off of a lane's events by: their kind, or a cause of theirs. */
export function causeId({ kind }: Lane, cause: string | null) {
  return `${kind.id}/${cause ?? "unknown"}`;
}

/** What the legend turns events of a severity off by. */
export function severityId(severity: string) {
  return `severity/${severity}`;
}

export const SEVERITIES = ["error", "warning", "info"];

/** How many events have each severity, the gravest first; those that there are none of are left out. */
export function severitiesOf(lanes: Lane[]): [string, number][] {
  const events = lanes.flatMap((lane) => lane.events);
  return SEVERITIES.map((
    severity,
  ): [string, number] => [severity, events.filter((event) => event.severity === severity).length])
    .filter(([, count]) => count > 0);
}

/** Whether nothing of a cluster needs a hand: protection at work. */
export function isQuiet({ events, owner, steps }: Lane, { first, count }: Cluster) {
  const last = steps[first + count - 1];
  let at = owner ? owner[first] : first;
  while (at < events.length && events[at].step <= last && events[at].severity === "info") at += 1;
  return at === events.length || events[at].step > last;
}

/** At how many steps a lane's events have each cause, the commonest first; empty where there is one. */
export function causesOf({ events }: Lane): [string, number][] {
  const steps: Map<string, Set<number>> = new Map();
  for (const { step, cause } of events) {
    const known = steps.get(cause ?? "unknown") ?? new Set();
    steps.set(cause ?? "unknown", known.add(step));
  }
  const counts = [...steps].map(([cause, at]): [string, number] => [cause, at.size]);
  return counts.length > 1 ? counts.sort((a, b) => b[1] - a[1]) : [];
}

/** The lanes, and of them the events, that the legend lets through. @param hidden ids of kinds and of causes */
export function shownLanes(lanes: Lane[], hidden: ReadonlySet<string>) {
  return lanes.filter((lane) => !hidden.has(lane.kind.id)).map((lane) => {
    if (!hidden.size) return lane;
    const events = lane.events.filter(({ severity, cause }) =>
      !hidden.has(severityId(severity)) && !hidden.has(causeId(lane, cause))
    );
    return events.length === lane.events.length ? lane : laneWith(lane.kind, events);
  }).filter(({ steps }) => steps.length);
}

/**
 * Every non-finite loss has its mark; losses that are non-finite step after step share one event, so that the list
 * of a run that diverged stays readable.
 */
function nonfiniteLane(kind: LaneKind, { step, wallTime, value }: NonfiniteAnswer): Lane {
  const events: TbnumEvent[] = [];
  const owner = new Uint32Array(step.length);
  let start = 0;
  for (let index = 0; index < step.length; index++) {
    const ends = index + 1 === step.length || step[index + 1] !== step[index] + 1;
    owner[index] = events.length;
    if (ends) {
      events.push(nonfiniteLossEvent(step[start], step[index], wallTime[start], value[start]));
      start = index + 1;
    }
  }
  return { kind, events, steps: step, owner };
}

function nonfiniteLossEvent(first: number, last: number, wallTime: number, value: number): TbnumEvent {
  const what = Number.isNaN(value) ? "NaN" : value > 0 ? "infinite" : "minus infinity";
  const count = last - first + 1;
  return { step: first, wall_time: wallTime, elapsed: null, kind: "nonfinite_loss", severity: "warning",
    optimizer: null, cause: null, message: count === 1
      ? `The loss was ${what}.`
      : `The loss was not finite for ${
        count.toLocaleString("en-US")
      } steps in a row, from step ${first} to ${last}; it began as ${what}.`, remedy: "",
    data: count === 1 ? { loss: value } : { loss: value, first_step: first, last_step: last, steps: count } };
}

/** Width in pixels of a cluster's pill. */
export function pillWidth(count: number) {
  return 12 + 7 * String(count).length + (count >= 1000 ? 3 : 0);
}

/**
 * Joins what would overlap: every mark in [min, max] is in exactly one cluster, clusters do not overlap, and a
 * cluster of one stands exactly where its event is.
 *
 * @param positions sorted, in units of the axis
 * @param view what of the axis is in view, and its pixels
 * @param gap pixels between the middles of two marks that do not crowd
 */
export function cluster(positions: ArrayLike<number>, view: { min: number; max: number; width: number },
  gap: number = 15): Cluster[] {
  const perPixel = (view.max - view.min) / view.width;
  const toPixel = (value: number) => (value - view.min) / perPixel;
  const begin = lowerBound(positions, view.min);
  let end = lowerBound(positions, view.max);
  while (end < positions.length && positions[end] <= view.max) end = lowerBoundAfter(positions, end);

  for (let distance = gap;;) {
    const clusters: Cluster[] = [];
    let widest = 0;
    for (let first = begin; first < end;) {
      const start = toPixel(positions[first]);
      let next = lowerBound(positions, positions[first] + distance * perPixel);
      next = Math.min(end, Math.max(next, lowerBoundAfter(positions, first)));
      const count = next - first;
      const middle = (start + toPixel(positions[next - 1])) / 2;
      const room = next < end ? toPixel(positions[next]) - distance : Infinity;
      const single = positions[first] === positions[next - 1];
      clusters.push({ first, count, single, x: single ? start : Math.max(start, Math.min(middle, room)) });
      if (count > 1) widest = Math.max(widest, pillWidth(count) + 2);
      first = next;
    }
    if (widest <= distance || clusters.length <= 1) return clusters;
    distance = widest;
  }
}

/** Index of the first element greater than that at `index`. */
function lowerBoundAfter(sorted: ArrayLike<number>, index: number) {
  let low = index + 1;
  let high = sorted.length;
  const value = sorted[index];
  if (low < high && sorted[low] > value) return low;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The marks that fit on the curve: single ones, those of earlier lanes first, none within `room` pixels of another.
 *
 * @param lanes clusters of each lane, in order of precedence
 * @param width pixels
 * @param room pixels
 */
export function onCurve(lanes: Cluster[][], width: number, room: number = 11): { lane: number; cluster: Cluster }[] {
  const taken = new Uint8Array(Math.ceil(width) + 2);
  const placed: { lane: number; cluster: Cluster }[] = [];
  lanes.forEach((clusters, lane) => {
    for (const candidate of clusters) {
      if (!candidate.single) continue;
      const at = Math.max(0, Math.min(taken.length - 1, Math.round(candidate.x)));
      if (taken[at]) continue;
      taken.fill(1, Math.max(0, at - room), at + room + 1);
      placed.push({ lane, cluster: candidate });
    }
  });
  return placed;
}

/** Outlines of the shapes around (0, 0), about 12 by 12. */
export const OUTLINES: Record<string, string> = shapes;

/** Whether a shape is drawn by lines alone. */
export function isOpen({ shape }: LaneKind) {
  return openShapes.includes(shape);
}

/** The shape of a lane, to be placed by a transform. */
export function glyph(kind: LaneKind) {
  return svg("path", { class: `glyph glyph-${kind.shape}${isOpen(kind) ? " open" : ""}`, d: OUTLINES[kind.shape] });
}

/** A small picture of a lane's shape, for lists and legends. */
export function icon(kind: LaneKind) {
  return svg("svg", { class: `icon lane-${kind.id}`, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, glyph(kind));
}
