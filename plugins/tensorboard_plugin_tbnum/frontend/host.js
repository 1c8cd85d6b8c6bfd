/**
 * The page around the panel: TensorBoard's address, its dark mode, its reload button, the browser's memory; and the
 * making of elements in ours.
 *
 * The panel lives in a frame of TensorBoard's page. Where that page cannot be reached (a notebook on another
 * origin) each of these falls back or does nothing; the panel works all the same.
 */

/** @import { Attributes, Place } from "./types.js" */

const PREFIX = "p.tbnum.";
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

/** TensorBoard's window, or the panel's own where it stands alone or may not look. */
function page() {
  try {
    void window.parent.location.hash; // throws on another origin
    return window.parent;
  } catch {
    return window;
  }
}

export function readPlace() {
  return parsePlace(page().location.hash);
}

/** @param {Place} place */
export function writePlace(place) {
  try {
    const { location, history } = page();
    if (!isOurs(location.hash)) return;
    const hash = formatPlace(location.hash, place);
    if (hash !== location.hash) history.replaceState(history.state, "", hash);
  } catch {
    // Browsers limit how often a page may do this; the next change writes again.
  }
}

/** The address that leads to a place from anywhere. @param {Place} place */
export function addressOf(place) {
  const { location } = page();
  return location.href.replace(/#.*$/, "") + formatPlace(location.hash, place);
}

/** @param {string} text @returns {Promise<boolean>} whether the clipboard has it */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without https the clipboard is closed; a selection can still be copied.
    const field = element("textarea", { class: "visually-hidden", readonly: true });
    field.value = text;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    return copied;
  }
}

