/**
 * Other runs beside the current one, in the same charts: thinner lines in TensorBoard's colours, runs of one setting as
 * their mean with its range, their skips as lanes of ticks, and a legend. Loaded when a second run is chosen.
 *
 * The current run is drawn by `charts.js`, and its steps are the x axis; the server reduces the others by the same x.
 */

import { ONTO_AXIS, smoothed } from "./charts.js";
import { counted, formatAligned, formatCount, formatScale } from "./format.js";
import { element, iconButton, svg } from "./host.js";
import { lowerBound } from "./marks.js";

/** @import { Api } from "./api.js" */
/** @import { ChartSpec, OverlayCallbacks, OverlayLine, OverlayScene, Plot, Scale, Values } from "./types.js" */

/** TensorBoard's own, of its time series: light and dark. */
const HOST_COLORS = [
  ["#425066", "#8e98a3"], ["#12b5cb", "#12b5cb"], ["#e52592", "#e52592"], ["#f9ab00", "#f9ab00"],
  ["#9334e6", "#9334e6"], ["#7cb342", "#7cb342"], ["#e8710a", "#e8710a"],
];
/** For runs that TensorBoard does not know: none is like one of its own. */
const OWN_COLORS = [["#0b57d0", "#8ab4f8"], ["#8d5524", "#d7a876"], ["#00695c", "#5fd6c0"], ["#a61c1c", "#ff8a80"], ["#6b7000", "#d8d95b"]];
const DASHES = [[], [7, 3], [2, 2.5], [9, 3, 2, 3]];
const MOST_NUMBERED = 10; // lines in a chart; of more the numbers would not stand where their lines end
const NUMBER_GAP = 11; // pixels from a line's end, so that a mark there leaves the number free
const FONT = "600 10px Roboto, system-ui, sans-serif";

/** Colours by run, as TensorBoard gives them out: in the order in which it came to know of its runs. */
export class RunColors {
  constructor() {
    /** @type {Map<string, number>} */
    this.host = new Map();
    /** @type {Map<string, number>} */
    this.own = new Map();
  }

  /** @param {string[]} runs all that TensorBoard knows, in its order */
  know(runs) {
    for (const run of runs) if (!this.host.has(run)) this.host.set(run, this.host.size);
    this.own.clear();
  }

  /** @param {string} run @returns {string[]} light, dark */
  of(run) {
    const at = this.host.get(run);
    if (at !== undefined) return HOST_COLORS[at % HOST_COLORS.length];
    if (!this.own.has(run)) this.own.set(run, this.own.size);
    return OWN_COLORS[/** @type {number} */ (this.own.get(run)) % OWN_COLORS.length];
  }
}

/**
 * What is drawn beside the current run: runs one by one, or those of one setting together. The current one is part of
 * its setting's line, and is drawn for itself all the same.
 * @param {string} current @param {string[]} others @param {(run: string) => string | null | undefined} settingOf @param {boolean} grouped
 * @returns {string[][]}
 */
export function linesOf(current, others, settingOf, grouped) {
  const chosen = [...new Set([current, ...others])];
  /** @type {Map<string, string[]>} */
  const groups = new Map();
  for (const run of chosen) {
    const key = (grouped && settingOf(run)) || `run ${run}`;
    groups.set(key, [...(groups.get(key) ?? []), run]);
  }
  return [...groups.values()].filter((runs) => runs.length > 1 || runs[0] !== current);
}

/** Names without the folders that all of them are in. @param {string[]} names @returns {string[]} */
export function shortNames(names) {
  if (names.length < 2) return names;
  const parts = names.map((name) => name.split("/"));
  let common = 0;
  while (parts.every((one) => one.length > common + 1 && one[common] === parts[0][common])) common += 1;
  return parts.map((one) => one.slice(common).join("/"));
}

/** How runs of one setting are called together: what their names begin with, and how many. @param {string[]} names */
export function groupName(names) {
  let length = 0;
  while (length < names[0].length && names.every((name) => name[length] === names[0][length])) length += 1;
  const stem = names[0].slice(0, length).replace(/[\s/_.\-=]*(seed|s)?[\s/_.\-=]*\d*$/i, "");
  return `${stem || "one setting"} · ${counted(names.length, "seed")}`;
}

