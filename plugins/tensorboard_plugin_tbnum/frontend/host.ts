/**
 * The page around the panel: TensorBoard's address, its dark mode, its runs and their filter, its reload button, and
 * the
 * browser's memory.
 *
 * The panel lives in a frame of TensorBoard's page. Where that page cannot be reached (a notebook on another
 * origin) each of these falls back or does nothing; the panel works all the same.
 */

import { PREFIX, formatPlace, isOurs, parsePlace } from "./place.ts";

import type { Place } from "./place.ts";

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

export function writePlace(place: Place) {
  try {
    const { location, history } = page();
    if (!isOurs(location.hash)) return;
    const hash = formatPlace(location.hash, place);
    if (hash === location.hash) return;
    // Back leads to the run before; what else changes of a place is no step of the way.
    const before = parsePlace(location.hash).run;
    if (before !== null && before !== place.run) history.pushState(history.state, "", hash);
    else history.replaceState(history.state, "", hash);
  } catch {
    // Browsers limit how often a page may do this; the next change writes again.
  }
}

/** The address that leads to a place from anywhere. */
export function addressOf(place: Place) {
  const { location } = page();
  return location.href.replace(/#.*$/, "") + formatPlace(location.hash, place);
}

/** @param changed called when a person edits the address or goes back */
export function onPlace(changed: (place: Place) => void) {
  page().addEventListener("hashchange", ({ newURL }) => {
    const { hash } = new URL(newURL); // the place before may have been written into the address since
    if (isOurs(hash) && hash.includes(PREFIX)) changed(parsePlace(hash));
  });
}

/** Keeps the class `dark` on the root in step with TensorBoard. */
export function followTheme(changed: (dark: boolean) => void) {
  const root = document.documentElement;
  let last: boolean | null = null;
  const set = (dark: boolean) => {
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

/** to TensorBoard */
let host: MessagePort | null = null;

let hearRuns: (runs: string[]) => void = () => {};

/** @param heard called with the runs that TensorBoard knows, in its order, now and when they change */
export function onHostRuns(heard: (runs: string[]) => void) {
  hearRuns = heard;
  host?.postMessage(
    JSON.stringify({ type: "experimental.GetRuns", id: 0, payload: null, error: null, isReply: false }),
  );
}

/**
 * What TensorBoard's own pages filter runs by: in time series an expression in its address, in the others one
 * in the hash, and boxes. What cannot be read is no filter.
 */
export function parseFilter(search: string, hash: string): { text: string; lets: (run: string) => boolean } {
  const inHash = new URLSearchParams(hash.replace(/^#/, ""));
  const texts = [new URLSearchParams(search).get("runFilter"), inHash.get("regexInput")].filter((text) => text);
  let boxes: Record<string, boolean> = {};
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

/** @param reload called when TensorBoard's reload button or its automatic reload fires */
export function onReload(reload: () => void) {
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

/** A setting that outlives the page, where the browser allows it. */
export function remembered(name: string, fallback: string) {
  try {
    return localStorage.getItem(`tbnum.${name}`) ?? fallback;
  } catch {
    return fallback;
  }
}

export function remember(name: string, value: string) {
  try {
    localStorage.setItem(`tbnum.${name}`, value);
  } catch {
    // Frames on another site have no storage.
  }
}

/** Whether anybody can see the panel: TensorBoard gives a tab that is not open no height. */
export function isSeen() {
  return document.visibilityState === "visible" && innerHeight > 0 && innerWidth > 0;
}