/** Hands a text or a picture to the browser as a file. @param {Blob} content @param {string} name */
export function download(content, name) {
  const href = URL.createObjectURL(content);
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** @param {(place: Place) => void} changed called when a person edits the address or goes back */
export function onPlace(changed) {
  page().addEventListener("hashchange", () => {
    const { hash } = page().location;
    if (isOurs(hash) && hash.includes(PREFIX)) changed(parsePlace(hash));
  });
}

/** Keeps the class `dark` on the root in step with TensorBoard. @param {(dark: boolean) => void} changed */
export function followTheme(changed) {
  const root = document.documentElement;
  /** @type {boolean | null} */
  let last = null;
  const set = (/** @type {boolean} */ dark) => {
    if (dark === last) return;
    last = dark;
    root.classList.toggle("dark", dark);
    changed(dark);
  };
  try {
    const { body } = window.parent.document;
    if (window.parent !== window) {
      const look = () => set(body.classList.contains("dark-mode"));
      new MutationObserver(look).observe(body, { attributes: true, attributeFilter: ["class"] });
      look();
      return;
    }
  } catch {
    // Another origin: the system's preference decides.
  }
  const query = matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", () => set(query.matches));
  set(query.matches);
}

/** @type {MessagePort | null} to TensorBoard */
let host = null;
/** @type {(runs: string[]) => void} */
let hearRuns = () => {};

/** @param {(runs: string[]) => void} heard called with the runs that TensorBoard knows, in its order, now and when they change */
export function onHostRuns(heard) {
  hearRuns = heard;
  host?.postMessage(JSON.stringify({ type: "experimental.GetRuns", id: 0, payload: null, error: null, isReply: false }));
}

/**
 * What TensorBoard's own pages filter runs by: in time series an expression in its address, in the others one
 * in the hash, and boxes. What cannot be read is no filter.
 * @param {string} search @param {string} hash @returns {{text: string, lets: (run: string) => boolean}}
 */
export function parseFilter(search, hash) {
  const inHash = new URLSearchParams(hash.replace(/^#/, ""));
  const texts = [new URLSearchParams(search).get("runFilter"), inHash.get("regexInput")].filter((text) => text);
  /** @type {Record<string, boolean>} */
  let boxes = {};
  const tests = texts.flatMap((text) => {
    try {
      return [new RegExp(String(text), "i")];
    } catch {
      return [];
    }
  });
  try {
    boxes = JSON.parse(atob(inHash.get("runSelectionState") ?? "e30="));
  } catch {
    // Not as TensorBoard writes it.
  }
  const off = Object.values(boxes).filter((on) => on === false).length;
  const said = [...tests.map(({ source }) => source), ...(off ? [`${off} unticked`] : [])];
  return { text: said.join(", "), lets: (run) => boxes[run] !== false && tests.every((test) => test.test(run)) };
}

export function hostFilter() {
  const { location } = page();
  return parseFilter(location.search, location.hash);
}

/** @param {() => void} reload called when TensorBoard's reload button or its automatic reload fires */
export function onReload(reload) {
  if (window.parent === window) return;
  const { port1, port2 } = new MessageChannel();
  host = port1;
  port1.addEventListener("message", (message) => {
    try {
      const { type, id, payload, isReply } = JSON.parse(message.data);
      if (Array.isArray(payload)) hearRuns(payload.map(String)); // the answer to GetRuns, or RunsChanged
      if (isReply) return;
      port1.postMessage(JSON.stringify({ type, id, payload: null, error: null, isReply: true }));
      if (type === "experimental.DataReloaded") reload();
    } catch {
      // Not a message of TensorBoard's.
    }
  });
  port1.start();
  window.parent.postMessage("experimental.bootstrap", "*", [port2]);
}

/** A setting that outlives the page, where the browser allows it. @param {string} name @param {string} fallback */
export function remembered(name, fallback) {
  try {
    return localStorage.getItem(`tbnum.${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

/** @param {string} name @param {string} value */
export function remember(name, value) {
  try {
    localStorage.setItem(`tbnum.${name}`, value);
  } catch {
    // Frames on another site have no storage.
  }
}

/**
 * An element with its class, or with attributes and handlers (`onclick`), and its content. A text becomes text.
 *
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {string | Attributes} [attributes] @param {...(string | Node)} content
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, attributes = {}, ...content) {
  return filled(document.createElement(tag), typeof attributes === "string" ? { class: attributes } : attributes, content);
}

/**
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag @param {Record<string, any>} [attributes] @param {...(string | Node)} content
 * @returns {SVGElementTagNameMap[T]}
 */
export function svg(tag, attributes = {}, ...content) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, content);
}

/** @template {Element} E @param {E} made @param {Record<string, any>} attributes @param {(string | Node)[]} content @returns {E} */
function filled(made, attributes, content) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...content.filter((part) => part !== ""));
  return made;
}

/** A button that copies, and says for a moment whether it could. @param {string} label @param {string} title @param {() => string | Promise<string>} text */
export function copyButton(label, title, text) {
  const made = button(label, title, async () => {
    made.textContent = (await copyText(await text())) ? "Copied" : "Not allowed here";
    setTimeout(() => { made.textContent = label; }, 1600);
  });
  return made;
}

/** @param {string} label @param {string} title @param {() => void} press */
export function button(label, title, press) {
  return element("button", { class: "small", type: "button", title, onclick: press }, label);
}

/** A button with a sign in place of words. @param {string} sign @param {string} label @param {() => void} press @param {Attributes} [more] */
export function iconButton(sign, label, press, more = {}) {
  return element("button", { class: "icon-button", type: "button", title: label, "aria-label": label, onclick: press, ...more }, sign);
}

/** What opens below the charts. @param {string} label @param {(string | Node)[]} head @param {HTMLElement} close @param {...Node} content */
export function dock(label, head, close, ...content) {
  return element("section", { class: "dock", "aria-label": label }, element("header", "dock-head", ...head, close), ...content);
}

/** A part of a dock that scrolls, by keys too. @param {string} label @param {...Node} content */
export function scroller(label, ...content) {
  return element("div", { class: "table-scroller", tabindex: 0, role: "region", "aria-label": label }, ...content);
}

/** A table of which the first cell of each row is its head. @param {string} look class @param {(string | Node)[]} heads @param {(string | Node)[][]} rows @param {string} [caption] */
export function table(look, heads, rows, caption = "") {
  return element(
    "table", look, ...(caption ? [element("caption", {}, caption)] : []), headRow(heads.map((head) => element("th", { scope: "col" }, head))),
    element("tbody", {}, ...rows.map(([first, ...others]) => element("tr", {}, element("th", { scope: "row" }, first), ...others.map((cell) => element("td", {}, cell))))),
  );
}

/** @param {HTMLElement[]} heads */
export function headRow(heads) {
  return element("thead", {}, element("tr", {}, ...heads));
}

/** Names and values. @param {[string, string][]} rows */
export function factTable(rows) {
  return element("dl", "facts", ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** Puts a card beside a point of the window and within it. @param {HTMLElement} card @param {number} x @param {number} top */
export function placeBeside(card, x, top) {
  const { offsetWidth: width, offsetHeight: height } = card;
  const left = x + 18 + width > innerWidth - 8 ? x - 18 - width : x + 18;
  card.style.transform = `translate(${Math.max(8, Math.round(left))}px, ${Math.max(8, Math.round(Math.min(innerHeight - height - 8, top)))}px)`;
}

export const FONT = 'Roboto, system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif';

/** What a variable of the style sheet holds now, by its name. @returns {(name: string) => string} */
export function styled() {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
}

/** A canvas made so large in pixels of the page, empty and ready to be drawn on. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height */
export function sized(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}
