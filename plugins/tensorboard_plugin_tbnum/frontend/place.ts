/**
 * The panel's place in TensorBoard's address: run, zoom, views, what is open. Pure: `host.ts` reads and writes the
 * address.
 */

import type { Against } from "./baseline.ts";
import type { Alignment } from "./xaxis.ts";

/** What an address says of the panel. */
export type Place = {
  run: string | null;
  /** steps, inclusive; null: the whole run */
  zoom: [number, number] | null;
  axis: Alignment;
  /** runs beside `run` in the charts */
  over: string[];
  /** the run that others are held against, and how */
  baseline: string | null;
  against: Against;
  /** whether runs of one setting are drawn as their mean */
  grouped: boolean;
  /** the selected one */
  event: { step: number; kind: string; optimizer?: string | null } | null;
  /** as `formatViews` writes them; null: as this browser remembers them */
  views: string | null;
  /** null: as this browser remembers it */
  smoothing: number | null;
  /** index of the optimizer that is shown */
  optimizer: number;
  /** kinds, causes and severities of events that are turned off, and words that the listed ones have */
  off: string[];
  find: string;
  /** what of the tensors is open below the charts */
  dock: (typeof DOCKS)[number] | null;
  /** the step that what led to it is shown of */
  led: number | null;
  /** the step that others are held against */
  pin: number | null;
  /** what the heat map shows */
  column: string | null;
  /** the chosen tensor */
  tensor: string | null;
};

export const PREFIX = "p.tbnum.";
const TAB = "tbnum";
const DOCKS = ["heatmap", "histogram", "findings", "values", "runs", "led"] as const;

export function nowhere(): Place {
  return { run: null, zoom: null, axis: "step", event: null, views: null, dock: null, pin: null, column: null,
    tensor: null, over: [], grouped: false, smoothing: null, optimizer: 0, off: [], find: "", led: null, baseline: null,
    against: "off" };
}

/** A part of an address: its name, what it makes of a place, and its values in one; what is not there is none. */
type Part = [name: string, read: (value: string, place: Place) => Partial<Place>, write: (place: Place) => unknown[]];

const onOwn = (name: "run" | "baseline" | "views" | "find" | "column" | "tensor", as: string = name): Part => [as,
  (value) => ({ [name]: value }), (place) => [place[name] || null]];
const number = (name: "pin" | "led"): Part => [name,
  (value) => (/^\d{1,15}$/.test(value) ? { [name]: Number(value) } : {}), (place) => [place[name]]];
const several = (name: "over" | "off"): Part => [name,
  (value, place) => ({ [name]: [...new Set([...place[name], value])] }), (place) => place[name]];

/** In the order in which they are written. */
const PARTS: Part[] = [
  onOwn("run"),
  ["steps", (value) => {
    const [, from, to] = /^(\d+)-(\d+)$/.exec(value) ?? [];
    return Number(to) > Number(from) ? { zoom: [Number(from), Number(to)] } : {};
  }, ({ zoom }) => [zoom?.join("-")]],
  ["x", (value) => ({ axis: value === "time" || value === "updates" ? value : "step" }),
    ({ axis }) => [axis === "step" ? null : axis]],
  several("over"),
  onOwn("baseline", "base"),
  ["against", (value) => ({ against: value === "difference" || value === "ratio" ? value : "off" }),
    ({ against }) => [against === "off" ? null : against]],
  ["seeds", (value) => ({ grouped: value === "grouped" }), ({ grouped }) => [grouped ? "grouped" : null]],
  onOwn("views"),
  ["smoothing", (value) => (/^0(\.\d+)?$/.test(value) ? { smoothing: Number(value) } : {}),
    ({ smoothing }) => [smoothing]],
  ["optimizer", (value) => (/^\d{1,3}$/.test(value) ? { optimizer: Number(value) } : {}),
    ({ optimizer }) => [optimizer || null]],
  several("off"),
  onOwn("find"),
  number("pin"),
  ["tensors", (value) => ({ dock: DOCKS.find((dock) => dock === value) ?? null }), ({ dock }) => [dock]],
  ["led", number("led")[1], ({ dock, led }) => [dock === "led" ? led : null]],
  onOwn("column"),
  onOwn("tensor"),
  ["event", (value) => {
    const [, step, kind] = /^(\d+)\.(\w+)$/.exec(value) ?? [];
    return step === undefined ? {} : { event: { step: Number(step), kind } };
  }, ({ event }) => [event && `${event.step}.${event.kind}`]],
];

/** @param hash of TensorBoard's page, `#tbnum&p.tbnum.run=gpt` */
export function parsePlace(hash: string): Place {
  const place = nowhere();
  for (const text of hash.replace(/^#/, "").split("&")) {
    const equals = text.indexOf("=");
    const part = PARTS.find(([name]) => text.slice(0, Math.max(0, equals)) === PREFIX + name);
    if (part) Object.assign(place, part[1](decoded(text.slice(equals + 1)), place));
  }
  return place;
}

/** The hash with the place in it; what others wrote there stays. */
export function formatPlace(hash: string, place: Place) {
  const [head, ...others] = hash.replace(/^#/, "").split("&").filter((part) => !part.startsWith(PREFIX));
  const own = PARTS.flatMap(([name, _, write]) =>
    write(place).filter((value) => value !== null && value !== undefined)
      .map((value) => `${PREFIX}${name}=${encodeURIComponent(String(value))}`)
  );
  return `#${[head || TAB, ...others, ...own].join("&")}`;
}

/** Whether the address is the panel's to write: another tab of TensorBoard keeps its own. */
export function isOurs(hash: string) {
  const head = hash.replace(/^#/, "").split("&")[0];
  return head === "" || head === TAB;
}

function decoded(text: string) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
