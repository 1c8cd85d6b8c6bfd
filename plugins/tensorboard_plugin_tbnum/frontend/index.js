/**
 * The Numerics tab: puts its parts together, asks the server, and keeps what is shown in step with both.
 *
 * TensorBoard imports this module in a frame and calls `render()`.
 */

import { Api, RouteError, Unreachable, exactLine } from "./api.js";
import { CHARTS, Charts, TimeAxis, firstViews, formatViews, indexOfStep, neededColumns, parseViews } from "./charts.js";
import { counted, formatCount, formatElapsed, formatNumber, formatScaleShort, statusOf, typeset } from "./format.js";
import { addressOf, button, copyButton, element, followTheme, hostFilter, nowhere, onHostRuns, onPlace, onReload, readPlace, remember, remembered, writePlace } from "./host.js";
import { buildLanes, laneOf, lowerBound } from "./marks.js";
import {
  CursorCard, EventCard, EventList, Legend, RunList, emptyState, eventText, eventsAt, isPlain, listedEvents, problemState, runTitle, skipSummary,
  stepText,
} from "./view.js";

/** @import { Series } from "./api.js" */
/** @import { Dock } from "./dock.js" */
/** @import { FindingsTable } from "./findings.js" */
/** @import { Overlay } from "./overlay.js" */
/** @import { RunsTable } from "./runs.js" */
/** @import { ValuesTable } from "./values.js" */
/** @import { ChartSpec, EventsAnswer, Loaded, Model, Place, RunInfo, RunRow, RunTable, SeriesLike, StepValues, TbnumEvent, TensorsAnswer, Values, Views } from "./types.js" */

const POLL_SECONDS = 2;
const SCANNING_POLL_SECONDS = 0.5;
const HOW_FAR_SECONDS = 0.7;
const SLOWEST_POLL_SECONDS = 15;
const EVENT_ZOOM_STEPS = 120;
const SMALLEST_ZOOM_STEPS = 8;

export async function render() {
  document.documentElement.lang = "en";
  document.title = "Numerics";
  await stylesheet();
  document.body.replaceChildren();
  new Panel(document.body).start();
}

/** @returns {Promise<void>} resolved when it applies, or cannot be had */
function stylesheet() {
  return new Promise((resolve) => {
    const { href } = new URL("./style.css", import.meta.url);
    document.head.append(element("link", { rel: "stylesheet", href, onload: () => resolve(), onerror: () => resolve() }));
  });
}

class Panel {
  /** @param {HTMLElement} body */
  constructor(body) {
    this.api = new Api();
    /** @type {Place} */
    this.place = nowhere();
    /** @type {RunTable | null} */
    this.table = null;
    /** @type {Loaded | null} */
    this.loaded = null;
    /** @type {TbnumEvent | null} */
    this.selected = null;
    /** @type {Set<string>} */
    this.hidden = new Set();
    this.smoothing = clampSmoothing(Number(remembered("smoothing", "0.6")));
    this.views = firstViews();
    /** @type {Model["tensors"]} */
    this.tensors = { headroom: null, tensor: null, name: null };
    this.tensorsAsked = "";
    /** @type {TensorsAnswer | null} of the run that is loaded; null: not told yet */
    this.tensorsAnswer = null;
    /** @type {Dock | null} */
    this.dock = null;
    this.optimizer = 0;
    /** Whether a zoomed view moves on with the run. */
    this.following = false;
    /** @type {Charts | null} */
    this.charts = null;
    this.pollSeconds = POLL_SECONDS;
    this.pollTimer = 0;
    this.polling = false;
    this.pollAgain = false;
    this.wasVisible = false;
    this.failures = 0;
    /** @type {{from: number, to: number, bucketSteps: number, abort: AbortController} | null} the detail on its way */
    this.asked = null;
    this.hoverTimer = 0;
    this.placeTimer = 0;
    this.pointerY = 0;
    /** @type {number | null} */
    this.cursor = null;
    /** @type {Map<number, StepValues>} */
    this.steps = new Map();
    this.stepsVersion = "";
    /** @type {FindingsTable | null} */
    this.findings = null;
    /** @type {ValuesTable | null} */
    this.values = null;
    /** @type {RunsTable | null} */
    this.runsTable = null;
    /** @type {Overlay | null} */
    this.overlay = null;
    /** Of runs, TensorBoard's own. */
    this.filter = hostFilter();
    /** @type {TbnumEvent[]} */
    this.listed = [];
    /** @type {unknown[]} */
    this.listedFrom = [];
    this.#build(body);
  }