/**
 * Where labels stand that would like to be at their `y`, without touching those beside them: each as near to it as it can.
 * @param {T[]} ends @param {number} width @param {number} height of a label @param {number} low @param {number} high
 * @template {{x: number, y: number}} T
 * @returns {T[]} in order of the wished y
 */
export function apart(ends, width, height, low, high) {
  /** @type {T[]} */
  const placed = [];
  for (const end of [...ends].sort((a, b) => a.y - b.y)) {
    const beside = placed.filter(({ x }) => Math.abs(x - end.x) < width).sort((a, b) => a.y - b.y);
    let y = Math.max(low, end.y);
    for (const other of beside) if (Math.abs(y - other.y) < height) y = other.y + height;
    if (y > high) {
      y = high;
      for (const other of beside.reverse()) if (Math.abs(y - other.y) < height) y = other.y - height;
    }
    placed.push({ ...end, y });
  }
  return placed;
}

/** Index of the bucket that holds x, -1 outside of all. @param {Values} starts @param {number} x @param {number} end of the last one */
export function bucketAt(starts, x, end) {
  if (!starts.length || x < starts[0] || x > end) return -1;
  return lowerBound(starts, x + 1e-9) - 1;
}

export class Overlay {
  /** @param {Api} api @param {OverlayCallbacks} callbacks */
  constructor(api, callbacks) {
    this.api = api;
    this.callbacks = callbacks;
    this.colors = new RunColors();
    /** @type {OverlayScene | null} */
    this.scene = null;
    /** @type {OverlayLine[]} those whose data is there */
    this.whole = [];
    /** @type {OverlayLine[]} of the view and its surroundings */
    this.near = [];
    this.nearRange = [0, 0];
    this.drawn = "";
    this.asked = "";
    this.askedNear = "";
    /** @type {AbortController | null} */
    this.request = null;
    /** @type {{header: any, arrays: Map<string, Values>} | null} */
    this.answer = null;
    /** @type {string[]} */
    this.others = [];
    /** @type {string[][]} */
    this.lines = [];
    this.nearSpan = 0;
    /** The legend, for a picture of it. @type {{text: string, color: string, dash: number[]}[]} */
    this.named = [];
    /** Where lines end in each chart, in pixels of its canvas. @type {Map<string, {y: number, x: number, text: string}[]>} */
    this.ends = new Map();
    /** @type {number | null} the one that a person looks at */
    this.looked = null;
    this.list = element("ul", { class: "overlay-runs", "aria-label": "Runs in the charts" });
    this.group = element("button", { class: "small", type: "button", title: "Runs that differ in the seed alone become their mean and its range", onclick: () => callbacks.group(!this.scene?.grouped) }, "Group seeds");
    this.bar = element("section", { class: "overlay-bar", "aria-label": "Runs beside each other" }, this.list, this.group);
    this.strip = element("canvas", { class: "overlay-skips", role: "img", height: 0 });
  }

  /** Whether other runs are in the charts. */
  get active() {
    return (this.scene?.others.length ?? 0) > 0;
  }

  get dark() {
    return document.documentElement.classList.contains("dark") ? 1 : 0;
  }

  /** @param {string} run */
  colorOf(run) {
    return this.colors.of(run)[this.dark];
  }

  get currentColor() {
    return this.colorOf(this.scene?.current ?? "");
  }

  /** @param {string[]} runs all that TensorBoard knows, in its order */
  know(runs) {
    this.colors.know(runs);
    if (this.answer) this.whole = this.#decoded(this.answer);
    this.near = [];
    this.askedNear = this.drawn = "";
    this.callbacks.draw();
  }

  /** What is to be in the charts, before they are drawn. @param {OverlayScene} scene */
  show(scene) {
    this.scene = scene;
    this.bar.hidden = this.strip.hidden = !this.active;
    const settings = new Map(scene.rows.map((row) => [row.run, row.setting]));
    const known = new Set(settings.keys());
    this.others = scene.others.filter((run) => known.has(run) && scene.lets(run));
    this.lines = linesOf(scene.current, this.others, (run) => settings.get(run), scene.grouped);
    const groups = linesOf(scene.current, this.others, (run) => settings.get(run), true);
    this.group.hidden = groups.every((runs) => runs.length < 2);
    this.group.setAttribute("aria-pressed", String(scene.grouped));
    this.#legend();
  }

