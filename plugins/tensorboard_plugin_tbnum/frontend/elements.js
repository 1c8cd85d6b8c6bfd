/** The making of elements: buttons, tables, docks, canvases. Every text from outside is set as text, never as markup. */

/** @import { Attributes } from "./types.js" */

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

/** @param {string} label @param {string} title @param {() => void} press */
export function button(label, title, press) {
  return element("button", { class: "small", type: "button", title, onclick: press }, label);
}

/** A button with a sign in place of words. @param {string} sign @param {string} label @param {() => void} press @param {Attributes} [more] */
export function iconButton(sign, label, press, more = {}) {
  return element("button", { class: "icon-button", type: "button", title: label, "aria-label": label, onclick: press, ...more }, sign);
}

/** @param {string} text @returns {Promise<boolean>} whether the clipboard has it */
async function copyText(text) {
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

/** A button that copies, and says for a moment whether it could. @param {string} label @param {string} title @param {() => string | Promise<string>} text */
export function copyButton(label, title, text) {
  const made = button(label, title, async () => {
    made.textContent = (await copyText(await text())) ? "Copied" : "Not allowed here";
    setTimeout(() => { made.textContent = label; }, 1600);
  });
  return made;
}

/** Hands a text or a picture to the browser as a file. @param {Blob} content @param {string} name */
export function download(content, name) {
  const href = URL.createObjectURL(content);
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** What opens below the charts. @param {string} label @param {(string | Node)[]} head @param {HTMLElement} close @param {...Node} content */
export function dock(label, head, close, ...content) {
  return element("section", { class: "dock", "aria-label": label }, element("header", "dock-head", ...head, close), ...content);
}

/** A part of a dock that scrolls, by keys too. @param {string} label @param {...Node} content */
export function scroller(label, ...content) {
  return element("div", { class: "table-scroller", tabindex: 0, role: "region", "aria-label": label }, ...content);
}

/** @param {HTMLElement[]} heads */
export function headRow(heads) {
  return element("thead", {}, element("tr", {}, ...heads));
}

/** A table of which the first cell of each row is its head. @param {string} look class @param {(string | Node)[]} heads @param {(string | Node)[][]} rows @param {string} [caption] */
export function table(look, heads, rows, caption = "") {
  return element(
    "table", look, ...(caption ? [element("caption", {}, caption)] : []), headRow(heads.map((head) => element("th", { scope: "col" }, head))),
    element("tbody", {}, ...rows.map(([first, ...others]) => element("tr", {}, element("th", { scope: "row" }, first), ...others.map((cell) => element("td", {}, cell))))),
  );
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
