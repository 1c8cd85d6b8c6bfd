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
  dock: "heatmap" | "histogram" | "findings" | "values" | "runs" | "led" | null;
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
const DOCKS = ["heatmap", "histogram", "findings", "values", "runs", "led"];

export function nowhere(): Place {
  return { run: null, zoom: null, axis: "step", event: null, views: null, dock: null, pin: null, column: null,
    tensor: null, over: [], grouped: false, smoothing: null, optimizer: 0, off: [], find: "", led: null, baseline: null,
    against: "off" };
}

/** @param hash of TensorBoard's page, `#tbnum&p.tbnum.run=gpt` */
export function parsePlace(hash: string): Place {
  const place = nowhere();
  for (const part of hash.replace(/^#/, "").split("&")) {
    const equals = part.indexOf("=");
    if (equals < 0 || !part.startsWith(PREFIX)) continue;
    const value = decoded(part.slice(equals + 1));
    switch (part.slice(PREFIX.length, equals)) {
      case "run":
        place.run = value;
        break;
      case "steps": {
        const [, from, to] = /^(\d+)-(\d+)$/.exec(value) ?? [];
        if (from !== undefined && Number(to) > Number(from)) place.zoom = [Number(from), Number(to)];
        break;
      }
      case "x":
        place.axis = value === "time" || value === "updates" ? value : "step";
        break;
      case "over":
        if (!place.over.includes(value)) place.over.push(value);
        break;
      case "seeds":
        place.grouped = value === "grouped";
        break;
      case "views":
        place.views = value;
        break;
      case "pin":
        if (/^\d+$/.test(value)) place.pin = Number(value);
        break;
      case "base":
        place.baseline = value;
        break;
      case "against":
        place.against = value === "difference" || value === "ratio" ? value : "off";
        break;
      case "led":
        if (/^\d+$/.test(value)) place.led = Number(value);
        break;
      case "tensors":
        place.dock = (DOCKS.includes(value) ? value : null) as Place["dock"];
        break;
      case "column":
        place.column = value;
        break;
      case "tensor":
        place.tensor = value;
        break;
      case "smoothing":
        if (/^0(\.\d+)?$/.test(value)) place.smoothing = Number(value);
        break;
      case "optimizer":
        if (/^\d{1,3}$/.test(value)) place.optimizer = Number(value);
        break;
      case "off":
        if (!place.off.includes(value)) place.off.push(value);
        break;
      case "find":
        place.find = value;
        break;
      case "event": {
        const [, step, kind] = /^(\d+)\.(\w+)$/.exec(value) ?? [];
        if (step !== undefined) place.event = { step: Number(step), kind };
        break;
      }
    }
  }
  return place;
}

/** The hash with the place in it; what others wrote there stays. */
export function formatPlace(hash: string, place: Place) {
  const [head, ...others] = hash.replace(/^#/, "").split("&").filter((part) => !part.startsWith(PREFIX));
  const parts = [head || TAB, ...others];
  const put = (name: string, value: string) => parts.push(`${PREFIX}${name}=${encodeURIComponent(value)}`);
  if (place.run !== null) put("run", place.run);
  if (place.zoom) put("steps", `${place.zoom[0]}-${place.zoom[1]}`);
  if (place.axis !== "step") put("x", place.axis);
  for (const run of place.over) put("over", run);
  if (place.baseline !== null) put("base", place.baseline);
  if (place.against !== "off") put("against", place.against);
  if (place.grouped) put("seeds", "grouped");
  if (place.views) put("views", place.views);
  if (place.smoothing !== null) put("smoothing", String(place.smoothing));
  if (place.optimizer) put("optimizer", String(place.optimizer));
  for (const id of place.off) put("off", id);
  if (place.find) put("find", place.find);
  if (place.pin !== null) put("pin", String(place.pin));
  if (place.dock) put("tensors", place.dock);
  if (place.dock === "led" && place.led !== null) put("led", String(place.led));
  if (place.column) put("column", place.column);
  if (place.tensor) put("tensor", place.tensor);
  if (place.event) put("event", `${place.event.step}.${place.event.kind}`);
  return `#${parts.join("&")}`;
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