  /** Fetches what the charts lack, after they were drawn. @param {boolean} [fresh] whether the runs may have gone on */
  async ask(fresh = false) {
    if (!this.active) return;
    if (!this.lines.length) {
      this.whole = this.near = [];
      this.asked = "";
      return;
    }
    try {
      const question = this.#question;
      if (question !== this.asked || fresh) await this.#askWhole(question);
      if (question === this.asked) await this.#askNear(question);
    } catch (error) {
      if (error instanceof Error && error.name === "AbortError") return;
      this.asked = this.askedNear = "";
      this.callbacks.failed(error);
    }
  }

  /** What the lines that are drawn must be an answer to. */
  get #question() {
    return JSON.stringify([this.lines, this.scene?.axis, this.scene?.columns]);
  }

  /** As many buckets as the current run has, so that smoothing does the same to all. @param {[string, string][]} [interval] @returns {[string, string][]} */
  #query(interval = []) {
    const { axis, columns, buckets } = /** @type {OverlayScene} */ (this.scene);
    const points = interval.length ? 2 * buckets : buckets;
    return [...columns.map((column) => /** @type {[string, string]} */ (["column", column])), ["x", axis], ["buckets", String(points)], ...interval];
  }

  /** @param {string} question */
  async #askWhole(question) {
    const changed = question !== this.asked;
    this.asked = question;
    if (changed) this.near = [];
    const answer = await this.api.overlay(this.lines, this.#query());
    if (this.asked !== question || (!changed && answer === this.answer)) return;
    this.answer = answer;
    this.whole = this.#decoded(answer);
    this.askedNear = "";
    this.nearSpan = Infinity; // what is near may have gone on too
    this.callbacks.draw();
  }

  /** The view with half of it on either side, where the whole is too coarse for it. @param {string} question */
  async #askNear(question) {
    const { scene } = this;
    if (!scene?.zoomed || !this.whole.some((line) => line.size > 1)) return;
    const [from, to] = scene.range();
    if (this.near.length && this.nearRange[0] <= from && this.nearRange[1] >= to && this.nearSpan <= 4 * (to - from)) return;
    const unit = scene.axis === "time" ? 1000 : 1;
    const margin = (to - from) / 2;
    const near = [Math.max(0, Math.floor((from - margin) * unit)), Math.ceil((to + margin) * unit)];
    const detail = JSON.stringify([question, near]);
    if (detail === this.askedNear) return;
    this.askedNear = detail;
    this.request?.abort();
    const request = (this.request = new AbortController());
    const answer = await this.api.overlay(this.lines, this.#query([["from", String(near[0])], ["to", String(near[1])]]), request.signal);
    if (this.askedNear !== detail) return;
    this.near = this.#decoded(answer);
    this.nearSpan = (near[1] - near[0]) / unit;
    this.nearRange = [near[0] === 0 ? -Infinity : near[0] / unit, near[1] / unit]; // there is nothing before 0
    this.callbacks.draw();
  }

  /** @param {{header: any, arrays: Map<string, Values>}} answer @returns {OverlayLine[]} */
  #decoded({ header, arrays }) {
    const unit = header.x === "time" ? 1000 : 1;
    /** @type {Map<string, number>} */
    const seen = new Map([[this.colorOf(/** @type {OverlayScene} */ (this.scene).current), 1]]);
    return header.lines.map((/** @type {any} */ told, /** @type {number} */ at) => {
      const color = this.colorOf(told.runs[0] ?? told.missing[0]);
      const repeat = seen.get(color) ?? 0;
      seen.set(color, repeat + 1);
      const start = /** @type {Values} */ (arrays.get(`${at}/x`));
      const size = told.size / unit;
      const of = (/** @type {string} */ column, /** @type {string} */ kind) => arrays.get(`${at}/${column}/${kind}`) ?? null;
      return {
        runs: told.runs, skips: skipsOf({ of })?.some((count) => count > 0) ?? false, size: told.size, colors: this.colors.of(told.runs[0] ?? told.missing[0]), dash: DASHES[repeat % DASHES.length],
        first: told.first === null ? null : told.first / unit, last: told.last === null ? null : told.last / unit,
        start: unit === 1 ? start : Float64Array.from(start, (x) => x / unit),
        x: Float64Array.from(start, (x) => (told.size === 1 ? x / unit : x / unit + size / 2)),
        of, made: new Map(),
      };
    });
  }

  /** The x between which there are steps, of all lines; null while that is not known. @returns {[number, number] | null} */
  get extent() {
    if (this.asked !== this.#question) return null;
    const ends = this.whole.flatMap(({ first, last }) => (first === null || last === null ? [] : [first, last]));
    return ends.length ? [Math.min(...ends), Math.max(...ends)] : null;
  }

  /** Whether what was asked for did not come. */
  get stale() {
    return this.active && this.asked === "" && this.lines.length > 0;
  }

  /** What is drawn of the view: the finer of what is there. */
  get #shown() {
    const { scene } = this;
    if (!scene || !this.active) return [];
    const [from, to] = scene.range();
    return scene.zoomed && this.near.length === this.whole.length && this.nearRange[0] <= from && this.nearRange[1] >= to ? this.near : this.whole;
  }

  /** What a chart shows of another run: its first line. @param {ChartSpec} spec */
  #columnOf({ ofOptimizer, lines: [first] }) {
    return (ofOptimizer ? this.scene?.prefix ?? "" : "") + first.column;
  }

  /**
   * A line's points on a chart's axis, made once.
   * @param {OverlayLine} line @param {ChartSpec} spec @param {Scale} scale
   */
  #points(line, spec, scale) {
    const { prefix, smoothing } = /** @type {OverlayScene} */ (this.scene);
    const [first] = spec.lines;
    const name = this.#columnOf(spec);
    const key = `${spec.id} ${scale} ${prefix} ${smoothing}`;
    let made = line.made.get(key);
    if (made) return made;
    const raw = line.of(name, first.average ? "mean" : "last") ?? line.of(name, "mean");
    const onto = (/** @type {Values | null} */ values) => values && Array.from(values, ONTO_AXIS[scale]);
    let values = onto(raw);
    const averaged = smoothing > 0 && !first.stepped && !first.sparse && !first.average;
    if (values && averaged) values = smoothed(values, smoothing);
    const group = line.runs.length > 1;
    const bands = values && group ? [["min", "max", 0.1], ["low", "high", 0.2]].map(([low, high, alpha]) => ({ low: onto(line.of(name, String(low))), high: onto(line.of(name, String(high))), alpha: Number(alpha) })).filter(({ low }) => low) : [];
    if (bands.length === 1) bands[0].alpha = 0.22;
    made = { values, bands, raw };
    line.made.set(key, made);
    return made;
  }

  /** The least and the greatest in view, on a chart's axis. @param {ChartSpec} spec @param {Scale} scale @returns {[number, number] | null} */
  range(spec, scale) {
    if (spec.id === "tensor") return null;
    const [from, to] = this.scene?.range() ?? [0, 0];
    let [low, high] = [Infinity, -Infinity];
    for (const line of this.#shown) {
      const { values, bands } = this.#points(line, spec, scale);
      for (const row of values ? [values, ...bands.flatMap((band) => [band.low, band.high])] : []) {
        for (let at = Math.max(0, lowerBound(line.x, from) - 1); row && at < row.length && line.x[at] <= to; at++) {
          const value = row[at];
          if (value === null || line.x[at] < from) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    return low <= high ? [low, high] : null;
  }

  /** @param {Plot} plot @param {ChartSpec} spec @param {Scale} scale */
  drawLines(plot, spec, scale) {
    const lines = this.#shown;
    this.ends.delete(spec.id);
    if (!lines.length || spec.id === "tensor") return;
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const { min: x0 = 0, max: x1 = 1 } = plot.scales.x;
    const { min: y0 = 0, max: y1 = 1 } = plot.scales.y;
    const px = (/** @type {number} */ x) => bbox.left + ((x - /** @type {number} */ (x0)) / (Number(x1) - Number(x0))) * bbox.width;
    const py = (/** @type {number} */ y) => bbox.top + (1 - (y - Number(y0)) / (Number(y1) - Number(y0))) * bbox.height;
    const ends = /** @type {{y: number, x: number, text: string}[]} */ ([]);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineJoin = "round";
    const lightness = Math.min(1, 3 / Math.max(1, lines.filter(({ runs }) => runs.length > 1).length)); // many bands would hide each other
    const order = lines.map((_, at) => at).sort((a, b) => Number(a === this.looked) - Number(b === this.looked));
    for (const at of order) {
      const line = lines[at];
      const { values, bands } = this.#points(line, spec, scale);
      if (!values) continue;
      const color = line.colors[this.dark];
      const faded = this.looked !== null && this.looked !== at;
      const from = Math.max(0, lowerBound(line.x, Number(x0)) - 1);
      const to = Math.min(line.x.length - 1, lowerBound(line.x, Number(x1)));
      ctx.fillStyle = color;
      for (const { low, high, alpha } of bands) {
        ctx.globalAlpha = faded ? alpha / 5 : at === this.looked ? alpha : alpha * lightness;
        for (const path of areas(line.x, low, high, from, to, px, py)) ctx.fill(path);
      }
      ctx.globalAlpha = faded ? 0.22 : 1;
      ctx.strokeStyle = color;
      ctx.lineWidth = (at === this.looked ? 2.5 : line.runs.length > 1 ? 1.75 : 1) * ratio; // of a pixel: wider ones that zigzag take fifty times as long
      ctx.setLineDash(line.dash.map((length) => length * ratio));
      const sparse = !!spec.lines[0].sparse;
      ctx.beginPath();
      let open = false;
      let last = -1;
      for (let index = from; index <= to; index++) {
        const value = values[index];
        if (value === null) {
          if (!sparse) open = false;
          continue;
        }
        const [x, y] = [px(line.x[index]), py(value)];
        if (open && spec.lines[0].stepped && line.runs.length === 1) ctx.lineTo(x, py(/** @type {number} */ (values[last])));
        if (open) ctx.lineTo(x, y);
        else {
          ctx.moveTo(x, y);
          if (values[index + 1] == null) ctx.lineTo(x + ratio, y); // one alone is a dot
        }
        open = true;
        last = index;
      }
      ctx.stroke();
      if (last >= 0 && (this.looked === null || this.looked === at)) {
        while (last > from && (values[last] === null || line.x[last] > Number(x1))) last -= 1;
        const value = values[last];
        if (value !== null) ends.push({ x: Math.min(px(line.x[last]), bbox.left + bbox.width), y: py(value), text: String(at + 2) });
      }
    }
    ctx.restore();
    this.ends.set(spec.id, ends);
  }

  /** Numbers at the ends of lines, as in the legend: colour is not needed to tell them apart. @param {Plot} plot @param {ChartSpec} spec */
  drawNumbers({ ctx, bbox }, spec) {
    const ends = this.ends.get(spec.id) ?? [];
    if (!this.active || ends.length > MOST_NUMBERED) return;
    const ratio = devicePixelRatio || 1;
    const gap = 10.5 * ratio;
    ctx.save();
    ctx.font = FONT.replace("10px", `${10 * ratio}px`);
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const { backgroundColor: ground, color } = getComputedStyle(document.body);
    for (const { x, y, text } of apart(ends, 13 * ratio, gap, bbox.top + gap / 2, bbox.top + bbox.height - gap / 2)) {
      ctx.lineWidth = 3 * ratio;
      ctx.strokeStyle = ground;
      ctx.strokeText(text, x + NUMBER_GAP * ratio, y);
      ctx.fillStyle = color;
      ctx.fillText(text, x + NUMBER_GAP * ratio, y);
    }
    ctx.restore();
  }

  /** Which lines have a lane of skips: those that skipped at all. */
  get #skipping() {
    return this.active ? this.whole.flatMap((line, at) => (line.skips ? [at] : [])) : [];
  }

  get #lane() {
    return Math.max(3, Math.min(8, Math.floor(60 / Math.max(1, this.#skipping.length))));
  }

  get stripHeight() {
    const { length } = this.#skipping;
    return length ? Math.max(14, length * this.#lane + 6) : 0;
  }

  /** Makes room for the skips. @param {number} left @param {number} width pixels of the plots @returns {boolean} whether its height changed */
  layStrip(left, width) {
    const { strip, stripHeight } = this;
    const ratio = devicePixelRatio || 1;
    const [across, high] = [Math.round((left + width + 30) * ratio), Math.round(stripHeight * ratio)];
    const changed = strip.height !== high;
    if (!changed && strip.width === across) return false;
    [strip.width, strip.height] = [across, high];
    strip.style.width = `${left + width + 30}px`;
    strip.style.height = `${stripHeight}px`;
    return changed;
  }

  /** Skips of the others, a lane each, below the marks of the current run. @param {number} left @param {number} width pixels of the plots */
  drawStrip(left, width) {
    const lines = this.#shown;
    const { strip, scene } = this;
    const context = strip.getContext("2d");
    if (!context || !scene || !this.stripHeight) return;
    const ratio = devicePixelRatio || 1;
    const height = this.stripHeight;
    const lane = this.#lane;
    const full = left + width + 30;
    const [from, to] = scene.range();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, full, height);
    const style = getComputedStyle(document.documentElement);
    let inView = 0;
    const said = this.#skipping.map((index, row) => {
      const line = lines[index];
      const broken = skipsOf(line);
      const top = (height - this.#skipping.length * lane) / 2 + row * lane;
      context.globalAlpha = this.looked === null || this.looked === index ? 1 : 0.25;
      context.fillStyle = style.getPropertyValue("--grid");
      if (lane > 5) context.fillRect(left, top + lane / 2 - 0.5, width, 1);
      context.fillStyle = line.colors[this.dark];
      let count = 0;
      for (let at = Math.max(0, lowerBound(line.x, from) - 1); broken && at < line.x.length && line.x[at] <= to; at++) {
        if (!(broken[at] > 0) || line.x[at] < from) continue;
        count += 1;
        context.fillRect(left + ((line.x[at] - from) / (to - from)) * width - 1, top, 2, lane - 1);
      }
      inView += count;
      return `${this.#nameOf(line.runs)} ${line.size > 1 ? "in " : ""}${formatCount(count)}${line.size > 1 ? " places" : ""}`;
    });
    context.globalAlpha = 1;
    context.fillStyle = style.getPropertyValue("--text-2");
    context.font = "11px Roboto, system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillText("Others", 18, height / 2 + 0.5);
    if (!inView) context.fillText("no skips in view", left + 8, height / 2 + 0.5);
    strip.setAttribute("aria-label", `Skipped steps of the other runs in view: ${said.join(", ")}`);
  }

  /** @param {string[]} runs */
  #nameOf(runs) {
    return runs.length > 1 ? groupName(runs) : runs[0] === "." ? "(logdir)" : runs[0] ?? "a run that is gone";
  }

  /** What each run has at x, as part of the card at the cursor. @param {number} x @param {ChartSpec} spec @param {number | null} own the current run's value */
  valuesAt(x, spec, own) {
    const format = spec.scale === "log2" ? formatScale : formatAligned;
    const { current } = /** @type {OverlayScene} */ (this.scene);
    const rows = [{ number: 1, name: this.#nameOf([current]), color: this.colorOf(current), dash: DASHES[0], text: own === null ? "–" : format(own) }];
    this.#shown.forEach((line, at) => {
      const { raw } = this.#points(line, spec, spec.scale);
      let index = bucketAt(line.start, x, line.last ?? -Infinity);
      if (spec.lines[0].sparse) while (raw && index > 0 && Number.isNaN(raw[index])) index -= 1;
      const value = raw && index >= 0 ? raw[index] : undefined;
      const name = this.#columnOf(spec);
      const broken = (/** @type {string} */ kind) => (line.of(name, kind)?.[index] ?? 0) > 0;
      const missing = value === undefined ? "–" : broken("inf") ? "∞" : broken("nan") ? "NaN" : "–";
      rows.push({ number: at + 2, name: this.#nameOf(line.runs), color: line.colors[this.dark], dash: line.dash, text: value === undefined || Number.isNaN(value) ? missing : format(value) });
    });
    const names = shortNames(rows.map(({ name }) => name));
    return {
      element: element("table", { class: "cursor-runs" }, element("caption", {}, spec.title), element("tbody", {}, ...rows.map(({ number, color, dash, text }, at) => element(
        "tr", at === 0 ? "current" : "", element("td", "run-number", String(number)), element("td", {}, swatch(color, dash)),
        element("th", { scope: "row" }, names[at]), element("td", "number", text),
      )))),
      text: `${spec.title}: ${rows.map(({ name, text }) => `${name} ${text}`).join(", ")}`,
      many: rows.length > 5,
    };
  }

  /** The runs beside the current one in words, with where they end in view. @param {ChartSpec} spec @param {Scale} scale */
  summary(spec, scale) {
    if (!this.active || spec.id === "tensor") return "";
    const format = spec.scale === "log2" ? formatScale : formatAligned;
    const to = this.scene?.range()[1] ?? 0;
    const parts = this.#shown.flatMap((line) => {
      const { raw } = this.#points(line, spec, scale);
      let at = Math.min(line.x.length, lowerBound(line.x, to + 1e-9)) - 1;
      while (raw && at > 0 && !Number.isFinite(raw[at])) at -= 1;
      return raw && at >= 0 ? [`${this.#nameOf(line.runs)} ${format(raw[at])}`] : [];
    });
    return parts.length ? ` Beside it, at the end: ${parts.join(", ")}.` : "";
  }

  #legend() {
    const { scene, lines } = this;
    if (!scene) return;
    const items = [[scene.current], ...lines];
    const key = JSON.stringify([items, this.dark, items.map(([run]) => this.colorOf(run)), scene.others.length - this.others.length]);
    if (key === this.drawn) return;
    this.drawn = key;
    const names = shortNames(items.map((runs) => this.#nameOf(runs)));
    const seen = /** @type {Map<string, number>} */ (new Map());
    this.named = [];
    const focused = this.list.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.run : undefined;
    this.list.replaceChildren(...items.map((runs, at) => {
      const color = this.colorOf(runs[0]);
      const repeat = seen.get(color) ?? 0;
      seen.set(color, repeat + 1);
      const dash = DASHES[repeat % DASHES.length];
      this.named.push({ text: `${at + 1}  ${names[at]}`, color, dash });
      const title = runs.length > 1 ? runs.join("\n") : this.#nameOf(runs);
      const look = (/** @type {boolean} */ on) => this.look(on && at > 0 ? at - 1 : null);
      const open = runs.length > 1 || at === 0
        ? element("span", { class: "overlay-name", title: at === 0 ? `${title} (current)` : title }, names[at])
        : element("button", { class: "overlay-name", type: "button", title: `${title}: make it the current run`, "data-run": runs[0], onclick: () => this.callbacks.choose(runs[0]) }, names[at]);
      return element(
        "li", {
          class: at === 0 ? "overlay-run current" : "overlay-run", onmouseenter: () => look(true), onmouseleave: () => look(false), onfocusin: () => look(true), onfocusout: () => look(false),
        },
        element("span", "run-number", String(at + 1)), swatch(color, dash), open,
        ...(at > 0 ? [iconButton("✕", `Take ${this.#nameOf(runs)} out of the charts`, () => this.callbacks.remove(runs))] : []),
      );
    }));
    const left = scene.others.length - this.others.length;
    if (left > 0) this.list.append(element("li", "overlay-more", `${counted(left, "run")} not shown: gone, or left out by TensorBoard's filter`));
    if (focused) /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-run="${CSS.escape(focused)}"]`))?.focus();
  }

  /** Brings a line out among the others. @param {number | null} at */
  look(at) {
    if (at === this.looked) return;
    this.looked = at;
    this.callbacks.redraw();
  }
}

/** Above 0 where a line skipped. @param {Pick<OverlayLine, "of">} line */
function skipsOf({ of }) {
  return of("skipped", "max") ?? of("skipped", "mean");
}

/** How a line looks. @param {string} color @param {number[]} dash */
function swatch(color, dash) {
  return svg("svg", { class: "line-swatch", width: 18, height: 8, "aria-hidden": "true" }, svg("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: color, "stroke-width": 2, "stroke-dasharray": dash.join(" ") }));
}

/** What lies between two rows of values, in pieces where there are gaps. @param {Values} xs @param {any} low @param {any} high @param {number} from @param {number} to @param {(x: number) => number} px @param {(y: number) => number} py */
function areas(xs, low, high, from, to, px, py) {
  const paths = [];
  for (let at = from; at <= to; ) {
    if (low[at] === null || high[at] === null) {
      at += 1;
      continue;
    }
    const path = new Path2D();
    const start = at;
    path.moveTo(px(xs[at]), py(high[at]));
    for (at += 1; at <= to && low[at] !== null && high[at] !== null; at++) path.lineTo(px(xs[at]), py(high[at]));
    for (let back = at - 1; back >= start; back--) path.lineTo(px(xs[back]), py(low[back]));
    path.closePath();
    paths.push(path);
  }
  return paths;
}
