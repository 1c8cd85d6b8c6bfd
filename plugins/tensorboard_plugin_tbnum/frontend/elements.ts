/**
 * The making of elements: buttons, tables, docks, canvases. Every text from outside is set as text, never as markup.
 */

/** Attributes of an element, and what it does on events. */
export type Attributes = {
  [name: string]: any;
  onclick?: (event: MouseEvent) => void;
  onkeydown?: (event: KeyboardEvent) => void;
  onpointerdown?: (event: PointerEvent) => void;
  onpointermove?: (event: PointerEvent) => void;
};

/**
 * An element with its class, or with attributes and handlers (`onclick`), and its content. A text becomes text.
 */
export function element<T extends keyof HTMLElementTagNameMap>(tag: T, attributes: string | Attributes = {},
  ...content: (string | Node)[]): HTMLElementTagNameMap[T] {
  return filled(document.createElement(tag), typeof attributes === "string" ? { class: attributes } : attributes,
    content);
}

export function svg<T extends keyof SVGElementTagNameMap>(tag: T, attributes: Record<string, any> = {},
  ...content: (string | Node)[]): SVGElementTagNameMap[T] {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, content);
}

function filled<E extends Element>(made: E, attributes: Record<string, any>, content: (string | Node)[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...content.filter((part) => part !== ""));
  return made;
}

export function button(label: string, title: string, press: () => void) {
  return element("button", { class: "small", type: "button", title, onclick: press }, label);
}

/** A button with a sign in place of words. */
export function iconButton(sign: string, label: string, press: () => void, more: Attributes = {}) {
  return element("button", { class: "icon-button", type: "button", title: label, "aria-label": label, onclick: press,
    ...more }, sign);
}

/** @returns whether the clipboard has it */
async function copyText(text: string): Promise<boolean> {
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

/** A button that copies, and says for a moment whether it could. */
export function copyButton(label: string, title: string, text: () => string | Promise<string>) {
  const made = button(label, title, async () => {
    made.textContent = (await copyText(await text())) ? "Copied" : "Not allowed here";
    setTimeout(() => {
      made.textContent = label;
    }, 1600);
  });
  return made;
}

/** Hands a text or a picture to the browser as a file. */
export function download(content: Blob, name: string) {
  const href = URL.createObjectURL(content);
  element("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

/** Makes a picture of the charts. */
export type Figure = (form: "svg" | "png") => Promise<Blob>;

/** Buttons that save a picture. @param done what follows a press */
export function figureButtons(figure: Figure, name: () => string, done = () => {}) {
  return (["svg", "png"] as const).map((form) =>
    button(`Figure (${form.toUpperCase()})`,
      form === "svg" ? "The charts as they are now, as lines" : "The charts as they are now, at twice their size",
      async () => {
        done();
        download(await figure(form), `${name().replaceAll(/[^\w.-]+/g, "-")}.${form}`);
      })
  );
}

/** What opens below the charts. */
export function dock(label: string, head: (string | Node)[], close: HTMLElement, ...content: Node[]) {
  return element("section", { class: "dock", "aria-label": label }, element("header", "dock-head", ...head, close),
    ...content);
}

/** A part of a dock that scrolls, by keys too. */
export function scroller(label: string, ...content: Node[]) {
  return element("div", { class: "table-scroller", tabindex: 0, role: "region", "aria-label": label }, ...content);
}

export function headRow(heads: HTMLElement[]) {
  return element("thead", {}, element("tr", {}, ...heads));
}

/** A table of which the first cell of each row is its head. @param look class */
export function table(look: string, heads: (string | Node)[], rows: (string | Node)[][], caption: string = "") {
  return element(
    "table",
    look,
    ...(caption ? [element("caption", {}, caption)] : []),
    headRow(heads.map((head) => element("th", { scope: "col" }, head))),
    element("tbody", {},
      ...rows.map(([first, ...others]) =>
        element("tr", {}, element("th", { scope: "row" }, first), ...others.map((cell) => element("td", {}, cell)))
      )),
  );
}

/** Names and values. */
export function factTable(rows: [string, string][]) {
  return element("dl", "facts",
    ...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

const NAME_END = 16; // characters that are always seen

/** A name that is cut before its end, which is what distinguishes it from others, where room is short. */
export function longName(text: string, name: string = "") {
  if (text.length <= NAME_END) return element("span", `long-name ${name}`, text);
  return element("span", `long-name ${name}`, element("span", "name-head", text.slice(0, -NAME_END)),
    element("span", "name-tail", text.slice(-NAME_END)));
}

/** Puts a card beside a point of the window and within it. */
export function placeBeside(card: HTMLElement, x: number, top: number) {
  const { offsetWidth: width, offsetHeight: height } = card;
  const left = x + 18 + width > innerWidth - 8 ? x - 18 - width : x + 18;
  card.style.transform = `translate(${Math.max(8, Math.round(left))}px, ${
    Math.max(8, Math.round(Math.min(innerHeight - height - 8, top)))
  }px)`;
}

export const FONT = 'Roboto, system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif';

/** What a variable of the style sheet holds now, by its name. */
export function styled(): (name: string) => string {
  const style = getComputedStyle(document.documentElement);
  return (name) => style.getPropertyValue(name).trim();
}

/** A canvas made so large in pixels of the page, empty and ready to be drawn on. */
export function sized(canvas: HTMLCanvasElement, width: number, height: number) {
  const ratio = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  return (canvas.getContext("2d") as CanvasRenderingContext2D);
}