  start() {
    this.place = readPlace();
    followTheme(() => requestAnimationFrame(() => { this.charts?.recolor(); this.dock?.recolor(); }));
    onPlace((place) => this.#goTo(place));
    onReload(() => this.poll(true));
    this.charts = new Charts(this.chartRoot, {
      zoom: (from, to) => this.zoom(from, to),
      reset: () => this.resetZoom(),
      select: (event) => this.select(event, false),
      hover: (step) => this.hover(step),
      pin: (step) => this.pin(step),
      key: (event) => this.#chartKey(event),
      views: (views) => this.setViews(views),
      closeTensor: () => this.openTensor(null, null),
      optimizer: (index) => { this.optimizer = index; this.#reload(); },
    });
    this.setViews(parseViews(this.place.views ?? remembered("views", "")));
    const sizes = new ResizeObserver(() => this.#resized());
    sizes.observe(this.chartRoot);
    sizes.observe(document.documentElement);
    document.addEventListener("visibilitychange", () => this.poll(true));
    document.addEventListener("keydown", (event) => this.#globalKey(event));
    document.addEventListener("pointerdown", (event) => {
      if (event.target instanceof Node && !this.viewMenu.contains(event.target)) this.viewMenu.open = false;
    });
    setInterval(() => this.#showStatus(), 5000);
    this.wasVisible = this.#visible();
    this.poll(true);
  }

  // ---- The page

  app = element("div", "app");
  alert = element("div", { class: "alert", role: "alert", hidden: true });
  stage = element("main", { class: "stage", "aria-label": "Numerics of a run" });
  name = element("h1", {}, "Numerics");
  status = element("span", "status");
  facts = element("p", "facts-line");
  problems = element("details", { class: "problems", hidden: true });
  content = element("div", "content");
  chartRoot = element("div", "charts");
  message = element("div", "message");
  live = element("p", { class: "visually-hidden", role: "status" });
  runsButton = button("Runs", "", () => this.#openRuns(!this.app.classList.contains("runs-open")));
  followButton = button("Follow", "Keep the newest step in view (F)", () => this.#toggleFollow());
  resetButton = button("Reset zoom", "Show all steps (double click, or 0)", () => this.resetZoom());
  slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, oninput: () => this.#smooth(Number(this.slider.value)) });
  smoothingValue = element("output");
  smoothingLabel = element("label", "smoothing", "Smoothing", this.slider, this.smoothingValue);
  dockRoot = element("div", { class: "dock-root", hidden: true });
  tensorsButton = button("Tensors", "Heat map and histograms of the tensors", () => this.openDock(this.place.dock === "heatmap" || this.place.dock === "histogram" ? null : "heatmap"));
  findingsButton = button("Findings", "Findings and events as a table; files to save", () => this.openDock(this.place.dock === "findings" ? null : "findings"));
  stepField = element("input", {
    class: "search step-field", type: "text", inputmode: "numeric", placeholder: "Go to step", "aria-label": "Go to step (G)",
    onkeydown: (event) => {
      const wanted = this.stepField.value.replaceAll(/[,_\s]/g, "");
      if (event.key === "Enter" && /^\d+$/.test(wanted)) this.goToStep(Number(wanted));
    },
  });
  copyStep = copyButton("Copy step", "Every value of the held step as text, for a bug report", async () => {
    const { pin, run } = this.place;
    return pin === null || run === null ? "" : stepText(run, await this.api.step(run, pin), addressOf(this.place));
  });
  viewList = element("div", { class: "view-list", role: "group", "aria-label": "Views" });
  viewMenu = element("details", { class: "menu", ontoggle: () => this.#fitMenu() }, element("summary", { class: "small" }, "Views"), this.viewList);
  axisButtons = /** @type {Place["axis"][]} */ (["step", "time", "updates"]).map((axis) => {
    const [label, title] = { step: ["Step", "By step"], time: ["Time", "By time since the first step"], updates: ["Updates", "By updates done: skipped steps are left out"] }[axis];
    const made = button(label, title, () => this.#align(axis));
    made.dataset.axis = axis;
    return made;
  });

  runList = new RunList({
    choose: (run) => { this.#openRuns(false); this.chooseRun(run); }, toggle: (run) => this.toggleRun(run),
    table: () => { this.#openRuns(false); this.openDock(this.place.dock === "runs" ? null : "runs"); },
    filtered: () => this.#draw(),
  });
  eventList = new EventList((event) => this.select(event, true), () => this.#showCard());
  card = new EventCard({
    close: () => this.select(null, false), go: (by) => this.#neighbour(by),
    link: () => addressOf(this.place), text: () => this.#eventText(), openTensor: (name) => this.openTensor(name, this.selected?.step ?? null),
  });
  cursorCard = new CursorCard();
  legend = new Legend((id) => this.#toggleLane(id));

  /** @param {HTMLElement} body */
  #build(body) {
    this.runsButton.classList.add("runs-button");
    this.runsButton.setAttribute("aria-expanded", "false");
    this.tensorsButton.hidden = this.copyStep.hidden = true;
    this.slider.value = String(this.smoothing);
    this.smoothingValue.textContent = this.smoothing.toFixed(2);
    this.content.append(
      element("div", "center", this.legend.element, this.chartRoot, this.dockRoot),
      element("aside", { class: "side", "aria-label": "Events of the run" }, this.card.element, this.eventList.element),
    );
    this.stage.append(
      element(
        "header", "bar", this.runsButton,
        element("div", "heading", element("div", "heading-line", this.name, this.status), this.facts),
        element(
          "div", "tools", this.smoothingLabel,
          element("div", { class: "segmented", role: "group", "aria-label": "Horizontal axis" }, ...this.axisButtons),
          this.stepField, this.copyStep, this.findingsButton, this.tensorsButton, this.viewMenu, this.followButton, this.resetButton,
        ),
      ),
      this.problems, this.content, this.message, this.live,
    );
    this.app.append(this.runList.element, this.stage);
    body.append(this.alert, this.app, this.cursorCard.element);
    this.chartRoot.addEventListener("pointermove", (event) => {
      this.pointerY = event.clientY;
      if (this.cursor !== null) this.#placeCard();
    });
    this.#waiting("Loading …");
  }

  /** @param {number} weight */
  #smooth(weight) {
    this.smoothing = clampSmoothing(weight);
    this.smoothingValue.textContent = this.smoothing.toFixed(2);
    remember("smoothing", String(this.smoothing));
    this.#draw();
  }

  /** The menu opens to the left of its button's right edge, and further right where that would leave the window. */
  #fitMenu() {
    this.viewList.style.right = "0";
    this.viewList.style.right = `${Math.min(0, this.viewList.getBoundingClientRect().left - 8)}px`;
  }

  /** On narrow windows the runs open over the charts. @param {boolean} open */
  #openRuns(open) {
    this.app.classList.toggle("runs-open", open);
    this.runsButton.setAttribute("aria-expanded", String(open));
  }

  // ---- What the server knows

  /** Asks for what is new, and again in a while. @param {boolean} [now] whether a person is waiting */
  async poll(now = false) {
    if (now) this.pollSeconds = POLL_SECONDS;
    if (this.polling) {
      this.pollAgain = now;
      return;
    }
    clearTimeout(this.pollTimer);
    if (!this.#visible()) return; // becoming visible polls again
    this.polling = true;
    let changed = false;
    try {
      changed = await this.#refresh();
      if (this.failures) this.#recovered();
    } catch (error) {
      this.#failed(error);
    }
    this.polling = false;
    const running = this.table?.runs.some((run) => (run.run === this.place.run || this.place.over.includes(run.run)) && statusOf(run, Date.now() / 1000).state === "training");
    if (this.failures) this.pollSeconds = Math.min(SLOWEST_POLL_SECONDS, POLL_SECONDS * 1.5 ** (this.failures - 1));
    else if (changed || running) this.pollSeconds = POLL_SECONDS;
    else this.pollSeconds = Math.min(SLOWEST_POLL_SECONDS, this.pollSeconds * 1.5);
    const wait = this.pollAgain ? 0 : !this.failures && this.table?.state === "scanning" ? SCANNING_POLL_SECONDS : this.pollSeconds;
    this.pollAgain = false;
    clearTimeout(this.pollTimer);
    this.pollTimer = setTimeout(() => this.poll(), wait * 1000);
  }

  #visible() {
    return document.visibilityState === "visible" && innerHeight > 0 && innerWidth > 0;
  }

  /** @returns {Promise<boolean>} whether anything is new */
  async #refresh() {
    const before = this.table;
    const asked = this.place.run;
    // A run that the address names is fetched beside the table, not after it.
    const early = asked !== null && before === null ? this.#load(asked).catch(() => false) : null;
    const table = (this.table = await this.api.runs());
    if (this.place.run === null && table.runs.length) {
      this.place.run = (mostInteresting(table.runs) ?? table.runs[0]).run;
      this.#keepPlace();
    }
    this.filter = hostFilter();
    this.#listRuns();
    const loaded = await early;
    const { run } = this.place;
    if (run === null) {
      this.#say(table.errors.length && !table.runs.length
        ? problemState("The logdir could not be read", `${table.errors[0].run} ${table.errors[0].reason}`)
        : emptyState(table.logdir, table.state === "scanning"));
      return table !== before;
    }
    if (!table.runs.some((row) => row.run === run)) {
      if (table.state === "scanning") this.#waiting(`Looking for ${runTitle(run)} …`);
      else this.#runIsGone(run, table);
      return table !== before;
    }
    const changed = (asked === run && loaded) || (await this.#load(run));
    this.#showStatus();
    if (this.place.over.length && (table !== before || this.overlay?.stale)) {
      this.#draw();
      this.overlay?.ask(true);
    }
    return changed || table !== before;
  }

  /** @param {string} run @param {RunTable} table */
  #runIsGone(run, table) {
    const text = `${table.logdir} has no run of the name ${runTitle(run)}. It may have been moved or deleted.`;
    this.loaded = null;
    this.#showStatus();
    this.#say(table.runs.length ? problemState("This run is not there", `${text} Choose another one.`) : emptyState(table.logdir, false));
  }

  /** Fetches what is new of a run and draws it; events come when they do, as explaining takes longer than reading. @param {string} run @returns {Promise<boolean>} whether anything was new */
  async #load(run) {
    const told = this.loaded?.run === run ? 0 : setInterval(() => this.#sayHowFar(run), HOW_FAR_SECONDS * 1000);
    const info = await this.api.run(run).finally(() => clearInterval(told));
    if (this.place.run !== run) return false;
    const old = this.loaded?.run === run ? this.loaded : null;
    const columns = this.#columns(info);
    const { buckets } = this;
    const [overview, nonfinite] = await Promise.all([
      columns.length ? this.api.series(run, { columns, buckets }) : null,
      info.columns.includes("loss") ? this.api.nonfinite(run, "loss") : null,
    ]);
    if (this.place.run !== run) return false;
    if (!overview || !overview.length) {
      this.loaded = null;
      this.#waiting("The run has begun; its first step has not arrived yet.");
      return true;
    }
    const events = this.api.events(run);
    events.catch(() => {}); // heard below, if not before
    const changed = !old || old.overview !== overview || old.nonfiniteAnswer !== nonfinite || old.info !== info;
    if (changed) {
      const { eventsAnswer = null, detail = null } = old ?? {};
      const lanes = old && old.nonfiniteAnswer === nonfinite ? old.lanes : buildLanes(eventsAnswer?.events ?? [], nonfinite);
      this.loaded = { run, info, overview, detail, eventsAnswer, nonfiniteAnswer: nonfinite, lanes };
      if (this.stepsVersion !== info.version) {
        this.stepsVersion = info.version;
        this.steps.clear();
        if (old && this.place.pin !== null) this.#fetchStep(this.place.pin);
      }
      if (!old) this.#arrived(info);
      this.#showProblems(info.problems);
      this.#moveOn();
      this.#askForDetail();
      this.#draw();
      this.#showStatus();
    }
    const more = this.#told(run, await events);
    if (changed) this.#loadTensors();
    return more || changed;
  }

  /** A long record takes seconds to read: how much of it was. @param {string} run */
  async #sayHowFar(run) {
    const { runs } = await this.api.runs().catch(() => ({ runs: /** @type {RunRow[]} */ ([]) }));
    const row = runs.find((one) => one.run === run);
    if (this.place.run !== run || this.loaded || row?.steps_read == null || !row.steps) return;
    this.#waiting(`Reading ${runTitle(run)}: ${formatCount(row.steps_read)} of ${counted(row.steps, "step")}`);
  }

  /** @param {string} run @param {EventsAnswer} answer @returns {boolean} whether it says anything new */
  #told(run, answer) {
    const { loaded } = this;
    if (loaded?.run !== run || loaded.eventsAnswer === answer) return false;
    this.loaded = { ...loaded, eventsAnswer: answer, lanes: buildLanes(answer.events, loaded.nonfiniteAnswer) };
    if (loaded.eventsAnswer !== null) {
      if (this.selected) this.selected = this.#find(this.selected);
    } else if (this.place.event) {
      this.selected = this.#find(this.place.event);
      if (this.selected) this.#showValuesOf(this.selected);
    }
    this.#draw();
    this.#showStatus();
    return true;
  }

  /** What is asked for of a run. @param {RunInfo} info */
  #columns(info) {
    const columns = neededColumns([...info.columns, ...info.derived], this.#prefix(info), this.views.hidden);
    return this.place.axis === "updates" ? [...columns, "updates"] : columns;
  }

  // ---- Tensors

  /** Finds out whether the run has tensors, and fetches what the charts show of them. */
  async #loadTensors() {
    const { loaded } = this;
    if (!loaded) return;
    const { run } = loaded;
    try {
      const answer = await this.api.tensors(run);
      if (this.loaded?.run !== run) return;
      this.tensorsAnswer = answer;
      const has = answer.names.length > 0;
      this.tensorsButton.hidden = !has;
      this.card.hasTensors = has;
      if (!has && (this.place.dock === "heatmap" || this.place.dock === "histogram")) this.openDock(null);
      else if (this.place.dock && this.dockRoot.hidden) this.openDock(this.place.dock);
      const tensors = { ...this.tensors, name: this.place.tensor && answer.names.includes(this.place.tensor) ? this.place.tensor : null };
      const wanted = !this.views.hidden.has("headroom") && answer.columns.includes("headroom/float16");
      const asked = JSON.stringify([loaded.info.version, tensors.name, wanted]);
      if (asked === this.tensorsAsked) return;
      this.tensorsAsked = asked;
      const lines = ["grad_norm", "update_norm", "param_norm"].filter((column) => answer.columns.includes(column));
      const [cells, columns] = await Promise.all([
        wanted ? this.api.heatmap(run, { column: "headroom/float16", buckets: this.buckets, rows: 4096, ...(answer.groups["1"] ? { depth: 1 } : {}) }) : null,
        tensors.name ? this.api.tensor(run, tensors.name, lines) : null,
      ]);
      if (this.loaded?.run !== run || asked !== this.tensorsAsked) return;
      tensors.headroom = cells && leastOf(cells);
      tensors.tensor = columns && exactSeries(columns);
      this.tensors = tensors;
      this.#fitTensors();
      this.#draw();
    } catch (error) {
      if (!(error instanceof Unreachable) && !(error instanceof RouteError)) throw error;
      this.tensorsAsked = ""; // the next one asks again
    }
  }

  /** Why a view has nothing to draw: it is on its way, or was not recorded. @param {ChartSpec} spec @returns {string} */
  #whyEmpty(spec) {
    const { info, nonfiniteAnswer } = /** @type {Loaded} */ (this.loaded);
    const prefix = spec.ofOptimizer ? this.#prefix(info) : "";
    const series = this.#series();
    const has = (/** @type {string[]} */ columns) => spec.lines.some(({ column }) => columns.includes(prefix + column));
    const coming = spec.ofTensors ? !this.tensorsAnswer || (has(this.tensorsAnswer.columns) && !this.tensors[spec.ofTensors])
      : has([...info.columns, ...info.derived].filter((column) => !series.line(column)));
    if (coming) return "loading …";
    if (spec.id === "loss" && nonfiniteAnswer?.step.length) return "no finite loss";
    if (spec.id !== "loss") return `no ${spec.title.toLowerCase()} recorded here`;
    const row = this.table?.runs.find((run) => run.run === this.place.run);
    return row && isPlain(row) ? "no loss found: name its tag with tensorboard --tbnum_map loss=TAG" : "no loss recorded: tell it with monitor.log_loss(loss)";
  }

  /** Room beside the charts for names of tensors, and a chart for the chosen one. */
  #fitTensors() {
    const wide = this.chartRoot.clientWidth > 640;
    this.charts?.setTensors(this.place.dock === "heatmap" ? (wide ? 190 : 112) : 82, this.tensors.name !== null);
  }

  /** @param {Place["dock"]} tab */
  async openDock(tab) {
    this.place.dock = tab;
    const tensors = tab === "heatmap" || tab === "histogram";
    this.tensorsButton.setAttribute("aria-pressed", String(tensors));
    this.findingsButton.setAttribute("aria-pressed", String(tab === "findings"));
    this.dockRoot.hidden = tab === null;
    this.#keepPlace();
    if (tab === "findings" && !this.findings) {
      const { FindingsTable } = await import("./findings.js");
      this.findings ??= new FindingsTable(this.api, {
        go: (step, event) => { if (event) this.select(event, true); else this.goToStep(step); },
        close: () => this.openDock(null),
        figure: async () => (await import("./figure.js")).figure(/** @type {Charts} */ (this.charts), runTitle(this.place.run ?? ""), this.overlay?.active ? this.overlay.named : []),
      });
    }
    if (tensors && !this.dock) {
      const { Dock } = await import("./dock.js");
      this.dock ??= new Dock(this.api, {
        hover: (step) => { this.cursor = null; this.cursorCard.hide(); this.charts?.setCursor(step); this.dock?.setCursor(step); },
        zoom: (from, to) => this.zoom(from, to),
        open: (name, step) => this.openTensor(name, step),
        pin: (step) => { if (step !== this.place.pin) this.pin(step); },
        place: ({ tab: chosen, column }) => { this.place.dock = chosen; this.place.column = column === "grad_norm" ? null : column; this.#keepPlace(); this.#fitTensors(); this.#draw(); },
        close: () => this.openDock(null),
      });
    }
    if (tab === "values" && !this.values) {
      const { ValuesTable } = await import("./values.js");
      this.values ??= new ValuesTable({ close: () => this.openDock(null) });
    }
    if (tab === "runs" && !this.runsTable) {
      const { RunsTable } = await import("./runs.js");
      this.runsTable ??= new RunsTable(this.api, { close: () => this.openDock(null), choose: (run) => this.chooseRun(run), toggle: (run) => this.toggleRun(run), draw: () => this.#draw() });
    }
    const tables = { findings: this.findings, values: this.values, runs: this.runsTable, heatmap: this.dock, histogram: this.dock };
    const shown = tab && tables[tab];
    if (shown && shown.element.parentNode !== this.dockRoot) this.dockRoot.replaceChildren(shown.element);
    if (tensors && this.dock) {
      Object.assign(this.dock.place, { tab, column: this.place.column ?? this.dock.place.column, tensor: this.place.tensor ?? "*" });
    }
    this.#fitTensors();
    this.#draw();
  }

  /** A tensor's lines above, and its histogram below. @param {string | null} name "*" or null: none @param {number | null} step */
  openTensor(name, step) {
    this.place.tensor = name === "*" ? null : name;
    if (this.dock) this.dock.place.tensor = name ?? "*";
    if (step !== null && step !== this.place.pin) this.pin(step);
    if (name === null) this.openDock(this.place.dock);
    else this.openDock("histogram");
    this.#loadTensors();
  }

  /** The first drawing of a run. @param {RunInfo} info */
  #arrived(info) {
    this.#say(null);
    const names = Object.keys(info.meta.optimizers ?? {});
    this.charts?.setOptimizers(names, this.optimizer);
    this.selected = null;
    if (this.place.zoom) this.place.zoom = this.#clamped(...this.place.zoom);
    if (this.place.pin !== null) this.#fetchStep(this.place.pin);
  }

  /** The event of the same step and kind. @param {{step: number, kind: string}} event @returns {TbnumEvent | null} */
  #find({ step, kind }) {
    const lane = this.loaded?.lanes.find((candidate) => candidate.kind.id === laneOf(kind));
    return lane?.events.find((event) => event.step === step && event.kind === kind) ?? null;
  }

  /** @param {RunInfo} info */
  #prefix(info) {
    const names = Object.keys(info.meta.optimizers ?? {});
    return names.length > 1 ? `${names[this.optimizer] ?? names[0]}/` : "";
  }

  /** How many points are asked for: about one a pixel. */
  get buckets() {
    const width = this.charts?.plotWidth ?? 800;
    return Math.max(1024, Math.ceil(width / 256) * 256);
  }

  /** @param {unknown} error */
  #failed(error) {
    this.failures += 1;
    if (error instanceof RouteError && error.status === 404 && this.place.run !== null) {
      this.loaded = null;
      this.#say(problemState("This run cannot be shown", error.message));
      this.failures = 0;
      return;
    }
    if (!(error instanceof RouteError) && !(error instanceof Unreachable)) console.error(error);
    const text = error instanceof Unreachable
      ? "TensorBoard does not answer. Trying again; what was loaded stays."
      : `The server could not answer: ${error instanceof Error ? error.message : error}. Trying again.`;
    this.alert.hidden = false;
    if (this.alert.firstChild?.textContent !== text) {
      this.alert.replaceChildren(element("span", {}, text), button("Try now", "", () => this.poll(true)));
    }
    if (!this.table) this.#say(problemState("Nothing to show yet", text));
    this.#showStatus();
  }

  #recovered() {
    this.failures = 0;
    this.alert.hidden = true;
    this.alert.replaceChildren();
  }

  // ---- What a person does

  /** @param {string} run */
  chooseRun(run) {
    if (run === this.place.run && this.loaded) return;
    const { axis, views, dock, column, over, grouped } = this.place;
    // One that is in the charts already changes places with the current one.
    const others = over.map((one) => (one === run && this.place.run ? this.place.run : one));
    this.place = { ...nowhere(), run, axis, views, dock, column, grouped, over: others };
    this.tensors = { headroom: null, tensor: null, name: null };
    this.tensorsAsked = "";
    this.tensorsAnswer = null;
    this.selected = null;
    this.loaded = null;
    this.following = false;
    this.optimizer = 0;
    this.#keepPlace();
    this.#listRuns();
    this.#waiting(`Loading ${runTitle(run)} …`);
    this.#reload();
  }

  /** Puts a run into the charts beside the current one, or takes it out. @param {string} run */
  toggleRun(run) {
    if (run === this.place.run) return;
    const { over } = this.place;
    const out = over.includes(run);
    this.#setOthers(out ? over.filter((one) => one !== run) : [...over, run]);
    this.#announce(`${runTitle(run)} is ${out ? "no longer" : "now"} in the charts, with ${this.place.over.length} beside ${runTitle(this.place.run ?? "")}.`);
  }

  /** @param {string[]} runs */
  #setOthers(runs) {
    this.place.over = runs;
    this.#listRuns();
    this.#draw();
    this.#keepPlace();
  }

