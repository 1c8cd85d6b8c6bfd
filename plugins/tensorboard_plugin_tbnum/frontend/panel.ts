/**
 * The panel: puts its parts together, and keeps what is shown in step with the server, the address, and what a person
 * does.
 */

import { Api, RouteError, Unreachable } from "./api.ts";
import { Charts, GUTTER } from "./charts.ts";
import { Cursor } from "./cursor.ts";
import { Docks, isOfTensors } from "./docks.ts";
import { element } from "./elements.ts";
import { eventText, stepText } from "./events.ts";
import { formatCount, isPlain, runTitle, statusOf, typeset } from "./format.ts";
import { addressOf, followTheme, isSeen, onPlace, onReload, readPlace, remember, remembered,
  writePlace } from "./host.ts";
import { chartKey, pressShortcut } from "./keys.ts";
import { emptyState, problemState, waitingState, whyEmpty } from "./notices.ts";
import { Page } from "./page.ts";
import { nowhere } from "./place.ts";
import { Polling } from "./polling.ts";
import { RunData } from "./rundata.ts";
import { RunsInCharts } from "./runsincharts.ts";
import { Selection } from "./selection.ts";
import { TensorData } from "./tensordata.ts";
import { firstViews, formatViews, neededColumns, parseViews } from "./views.ts";
import { Zoom, around, clamped, isClose } from "./zoom.ts";

import type { RunInfo, RunRow, RunTable, TbnumEvent } from "./answers.ts";
import type { CursorScene } from "./cursor.ts";
import type { Place } from "./place.ts";
import type { Loaded } from "./rundata.ts";
import type { Views } from "./views.ts";

