/**
 * What draws on a canvas, kept as SVG: the part of a canvas's context that the charts use, so that a picture to take
 * away is drawn by the same code as the one on the page.
 */

import { svg } from "./elements.ts";

/** What a context's state consists of. */
type Style = { fillStyle: string; strokeStyle: string; lineWidth: number; globalAlpha: number; font: string;
  textAlign: string; textBaseline: string; lineJoin: string; lineCap: string; dash: number[]; into: SVGElement };

const ANCHORS: Record<string, string> = { left: "start", start: "start", center: "middle", right: "end", end: "end" };
const BASELINES: Record<string, string> = { middle: "central", top: "text-before-edge", alphabetic: "alphabetic" };

let clips = 0; // their names are of the whole page

export class SvgContext implements Style {
  fillStyle = "#000000";
  strokeStyle = "#000000";
  lineWidth = 1;
  globalAlpha = 1;
  font = "10px sans-serif";
  textAlign = "start";
  textBaseline = "alphabetic";
  lineJoin = "miter";
  lineCap = "butt";
  dash: number[] = [];
  into: SVGElement;
  /** of the path that is drawn at */
  parts: string[] = [];
  saved: Style[] = [];
  ruler = document.createElement("canvas").getContext("2d") as CanvasRenderingContext2D;

  constructor(root: SVGElement) {
    this.into = root;
  }

  save() {
    const { fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, lineJoin, lineCap, dash,
      into } = this;
    this.saved.push({ fillStyle, strokeStyle, lineWidth, globalAlpha, font, textAlign, textBaseline, lineJoin, lineCap,
      dash, into });
  }

  restore() {
    const before = this.saved.pop();
    if (before) Object.assign(this, before);
  }

  // ---- Paths

  beginPath() {
    this.parts = [];
  }

  moveTo(x: number, y: number) {
    this.parts.push(`M${rounded(x)} ${rounded(y)}`);
  }

  lineTo(x: number, y: number) {
    this.parts.push(`${this.parts.length ? "L" : "M"}${rounded(x)} ${rounded(y)}`);
  }

  rect(x: number, y: number, width: number, height: number) {
    this.parts.push(`M${rounded(x)} ${rounded(y)}h${rounded(width)}v${rounded(height)}h${rounded(-width)}Z`);
  }

  closePath() {
    this.parts.push("Z");
  }

  /** @param d as SVG has it */
  outline(d: string) {
    this.parts = [d];
  }

  fill() {
    this.#add(svg("path", { d: this.parts.join(""), fill: this.fillStyle }));
  }

  stroke() {
    if (this.parts.length)
      this.#add(svg("path", { d: this.parts.join(""), fill: "none", ...this.#stroke, "stroke-linejoin": this.lineJoin,
        "stroke-linecap": this.lineCap }));
  }

  /** What is drawn from here on, until `restore`, is seen within the path alone. */
  clip() {
    const id = `tbnum-clip-${clips++}`;
    const inside = svg("g", { "clip-path": `url(#${id})` });
    this.into.append(svg("clipPath", { id }, svg("path", { d: this.parts.join("") })), inside);
    this.into = inside;
  }

  // ---- Rectangles and text

  fillRect(x: number, y: number, width: number, height: number) {
    this.#add(svg("rect", { x: rounded(x), y: rounded(y), width: rounded(width), height: rounded(height),
      fill: this.fillStyle }));
  }

  clearRect() {}

  fillText(text: string, x: number, y: number) {
    this.#add(this.#text(text, x, y, { fill: this.fillStyle }));
  }

  strokeText(text: string, x: number, y: number) {
    this.#add(this.#text(text, x, y, { fill: "none", ...this.#stroke, "stroke-linejoin": "round" }));
  }

  measureText(text: string) {
    this.ruler.font = this.font;
    return this.ruler.measureText(text);
  }

  setLineDash(dash: number[]) {
    this.dash = dash;
  }

  // ---- Places

  translate(x: number, y: number) {
    this.#within(`translate(${rounded(x)} ${rounded(y)})`);
  }

  scale(x: number, y: number) {
    this.#within(`scale(${x} ${y})`);
  }

  setTransform() {}

  #within(transform: string) {
    const group = svg("g", { transform });
    this.into.append(group);
    this.into = group;
  }

  get #stroke() {
    return { stroke: this.strokeStyle, "stroke-width": rounded(this.lineWidth),
      ...(this.dash.length ? { "stroke-dasharray": this.dash.map(rounded).join(" ") } : {}) };
  }

  #text(text: string, x: number, y: number, look: Record<string, unknown>) {
    const [, weight, size, family] = /^(?:(\d+) )?([\d.]+)px (.*)$/.exec(this.font) ?? [];
    return svg("text", { x: rounded(x), y: rounded(y), "font-size": size, "font-weight": weight ?? "400",
      "font-family": family, "text-anchor": ANCHORS[this.textAlign], "dominant-baseline": BASELINES[this.textBaseline],
      ...look }, text);
  }

  #add(made: SVGElement) {
    if (this.globalAlpha < 1) made.setAttribute("opacity", String(rounded(this.globalAlpha)));
    this.into.append(made);
  }
}

function rounded(value: number) {
  return Math.round(value * 100) / 100;
}