  /** What the x axis counts. @param {Place["axis"]} axis */
  #align(axis) {
    this.place.axis = axis;
    this.#keepPlace();
    if (axis === "updates" && this.loaded && !this.loaded.overview.line("updates")) this.#reload(); // they come with the series
    else this.#draw();
  }

  #listRuns() {
    if (!this.table) return;
    const { place, overlay, filter } = this;
    this.runList.show(this.table, place.run, { over: new Set(place.over), colorOf: (run) => (place.over.length && overlay ? overlay.colorOf(run) : ""), filter });
  }

  /** Says what is to be drawn beside the current run. Its module is loaded when it is first needed. */
  #beside() {
    const { loaded, charts, table, place } = this;
    if (!loaded || !charts || !table) return;
    if (!this.overlay) {
      if (place.over.length) this.#loadOverlay();
      return;
    }
    const prefix = this.#prefix(loaded.info);
    const columns = charts.panes.filter(({ spec }) => spec.id !== "tensor").map(({ spec }) => (spec.ofOptimizer ? prefix : "") + spec.lines[0].column);
    this.overlay.show({
      current: loaded.run, others: place.over.filter((run) => run !== loaded.run), grouped: place.grouped, axis: place.axis, rows: table.runs, lets: (run) => this.runList.lets(run),
      prefix, columns: [...columns, "skipped"], smoothing: this.smoothing, buckets: this.buckets, zoomed: place.zoom !== null,
      range: () => [charts.geometry.min, charts.geometry.max],
    });
  }

  async #loadOverlay() {
    const { Overlay } = await import("./overlay.js");
    if (this.overlay || !this.charts) return;
    const overlay = (this.overlay = new Overlay(this.api, {
      draw: () => this.#draw(), redraw: () => this.charts?.recolor(), failed: (error) => this.#failed(error), choose: (run) => this.chooseRun(run),
      remove: (runs) => this.#setOthers(this.place.over.filter((run) => !runs.includes(run))),
      group: (grouped) => { this.place.grouped = grouped; this.#draw(); this.#keepPlace(); this.#announce(); },
    }));
    this.charts.setOverlay(overlay);
    this.legend.element.after(overlay.bar);
    onHostRuns((runs) => { overlay.know(runs); this.#listRuns(); });
    this.#listRuns();
    this.#draw();
  }

  #reload() {
    this.asked?.abort.abort(); // of other columns
    this.asked = null;
    if (this.loaded) this.loaded = { ...this.loaded, detail: null };
    this.poll(true);
  }

  /** Which views are shown, in which order, how high. @param {Views} views */
  setViews(views) {
    const more = [...this.views.hidden].some((id) => !views.hidden.has(id));
    this.views = views;
    const text = formatViews(views);
    this.place.views = text || null;
    remember("views", text);
    this.charts?.setViews(views);
    this.viewList.replaceChildren(...CHARTS.map(({ id, title }) => {
      const box = element("input", { type: "checkbox", "data-view": id, onchange: () => {
        const hidden = new Set(this.views.hidden);
        if (!hidden.delete(id) && this.views.order.length - hidden.size > 1) hidden.add(id);
        this.setViews({ ...this.views, hidden });
        /** @type {HTMLElement | null} */ (this.viewList.querySelector(`[data-view=${id}]`))?.focus();
      } });
      box.checked = !views.hidden.has(id);
      return element("label", "view-choice", box, title);
    }), button("Runs as a table", "Runs beside each other, and how their settings differ", () => { this.viewMenu.open = false; this.openDock("runs"); }), button("Values as a table", "What the charts show, in numbers", () => { this.viewMenu.open = false; this.openDock("values"); }), button("As at first", "Order, heights and axes as they were", () => this.setViews(firstViews())));
    this.#keepPlace();
    if (!this.loaded) return;
    if (more) {
      this.#loadTensors(); // headroom is not part of the series
      this.#reload();
    }
    this.#draw();
  }

  /** @param {Place} place */
  #goTo(place) {
    if (place.run !== null && place.run !== this.place.run) {
      this.place = place;
      this.loaded = null;
      this.tensorsAnswer = null;
      this.selected = null;
      this.#waiting(`Loading ${runTitle(place.run)} …`);
      this.#reload();
      return;
    }
    this.place = { ...place, run: this.place.run };
    this.#listRuns();
    const views = formatViews(this.views);
    this.place.views = views || null;
    if (place.views !== null && place.views !== views) this.setViews(parseViews(place.views));
    if (!this.loaded) return;
    this.selected = place.event ? this.#find(place.event) : null;
    if (place.zoom) this.place.zoom = this.#clamped(...place.zoom);
    this.#askForDetail();
    this.#align(place.axis);
  }

  /** First and last step; an event may be on disk before its step, or come after the last one. @returns {[number, number]} */
  #extent() {
    const { overview, lanes } = /** @type {Loaded} */ (this.loaded);
    const { first_step: first, last_step: last } = overview.header;
    const others = this.overlay?.extent?.map((x) => Math.max(0, this.charts?.xAxis.stepOf(x) ?? 0)) ?? [];
    return [
      Math.floor(Math.min(first ?? 0, ...lanes.map(({ steps }) => steps[0]), ...others)),
      Math.ceil(Math.max(last ?? 0, ...lanes.map(({ steps }) => steps[steps.length - 1]), ...others)),
    ];
  }

  /** @param {number} from @param {number} to @returns {[number, number] | null} null: everything */
  #clamped(from, to) {
    const [first, last] = this.#extent();
    const span = Math.min(last - first, Math.max(SMALLEST_ZOOM_STEPS, Math.round(to) - Math.round(from)));
    if (span >= last - first) return null;
    const start = Math.round(Math.max(first, Math.min(last - span, (from + to - span) / 2)));
    return [start, start + span];
  }

  /** @param {number} from step @param {number} to step */
  zoom(from, to) {
    if (!this.loaded) return;
    const zoom = this.#clamped(from, to);
    if (this.following && zoom && zoom[1] < this.#extent()[1]) this.following = false;
    this.place.zoom = zoom;
    if (this.cursor !== null && zoom && (this.cursor < zoom[0] || this.cursor > zoom[1])) this.hover(null);
    this.#askForDetail();
    this.#draw();
    this.#keepPlace();
    this.#announce();
  }

  resetZoom() {
    if (!this.loaded || !this.place.zoom) return;
    this.place.zoom = null;
    this.following = false;
    this.#draw();
    this.#keepPlace();
    this.#announce();
  }

  #toggleFollow() {
    if (!this.loaded) return;
    if (!this.place.zoom) { // everything is in view: following is what it does; a window of the newest steps is asked for
      const [first, last] = this.#extent();
      this.following = true;
      this.place.zoom = this.#clamped(Math.max(first, last - 200), last);
    } else {
      this.following = !this.following;
      if (this.following) this.#moveOn();
    }
    this.#askForDetail();
    this.#draw();
    this.#keepPlace();
  }

  /** Keeps the right edge of a following view at the newest step. */
  #moveOn() {
    if (!this.following || !this.place.zoom) return;
    const last = this.#extent()[1];
    const span = this.place.zoom[1] - this.place.zoom[0];
    this.place.zoom = this.#clamped(last - span, last);
    this.#keepPlace();
  }

  /** @param {TbnumEvent | null} event @param {boolean} zoomToIt */
  select(event, zoomToIt) {
    this.selected = event;
    this.place.event = event ? { step: event.step, kind: event.kind } : null;
    if (event && this.loaded) {
      for (const id of [laneOf(event.kind), `${laneOf(event.kind)}/${event.cause ?? "unknown"}`]) this.hidden.delete(id);
      const [from, to] = this.place.zoom ?? this.#extent();
      const inside = event.step >= from && event.step <= to;
      const tight = to - from <= 1.5 * EVENT_ZOOM_STEPS;
      if (zoomToIt && !(inside && tight)) {
        this.following = false;
        this.place.zoom = this.#clamped(event.step - EVENT_ZOOM_STEPS / 2, event.step + EVENT_ZOOM_STEPS / 2);
        this.#askForDetail();
      }
      this.#showValuesOf(event);
    }
    this.#draw();
    this.#keepPlace();
    if (event) this.#announce(typeset(event.message) || event.kind);
  }

  /** Those of the list that keys go through: of the open event's kind, or all. */
  get #reachable() {
    const { selected, eventList: { shown } } = this;
    return selected ? shown.filter(({ kind }) => laneOf(kind) === laneOf(selected.kind)) : shown;
  }

  /** To the next or previous event in the list; where none of it is open, from the cursor, or into the view from its start (back: its end). @param {1 | -1} by */
  #neighbour(by) {
    if (!this.loaded) return;
    const events = this.#reachable;
    const [from, to] = this.place.zoom ?? this.#extent();
    const open = this.selected ? events.indexOf(this.selected) : -1;
    const at = this.selected?.step ?? this.cursor;
    const next = open >= 0 ? events[open + by]
      : by > 0 ? events.find(({ step }) => (at === null ? step >= from : step > at)) : [...events].reverse().find(({ step }) => (at === null ? step <= to : step < at));
    if (next) this.select(next, next.step < from || next.step > to);
  }

  /** The card of the open event, and its place among those that keys go through. */
  #showCard() {
    const events = this.#reachable;
    const index = this.selected ? events.indexOf(this.selected) : -1;
    this.card.show(this.selected, { index, count: events.length });
  }

  #eventText() {
    const { selected, loaded } = this;
    return selected && loaded ? eventText(loaded.run, selected, this.steps.get(selected.step) ?? null, addressOf(this.place)) : "";
  }

  /** @param {string} id */
  #toggleLane(id) {
    if (!this.hidden.delete(id)) this.hidden.add(id);
    this.#draw();
    this.charts?.resize();
  }

  // ---- The cursor

  /** @param {number | null} step */
  hover(step) {
    this.cursor = step;
    clearTimeout(this.hoverTimer);
    this.dock?.setCursor(step);
    if (step === null || !this.loaded) {
      this.charts?.setCursor(null);
      this.cursorCard.hide();
      return;
    }
    this.#showCursor(step);
    if (!this.steps.has(step)) this.hoverTimer = setTimeout(() => this.#fetchStep(step), 30);
  }

  /** @param {number} step */
  async #fetchStep(step) {
    const run = this.place.run;
    if (run === null) return;
    try {
      const values = await this.api.step(run, step);
      if (this.place.run !== run) return;
      if (this.steps.size > 500) this.steps.clear();
      this.steps.set(step, values);
      if (this.cursor === step) this.#showCursor(step);
    } catch (error) {
      if (!(error instanceof Unreachable) && !(error instanceof RouteError)) throw error;
    }
  }

  /** @param {number} step */
  #showCursor(step) {
    if (!this.loaded || !this.charts) return;
    const { overview, lanes, info } = this.loaded;
    const series = this.#series();
    const beyond = step > (overview.header.last_step ?? 0); // where only others go on
    const known = beyond ? { run: "", version: "", step, values: {}, events: [] } : this.steps.get(step) ?? this.#known(step);
    const text = this.cursorCard.show(step, known, {
      beside: this.#valuesBeside(step, known),
      title: beyond && this.place.axis !== "step" ? "After this run's end" : "",
      prefix: this.#prefix(info),
      elapsed: new TimeAxis(series.exact ? series : overview).xOf(step) + (series.exact ? series.wallTime[0] - overview.wallTime[0] : 0),
      events: eventsAt(lanes, step, lowerBound),
      bucket: bucketText(series, step),
      pinned: this.place.pin === null ? null : this.steps.get(this.place.pin) ?? null,
    });
    this.charts.setCursorText(text);
    this.#placeCard();
  }

  /** What the other runs have at the cursor, in the view that it is over. @param {number} step @param {StepValues | null} known */
  #valuesBeside(step, known) {
    const { overlay, charts, loaded } = this;
    if (!overlay?.active || !charts || !loaded) return null;
    const focused = charts.panes.find(({ holder }) => holder === document.activeElement && holder.matches(":focus-visible"));
    const spec = focused?.spec ?? charts.specAt(this.pointerY);
    const name = (spec.ofOptimizer ? this.#prefix(loaded.info) : "") + spec.lines[0].column;
    const series = spec.ofTensors ? this.tensors[spec.ofTensors] : this.#series();
    const line = series?.line(name)?.last;
    let at = series ? lowerBound(series.step, step + 1) - 1 : -1;
    if (spec.lines[0].sparse) while (line && at > 0 && !Number.isFinite(line[at])) at -= 1; // the sample before
    const own = known?.values[name] ?? (line && step <= (loaded.overview.header.last_step ?? 0) ? line[at] : null);
    return overlay.valuesAt(charts.xAxis.xOf(step), spec, typeof own === "number" ? own : null);
  }

  /** Holds a step, so that others are shown with their difference from it; the same step again, or null, lets go. @param {number | null} step */
  pin(step) {
    this.place.pin = step === this.place.pin ? null : step;
    if (this.place.pin !== null && !this.steps.has(this.place.pin)) this.#fetchStep(this.place.pin);
    this.#announce(this.place.pin === null ? "No step is held." : `Step ${formatCount(this.place.pin)} is held; others are shown with their difference from it.`);
    this.charts?.recolor();
    this.#draw();
    this.#keepPlace();
  }

  /** Brings a step into view, near enough to be told from its neighbours, and holds it. @param {number} step */
  goToStep(step) {
    if (!this.loaded || !Number.isFinite(step)) return;
    const [first, last] = this.#extent();
    const target = Math.max(first, Math.min(last, Math.round(step)));
    const [from, to] = this.place.zoom ?? this.#extent();
    if (target < from || target > to || to - from > 1.5 * EVENT_ZOOM_STEPS) this.zoom(target - EVENT_ZOOM_STEPS / 2, target + EVENT_ZOOM_STEPS / 2);
    if (this.place.pin !== target) this.pin(target);
    this.charts?.setCursor(target);
    this.pointerY = this.chartRoot.getBoundingClientRect().top + 60;
    this.hover(target);
  }

  /** What the loaded series tells of a step, until the server's answer is there. @param {number} step @returns {StepValues | null} */
  #known(step) {
    const series = this.#series();
    if (!series.exact) return null;
    const at = lowerBound(series.step, step);
    if (series.step[at] !== step) return null;
    /** @type {Record<string, any>} */
    const values = {};
    for (const [name, array] of series.arrays) values[name] = array[at];
    for (const name of ["lr", "micro_batches", "clip_coef", "skipped"]) values[name] ??= undefined;
    return { run: "", version: "", step, values, events: [] };
  }

  #placeCard() {
    if (this.cursor === null || !this.charts) return;
    this.cursorCard.place(this.charts.clientX(this.cursor), this.pointerY || this.chartRoot.getBoundingClientRect().top + 120);
  }

  /** @param {TbnumEvent} event */
  async #showValuesOf(event) {
    if (!this.steps.has(event.step)) await this.#fetchStep(event.step);
    const values = this.steps.get(event.step);
    if (values) this.card.addValues(event, values);
  }

  // ---- Keys

  /** On a chart: arrows move the cursor, plus and minus zoom. @param {KeyboardEvent} event */
  #chartKey(event) {
    if (!this.loaded || event.altKey || event.metaKey || event.ctrlKey) return;
    const [from, to] = this.place.zoom ?? this.#extent();
    const middle = this.cursor ?? Math.round((from + to) / 2);
    const stride = event.shiftKey ? Math.max(10, Math.round((to - from) / 20)) : 1;
    const move = (/** @type {number} */ step) => {
      const [first, last] = this.#extent();
      const target = Math.max(first, Math.min(last, step));
      if (target < from || target > to) this.zoom(target - (to - from) / 2, target + (to - from) / 2);
      const chart = /** @type {HTMLElement} */ (event.currentTarget);
      this.pointerY = chart.getBoundingClientRect().top + 40;
      this.charts?.setCursor(target);
      this.hover(target);
    };
    const scale = (/** @type {number} */ factor) => this.zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
    switch (event.key) {
      case "ArrowLeft": move(this.cursor === null ? middle : this.cursor - stride); break;
      case "ArrowRight": move(this.cursor === null ? middle : this.cursor + stride); break;
      case "Enter": case " ": if (this.cursor !== null) this.pin(this.cursor); break;
      case "Home": move(from); break;
      case "End": move(to); break;
      case "PageUp": this.zoom(from - (to - from) * 0.9, to - (to - from) * 0.9); break;
      case "PageDown": this.zoom(from + (to - from) * 0.9, to + (to - from) * 0.9); break;
      case "+": case "=": scale(0.5); break;
      case "-": case "_": scale(2); break;
      default: return;
    }
    event.preventDefault();
  }

  /** Anywhere but in a field. @param {KeyboardEvent} event */
  #globalKey(event) {
    const { target } = event;
    if (event.defaultPrevented || event.altKey || event.metaKey || event.ctrlKey) return;
    if (target instanceof HTMLInputElement && !["range", "checkbox"].includes(target.type) || target instanceof HTMLSelectElement) return;
    switch (event.key.toLowerCase()) {
      case "n": this.#neighbour(1); break;
      case "p": this.#neighbour(-1); break;
      case "0": this.resetZoom(); break;
      case "f": this.#toggleFollow(); break;
      case "g": this.stepField.focus(); this.stepField.select(); break;
      case "escape":
        if (this.viewMenu.open) {
          this.viewMenu.open = false;
          this.viewMenu.querySelector("summary")?.focus();
        } else if (this.app.classList.contains("runs-open")) this.#openRuns(false);
        else if (this.cursor !== null) this.hover(null);
        else if (this.place.pin !== null) this.pin(null);
        else if (this.selected) this.select(null, false);
        else this.resetZoom();
        break;
      default: return;
    }
    event.preventDefault();
  }

  // ---- Drawing

  /** The best that is loaded for the view. @returns {Series} */
  #series() {
    const { overview, detail } = /** @type {Loaded} */ (this.loaded);
    const { zoom } = this.place;
    if (!zoom || !detail || !detail.length || detail.bucketSteps >= overview.bucketSteps) return overview;
    const [from, to] = [detail.step[0], detail.stepLast[detail.length - 1]];
    const { first_step: first, last_step: last } = overview.header;
    return Math.max(first ?? 0, zoom[0]) >= from && Math.min(last ?? 0, zoom[1]) <= to ? detail : overview;
  }

  /**
   * Asks for the view, with half of it on either side, where the overview is too coarse for it. What is on its way and
   * covers the view is waited for, so that a quick hand does not call off each answer just before it comes.
   */
  async #askForDetail() {
    const { loaded, asked } = this;
    const { zoom } = this.place;
    if (!loaded || !zoom || loaded.overview.exact) return;
    const span = zoom[1] - zoom[0];
    const [first, last] = this.#extent();
    const bucketSteps = 2 ** Math.max(0, Math.ceil(Math.log2(span / (this.buckets - 2))));
    const around = (/** @type {number} */ margin) => ({ from: Math.max(first, Math.floor(zoom[0] - margin * span)), to: Math.min(last, Math.ceil(zoom[1] + margin * span)) });
    const covers = (/** @type {{from: number | null, to: number | null}} */ known, /** @type {number} */ margin) => {
      const { from, to } = around(margin);
      return known.from !== null && known.to !== null && known.from <= from && known.to >= to;
    };
    const { detail } = loaded;
    if (detail && detail.header.version === loaded.overview.header.version && detail.bucketSteps <= bucketSteps && covers(detail.header, 0.25)) return;
    if (asked && asked.bucketSteps <= 2 * bucketSteps && covers(asked, 0)) return;
    asked?.abort.abort();
    const { from, to } = around(0.5);
    const asking = (this.asked = { from, to, bucketSteps, abort: new AbortController() });
    const { signal } = asking.abort;
    try {
      const fetched = await this.api.series(loaded.run, { columns: this.#columns(loaded.info), from, to, buckets: 2 * this.buckets }, signal);
      if (this.loaded?.run === loaded.run && !signal.aborted && this.loaded.detail !== fetched) {
        this.loaded = { ...this.loaded, detail: fetched };
        this.#draw();
      }
    } catch (error) {
      if (!signal.aborted) this.#failed(error);
    }
    if (this.asked !== asking) return;
    this.asked = null;
    if (this.place.zoom !== zoom && !signal.aborted) this.#askForDetail();
  }

  #draw() {
    const { loaded, charts } = this;
    if (!loaded || !charts) return;
    this.#beside();
    const view = this.place.zoom ?? this.#extent();
    this.legend.show(loaded.lanes, this.hidden);
    charts.show({
      series: this.#series(), overview: loaded.overview, lanes: loaded.lanes, hidden: this.hidden, view,
      axis: this.place.axis, smoothing: this.smoothing, tensors: this.tensors, prefix: this.#prefix(loaded.info), selected: this.selected,
      pinned: this.place.pin, whyEmpty: (spec) => this.#whyEmpty(spec),
    });
    this.overlay?.ask();
    if (this.place.dock === "runs") {
      this.runsTable?.show((this.table?.runs ?? []).filter(({ run }) => this.runList.lets(run)), loaded.run, new Set(this.place.over), (run) => this.overlay?.colorOf(run) ?? "");
    } else if (this.place.dock === "values") {
      this.values?.show(charts.lines, this.#series(), view);
    } else if (this.place.dock === "findings") {
      if (loaded.eventsAnswer) this.findings?.show(loaded.run, loaded.eventsAnswer.events, loaded.eventsAnswer.version);
    } else if (this.dock && this.place.dock) {
      this.dock.show({ run: loaded.run, version: loaded.info.version, view, geometry: charts.geometry, cursor: this.cursor, pinned: this.place.pin ?? this.selected?.step ?? null });
    }
    const listedFrom = [loaded.lanes, ...this.hidden];
    if (listedFrom.length !== this.listedFrom.length || listedFrom.some((part, at) => part !== this.listedFrom[at])) {
      this.listedFrom = listedFrom;
      this.listed = listedEvents(loaded.lanes, this.hidden);
    }
    const total = loaded.lanes.reduce((sum, lane) => sum + lane.events.length, 0);
    this.eventList.known = loaded.info.columns.includes("skipped");
    this.eventList.show(this.listed, loaded.eventsAnswer ? total : null, this.selected);
    this.#showCard();
    this.copyStep.hidden = this.place.pin === null;
    this.resetButton.disabled = !this.place.zoom;
    this.followButton.setAttribute("aria-pressed", String(!this.place.zoom || this.following));
    for (const button of this.axisButtons) button.setAttribute("aria-pressed", String(button.dataset.axis === this.place.axis));
    const series = this.#series();
    this.smoothingLabel.title = series.exact
      ? "Exponential moving average of the loss, step by step"
      : `Exponential moving average of the loss over points that stand for ${counted(series.bucketSteps, "step")} each (the last loss of each)`;
  }

  #resized() {
    const visible = this.#visible();
    const appeared = visible && !this.wasVisible;
    this.wasVisible = visible;
    if (!visible) return;
    this.charts?.resize();
    if (!appeared) return;
    this.#keepPlace();
    this.poll(true);
  }

  #showStatus() {
    const row = this.table?.runs.find((run) => run.run === this.place.run);
    if (!row) {
      this.name.textContent = this.place.run === null ? "Numerics" : runTitle(this.place.run);
      for (const stale of [this.status, this.facts]) stale.textContent = "";
      this.status.className = "";
      return;
    }
    const { state, text } = this.failures ? { state: "unknown", text: "not connected" } : statusOf(row, Date.now() / 1000);
    this.name.textContent = runTitle(row.run);
    this.name.title = runTitle(row.run);
    this.status.className = `status ${state}`;
    this.status.textContent = text;
    this.followButton.hidden = state === "ended" || state === "crashed";
    const { loaded } = this;
    if (!loaded) return;
    const { steps } = loaded.overview.header;
    const facts = [counted(steps, "step")];
    if (loaded.eventsAnswer) facts.push(skipSummary(loaded.eventsAnswer.events, steps, loaded.info.columns.includes("skipped")));
    if (isPlain(row)) facts.unshift("inferred from TensorBoard scalars");
    if (row.last_loss_scale != null) facts.push(`loss scale ${formatScaleShort(row.last_loss_scale)}`);
    if (row.last_wall_time != null && row.first_wall_time != null) facts.push(formatElapsed(row.last_wall_time - row.first_wall_time));
    if ((row.sessions ?? 1) > 1) facts.push(counted(row.sessions ?? 1, "session"));
    this.facts.textContent = facts.join("  ·  ");
    this.facts.title = this.facts.textContent;
  }

  /** @param {string[]} problems */
  #showProblems(problems) {
    this.problems.hidden = problems.length === 0;
    if (!problems.length) return;
    this.problems.replaceChildren(
      element("summary", {}, `${counted(problems.length, "part")} of this log could not be read; what is sound is shown`),
      element("ul", {}, ...problems.slice(0, 100).map((problem) => element("li", {}, problem))),
    );
  }

  /** Shows a message in place of the charts, or the charts again. @param {HTMLElement | null} message */
  #say(message) {
    this.message.hidden = message === null;
    this.content.hidden = message !== null;
    const only = message !== null && !this.table?.runs.length;
    this.app.classList.toggle("bare", only);
    if (message === null) this.message.replaceChildren();
    else if (this.message.textContent !== message.textContent) this.message.replaceChildren(message);
  }

  /** @param {string} text */
  #waiting(text) {
    this.#say(element("div", "notice waiting", element("span", "spinner"), element("p", {}, text)));
  }

  /** Writes the place into the address, once what changes it has come to rest. */
  #keepPlace() {
    clearTimeout(this.placeTimer);
    this.placeTimer = setTimeout(() => { if (this.#visible()) writePlace(this.place); }, 120);
  }

  /** Tells screen readers what is in view now. @param {string} [text] */
  #announce(text) {
    this.live.textContent = text ?? this.charts?.summaries[0] ?? "";
    if (this.place.zoom) this.live.textContent += ` Zoomed to steps ${formatCount(this.place.zoom[0])} to ${formatCount(this.place.zoom[1])}.`;
  }
}