export class Panel {
  api = new Api();
  place: Place = nowhere();
  table: RunTable | null = null;
  smoothing = clampedSmoothing(Number(remembered("smoothing", "0.6")));
  views = firstViews();
  wasSeen = false;
  placeTimer = 0;
  polling = new Polling({ ask: () => this.#refresh(), failed: (error) => this.#failed(error),
    recovered: () => this.page.warn(null), pace: () => this.#pace() });
  data = new RunData(this.api, { wanted: (run) => this.place.run === run, columns: (info) => this.#columns(info),
    buckets: () => this.buckets, zoom: () => this.place.zoom, extent: () => this.#extent(),
    waiting: (text) => this.#waiting(text), loaded: (first) => this.#loaded(first), settled: () => this.#loadTensors(),
    told: (first) => this.#told(first), refined: () => this.#draw(), failed: (error) => this.#failed(error) });
  tensors = new TensorData(this.api);
  zoom = new Zoom({ place: () => this.place, ready: () => this.data.loaded !== null, extent: () => this.#extent(),
    changed: () => this.#zoomed() });
  docks = new Docks(this.api, { place: () => this.place, opening: (tab) => {
    this.page.showDock(tab);
    this.#keepPlace();
  }, opened: () => {
    this.#fitTensors();
    this.#draw();
  }, tensorChosen: () => this.#loadTensors(), pin: (step) => {
    if (step !== this.place.pin) this.pin(step);
  }, go: (step, event) => {
    if (event) this.select(event, true);
    else this.goToStep(step);
  }, zoom: (from, to) => this.zoom.to(from, to), hover: (step) => {
    this.cursor.leave();
    this.charts.setCursor(step);
    this.docks.tensors?.setCursor(step);
  }, chooseRun: (run) => this.chooseRun(run), toggleRun: (run) => this.runs.toggle(run), draw: () => this.#draw(),
    figure: async () =>
      (await import("./figure.ts")).figure(this.charts, runTitle(this.place.run ?? ""),
        this.runs.overlay?.active ? this.runs.overlay.named : []) });
  cursor = new Cursor(() => this.#cursorScene(), (step) => this.docks.tensors?.setCursor(step));
  selection = new Selection({ choose: (event, zoomToIt) => this.select(event, zoomToIt), go: (by) => this.#goOn(by),
    filtered: () => {
      this.#draw();
      this.charts.resize();
    }, link: () => addressOf(this.place), text: () => this.#eventText(),
    openTensor: (name) => this.docks.openTensor(name, this.selection.event?.step ?? null) });
  charts = new Charts(element("div", "charts"), { zoom: (from, to) => this.zoom.to(from, to),
    reset: () => this.zoom.reset(), pin: (step) => this.pin(step), select: (event) => this.select(event, false),
    hover: (step) => this.cursor.hover(step), key: (event) => this.#chartKey(event),
    views: (views) => this.setViews(views), closeTensor: () => this.docks.openTensor(null, null),
    optimizer: (index) => {
      this.data.optimizer = index;
      this.#reload();
    } });
  runs = new RunsInCharts(this.api, this.charts, { place: () => this.place, choose: (run) => {
    this.page.openRuns(false);
    this.chooseRun(run);
  }, table: () => {
    this.page.openRuns(false);
    this.docks.toggle("runs");
  }, others: (runs) => {
    this.place.over = runs;
    this.#listRuns();
    this.#draw();
    this.#keepPlace();
  }, group: (grouped) => {
    this.place.grouped = grouped;
    this.#draw();
    this.#keepPlace();
    this.#announce();
  }, draw: () => this.#draw(), relist: () => this.#listRuns(), announce: (text) => this.#announce(text),
    failed: (error) => this.#failed(error), arrived: (overlay) => this.selection.legend.element.after(overlay.bar) });
  page: Page;

  constructor(body: HTMLElement) {
    const { legend, card, list } = this.selection;
    const parts = { charts: this.charts.root, dock: this.docks.element, runs: this.runs.list.element,
      legend: legend.element, card: card.element, events: list.element, cursor: this.cursor.card.element };
    this.page = new Page(body, parts, { smooth: (weight) => this.#smooth(weight), align: (axis) => this.#align(axis),
      goToStep: (step) => this.goToStep(step), stepText: () => this.#stepText(),
      openDock: (tab) => this.docks.open(tab), toggleDock: (tab) => this.docks.toggle(tab),
      setViews: (views) => this.setViews(views), follow: () => this.zoom.toggleFollowing(),
      resetZoom: () => this.zoom.reset() });
    this.page.showSmoothing(this.smoothing);
    this.#waiting("Loading …");
  }

  start() {
    this.place = readPlace();
    followTheme(() =>
      requestAnimationFrame(() => {
        this.charts.recolor();
        this.docks.tensors?.recolor();
      })
    );
    onPlace((place) => this.#goTo(place));
    onReload(() => this.polling.poll(true));
    this.setViews(parseViews(this.place.views ?? remembered("views", "")));
    const sizes = new ResizeObserver(() => this.#resized());
    sizes.observe(this.charts.root);
    sizes.observe(document.documentElement);
    document.addEventListener("visibilitychange", () => this.polling.poll(true));
    document.addEventListener("keydown", (event) => pressShortcut(event, this.shortcuts));
    this.charts.root.addEventListener("pointermove", (event) => this.cursor.follow(event.clientY));
    setInterval(() => this.#showStatus(), 5000);
    this.wasSeen = isSeen();
    this.polling.poll(true);
  }

  // ---- What the server knows

  /** @returns whether anything is new */
  async #refresh(): Promise<boolean> {
    const before = this.table;
    const asked = this.place.run;
    // A run that the address names is fetched beside the table, not after it.
    const early = asked !== null && before === null ? this.data.load(asked).catch(() => false) : null;
    const table = (this.table = await this.api.runs());
    if (this.place.run === null && table.runs.length) {
      this.place.run = lastWritten(table.runs).run;
      this.#keepPlace();
    }
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
    const changed = (asked === run && loaded) || (await this.data.load(run));
    this.#showStatus();
    if (this.place.over.length && (table !== before || this.runs.overlay?.stale)) {
      this.#draw();
      this.runs.overlay?.ask(true);
    }
    return changed || table !== before;
  }

  /** What to expect of the runs in the charts. */
  #pace(): "running" | "scanning" | "resting" {
    const { table, place } = this;
    if (table?.state === "scanning") return "scanning";
    const training = table?.runs.some((row) =>
      (row.run === place.run || place.over.includes(row.run)) && statusOf(row, Date.now() / 1000).state === "training"
    );
    return training ? "running" : "resting";
  }

  #runIsGone(run: string, table: RunTable) {
    const text = `${table.logdir} has no run of the name ${runTitle(run)}. It may have been moved or deleted.`;
    this.data.loaded = null;
    this.#showStatus();
    this.#say(
      table.runs.length ? problemState("This run is not there", `${text} Choose another one.`)
        : emptyState(table.logdir, false),
    );
  }

  /** There is something new of the chosen run. @param first whether nothing of it was drawn before */
  #loaded(first: boolean) {
    const { info } = this.data.loaded as Loaded;
    const { pin, zoom } = this.place;
    if (first) {
      this.#say(null);
      this.charts.setOptimizers(Object.keys(info.meta.optimizers ?? {}), this.data.optimizer);
      this.selection.event = null;
      if (zoom) this.zoom.put(...zoom);
    }
    if (pin !== null && !this.data.steps.has(pin)) this.cursor.fetch(pin);
    this.page.showProblems(info.problems);
    if (this.zoom.keepUp()) this.#keepPlace();
    this.data.refine();
    this.#draw();
    this.#showStatus();
  }

  /** Its events have come. */
  #told(first: boolean) {
    const { selection } = this;
    selection.event = this.data.find(first ? this.place.event : selection.event);
    if (first && selection.event) this.#showValuesOf(selection.event);
    this.#draw();
    this.#showStatus();
  }

  /** What is asked for of a run. */
  #columns(info: RunInfo) {
    const columns = neededColumns([...info.columns, ...info.derived], this.data.prefix(info), this.views.hidden);
    return this.place.axis === "updates" ? [...columns, "updates"] : columns;
  }

  /** How many points are asked for: about one a pixel. */
  get buckets() {
    return Math.max(1024, Math.ceil(this.charts.plotWidth / 256) * 256);
  }

  #failed(error: unknown) {
    this.polling.failures += 1;
    if (error instanceof RouteError && error.status === 404 && this.place.run !== null) {
      this.data.loaded = null;
      this.#say(problemState("This run cannot be shown", error.message));
      this.polling.failures = 0;
      return;
    }
    if (!(error instanceof RouteError) && !(error instanceof Unreachable)) console.error(error);
    const text = error instanceof Unreachable
      ? "TensorBoard does not answer. Trying again; what was loaded stays."
      : `The server could not answer: ${error instanceof Error ? error.message : error}. Trying again.`;
    this.page.warn(text, () => this.polling.poll(true));
    if (!this.table) this.#say(problemState("Nothing to show yet", text));
    this.#showStatus();
  }

  #reload() {
    this.data.dropDetail();
    this.polling.poll(true);
  }

  // ---- Runs

  #listRuns() {
    this.runs.show(this.table);
  }

  chooseRun(run: string) {
    if (run === this.place.run && this.data.loaded) return;
    const { axis, views, dock, column, over, grouped } = this.place;
    // One that is in the charts already changes places with the current one.
    const others = over.map((one) => (one === run && this.place.run ? this.place.run : one));
    this.#leaveFor({ ...nowhere(), run, axis, views, dock, column, grouped, over: others });
    this.#keepPlace();
    this.#listRuns();
  }

  /** To another run. */
  #leaveFor(place: Place) {
    this.place = place;
    this.zoom.following = false;
    this.data.optimizer = 0;
    this.tensors.forget();
    this.selection.event = null;
    this.data.loaded = null;
    this.#waiting(`Loading ${runTitle(place.run ?? "")} …`);
    this.#reload();
  }

