/** The panel's place in TensorBoard's address: run, zoom, views, what is open. Pure: `host.js` reads and writes the address. */

/** @import { Place } from "./types.js" */

export const PREFIX = "p.tbnum.";
const TAB = "tbnum";
const DOCKS = ["heatmap", "histogram", "findings", "values", "runs"];

/** @returns {Place} */
export function nowhere() {
  return { run: null, zoom: null, axis: "step", event: null, views: null, dock: null, pin: null, column: null, tensor: null, over: [], grouped: false };
}

/** @param {string} hash of TensorBoard's page, `#tbnum&p.tbnum.run=gpt` @returns {Place} */
export function parsePlace(hash) {
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
      case "tensors":
        place.dock = /** @type {Place["dock"]} */ (DOCKS.includes(value) ? value : null);
        break;
      case "column":
        place.column = value;
        break;
      case "tensor":
        place.tensor = value;
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

/** The hash with the place in it; what others wrote there stays. @param {string} hash @param {Place} place */
export function formatPlace(hash, place) {
  const [head, ...others] = hash.replace(/^#/, "").split("&").filter((part) => !part.startsWith(PREFIX));
  const parts = [head || TAB, ...others];
  const put = (/** @type {string} */ name, /** @type {string} */ value) => parts.push(`${PREFIX}${name}=${encodeURIComponent(value)}`);
  if (place.run !== null) put("run", place.run);
  if (place.zoom) put("steps", `${place.zoom[0]}-${place.zoom[1]}`);
  if (place.axis !== "step") put("x", place.axis);
  for (const run of place.over) put("over", run);
  if (place.grouped) put("seeds", "grouped");
  if (place.views) put("views", place.views);
  if (place.pin !== null) put("pin", String(place.pin));
  if (place.dock) put("tensors", place.dock);
  if (place.column) put("column", place.column);
  if (place.tensor) put("tensor", place.tensor);
  if (place.event) put("event", `${place.event.step}.${place.event.kind}`);
  return `#${parts.join("&")}`;
}

/** Whether the address is the panel's to write: another tab of TensorBoard keeps its own. @param {string} hash */
export function isOurs(hash) {
  const head = hash.replace(/^#/, "").split("&")[0];
  return head === "" || head === TAB;
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