/** The least over all rows of cells, as a chart's series. @param {import("./types.js").Cells} cells @returns {SeriesLike} */
function leastOf({ step, stepLast, bucketSteps, rows, value }) {
  const least = Float64Array.from(step, (_, bucket) => rows.reduce((low, __, row) => {
    const one = value[row * step.length + bucket];
    return one < low || Number.isNaN(low) ? one : low;
  }, NaN));
  return { exact: true, bucketSteps, length: step.length, step, stepLast, line: () => exactLine(least) };
}

/** @param {Map<string, Values>} columns with `step` among them @returns {SeriesLike} */
function exactSeries(columns) {
  const step = /** @type {Float64Array} */ (columns.get("step"));
  return {
    exact: true, bucketSteps: 1, length: step.length, step, stepLast: step,
    line: (name) => exactLine(columns.get(name)),
  };
}

/** What of the loss the drawn point at a step stands for, where it stands for several. @param {Series} series @param {number} step */
function bucketText(series, step) {
  const at = series.exact ? -1 : indexOfStep(series, step);
  const loss = series.line("loss");
  if (at < 0 || !loss) return null;
  const steps = `Drawn here: steps ${formatCount(series.step[at])} to ${formatCount(series.stepLast[at])}`;
  if (!Number.isFinite(loss.min[at])) return `${steps}, no finite loss`;
  const [low, high] = [loss.min[at], loss.max[at]].map((value) => formatNumber(Number(value.toPrecision(4))));
  return `${steps}, loss ${low} to ${high}`;
}

/** @param {number} value */
function clampSmoothing(value) {
  return Number.isFinite(value) ? Math.max(0, Math.min(0.99, value)) : 0.6;
}

/** The run to open where the address names none: the one that was written to last. @param {RunRow[]} runs */
function mostInteresting(runs) {
  const known = runs.filter((run) => run.last_wall_time != null);
  return known.sort((a, b) => (b.last_wall_time ?? 0) - (a.last_wall_time ?? 0))[0];
}