  // ---- Tensors

  /** Finds out whether the run has tensors, and fetches what the charts show of them. */
  async #loadTensors() {
    const { loaded } = this.data;
    if (!loaded) return;
    try {
      const answer = await this.api.tensors(loaded.run);
      if (this.data.loaded?.run !== loaded.run) return;
      this.tensors.answer = answer;
      const has = answer.names.length > 0;
      this.page.tensorsButton.hidden = !has;
      this.selection.card.hasTensors = has;
      const { dock, tensor } = this.place;
      if (!has && isOfTensors(dock)) this.docks.open(null);
      else if (dock && this.docks.element.hidden) this.docks.open(dock);
      const fresh = await this.tensors.load(loaded, { tensor, headroom: !this.views.hidden.has("headroom"),
        buckets: this.buckets });
      if (!fresh || this.data.loaded?.run !== loaded.run) return;
      this.#fitTensors();
      this.#draw();
    } catch (error) {
      if (!(error instanceof Unreachable) && !(error instanceof RouteError)) throw error;
      this.tensors.asked = ""; // the next one asks again
    }
  }

  /** Room beside the charts for names of tensors, and a chart for the chosen one. */
  #fitTensors() {
    const wide = this.charts.root.clientWidth > 640;
    this.charts.setTensors(this.place.dock === "heatmap" ? (wide ? 190 : 112) : GUTTER,
      this.tensors.shown.name !== null);
  }

  // ---- The view

  /** Which views are shown, in which order, how high. */
  setViews(views: Views) {
    const more = [...this.views.hidden].some((id) => !views.hidden.has(id));
    this.views = views;
    const text = formatViews(views);
    this.place.views = text || null;
    remember("views", text);
    this.charts.setViews(views);
    this.page.showViews(views);
    this.#keepPlace();
    if (!this.data.loaded) return;
    if (more) {
      this.#loadTensors(); // headroom is not part of the series
      this.#reload();
    }
    this.#draw();
  }

  /** To where an address leads. */
  #goTo(place: Place) {
    const { run, dock, tensor } = this.place;
    const other = place.run !== null && place.run !== run;
    if (other) this.#leaveFor(place);
    else this.place = { ...place, run };
    this.#keepPlace();
    this.#listRuns();
    const views = formatViews(this.views);
    if (place.views !== null && place.views !== views) this.setViews(parseViews(place.views));
    else this.place.views = views || null;
    if (place.dock !== dock || place.tensor !== tensor) this.docks.open(place.dock);
    if (other || !this.data.loaded) return;
    if (place.tensor !== tensor) this.#loadTensors();
    if (place.pin !== null) this.cursor.fetch(place.pin);
    this.selection.event = this.data.find(place.event);
    if (place.zoom) this.zoom.put(...place.zoom);
    this.data.refine();
    this.#align(place.axis);
  }

  /** What the x axis counts. */
  #align(axis: Place["axis"]) {
    this.place.axis = axis;
    this.#keepPlace();
    // they come with the series
    if (axis === "updates" && this.data.loaded && !this.data.loaded.overview.line("updates")) this.#reload();
    else this.#draw();
  }

  #smooth(weight: number) {
    this.smoothing = clampedSmoothing(weight);
    this.page.showSmoothing(this.smoothing);
    remember("smoothing", String(this.smoothing));
    this.#draw();
  }

  /** First and last step of all that is in the charts. */
  #extent(): [number, number] {
    return this.data.extent(this.runs.overlay?.extent?.map((x) => Math.max(0, this.charts.xAxis.stepOf(x))) ?? []);
  }

  /** Another interval is in view. */
  #zoomed() {
    const { step } = this.cursor;
    const [from, to] = this.zoom.view;
    if (step !== null && (step < from || step > to)) this.cursor.hover(null);
    this.data.refine();
    this.#draw();
    this.#keepPlace();
    this.#announce();
  }

  // ---- Events

  select(event: TbnumEvent | null, zoomToIt: boolean) {
    this.selection.choose(event);
    this.place.event = event ? { step: event.step, kind: event.kind } : null;
    if (event && this.data.loaded) {
      if (zoomToIt && !isClose(event.step, this.zoom.view)) {
        this.zoom.following = false;
        this.zoom.put(...around(event.step));
        this.data.refine();
      }
      this.#showValuesOf(event);
    }
    this.#draw();
    this.#keepPlace();
    if (event) this.#announce(typeset(event.message) || event.kind);
  }

  /** To the next or previous event. */
  #goOn(by: 1 | -1) {
    if (!this.data.loaded) return;
    const [from, to] = this.zoom.view;
    const next = this.selection.neighbour(by, [from, to], this.cursor.step);
    if (next) this.select(next, next.step < from || next.step > to);
  }

  async #showValuesOf(event: TbnumEvent) {
    const values = await this.cursor.fetch(event.step);
    if (values) this.selection.card.addValues(event, values);
  }

  #eventText() {
    const { selection: { event }, data: { loaded, steps } } = this;
    return event && loaded ? eventText(loaded.run, event, steps.get(event.step) ?? null, addressOf(this.place)) : "";
  }

  // ---- Cursor and keys

  #cursorScene(): CursorScene | null {
    const { data, charts, place: { pin, axis, zoom } } = this;
    const { loaded } = data;
    return loaded
      && { data, charts, overlay: this.runs.overlay, loaded, pin, axis, prefix: data.prefix(),
        series: data.series(zoom), tensors: this.tensors.shown };
  }

  /** Holds a step, so that others are shown with their difference from it; the same step again, or null, lets go. */
  pin(step: number | null) {
    const pin = (this.place.pin = step === this.place.pin ? null : step);
    if (pin !== null && !this.data.steps.has(pin)) this.cursor.fetch(pin);
    this.#announce(
      pin === null ? "No step is held."
        : `Step ${formatCount(pin)} is held; others are shown with their difference from it.`,
    );
    this.charts.recolor();
    this.#draw();
    this.#keepPlace();
  }

  async #stepText() {
    const { pin, run } = this.place;
    return pin === null || run === null ? "" : stepText(run, await this.api.step(run, pin), addressOf(this.place));
  }

  /** Brings a step into view, near enough to be told from its neighbours, and holds it. */
  goToStep(step: number) {
    if (!this.data.loaded || !Number.isFinite(step)) return;
    const target = clamped(Math.round(step), this.#extent());
    if (!isClose(target, this.zoom.view)) this.zoom.to(...around(target));
    if (this.place.pin !== target) this.pin(target);
    this.cursor.put(target, this.charts.root, 60);
  }

  #chartKey(event: KeyboardEvent) {
    if (!this.data.loaded) return;
    const view = this.zoom.view;
    chartKey(event, { view, cursor: this.cursor.step, pin: (step) => this.pin(step),
      zoom: (from, to) => this.zoom.to(from, to), moveTo: (wanted) => {
        const step = clamped(wanted, this.#extent());
        if (step < view[0] || step > view[1]) this.zoom.to(...around(step, view[1] - view[0]));
        this.cursor.put(step, event.currentTarget as HTMLElement, 40);
      } });
  }

  /** Keys that are heard anywhere but in a field. */
  shortcuts: Record<string, () => void> = { n: () => this.#goOn(1), p: () => this.#goOn(-1), 0: () => this.zoom.reset(),
    f: () => {
      if (!this.page.followButton.hidden) this.zoom.toggleFollowing();
    }, g: () => {
      this.page.stepField.focus();
      this.page.stepField.select();
    }, escape: () => {
      if (this.page.closeMenus()) return;
      if (this.cursor.step !== null) this.cursor.hover(null);
      else if (this.place.pin !== null) this.pin(null);
      else if (this.selection.event) this.select(null, false);
      else this.zoom.reset();
    } };

  // ---- Drawing

  #draw() {
    const { data: { loaded }, charts, place, selection, runs } = this;
    if (!loaded) return;
    const prefix = this.data.prefix();
    if (this.table)
      runs.prepare({ current: loaded.run, rows: this.table.runs, prefix, smoothing: this.smoothing,
        buckets: this.buckets });
    const view = this.zoom.view;
    const series = this.data.series(place.zoom);
    selection.showLegend(loaded); // it may take room from the charts
    charts.show({ series, overview: loaded.overview, lanes: loaded.lanes, hidden: selection.hidden, view,
      axis: place.axis, smoothing: this.smoothing, tensors: this.tensors.shown, prefix, selected: selection.event,
      pinned: place.pin,
      whyEmpty: (spec) =>
        whyEmpty(spec, loaded, { series, prefix, tensors: this.tensors, plain: !!this.#row && isPlain(this.#row) }) });
    runs.overlay?.ask();
    this.docks.show(place.dock, { loaded, charts, overlay: runs.overlay, series, prefix, view, cursor: this.cursor.step,
      pinned: place.pin ?? selection.event?.step ?? null, over: new Set(place.over),
      runs: (this.table?.runs ?? []).filter(({ run }) => runs.list.lets(run)), colorOf: (run) => runs.colorOf(run) });
    selection.show(loaded);
    this.page.showTools(place, series, this.zoom.following);
  }

  #resized() {
    const seen = isSeen();
    const appeared = seen && !this.wasSeen;
    this.wasSeen = seen;
    if (!seen) return;
    this.charts.resize();
    if (!appeared) return;
    this.#keepPlace();
    this.polling.poll(true);
  }

  /** The chosen run in the table. */
  get #row() {
    return this.table?.runs.find(({ run }) => run === this.place.run);
  }

  #showStatus() {
    this.page.showStatus(this.place.run, this.#row, this.data.loaded, this.polling.failures === 0);
  }

  /** Shows a message in place of the charts, or the charts again. */
  #say(message: HTMLElement | null) {
    this.page.say(message, !this.table?.runs.length);
  }

  #waiting(text: string) {
    this.#say(waitingState(text));
  }

  /** Writes the place into the address, once what changes it has come to rest. */
  #keepPlace() {
    clearTimeout(this.placeTimer);
    this.placeTimer = setTimeout(() => {
      if (isSeen()) writePlace(this.place);
    }, 120);
  }

  /** Tells screen readers what is in view now. */
  #announce(text: string = this.charts.summaries[0] ?? "") {
    const { zoom } = this.place;
    this.page.announce(text + (zoom ? ` Zoomed to steps ${formatCount(zoom[0])} to ${formatCount(zoom[1])}.` : ""));
  }
}

function clampedSmoothing(value: number) {
  return Number.isFinite(value) ? Math.max(0, Math.min(0.99, value)) : 0.6;
}

/** The run to open where the address names none: the one that was written to last. */
function lastWritten(runs: RunRow[]) {
  const known = runs.filter((run) => run.last_wall_time != null);
  return known.sort((a, b) => (b.last_wall_time ?? 0) - (a.last_wall_time ?? 0))[0] ?? runs[0];
}
