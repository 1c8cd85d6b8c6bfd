/**
 * The page of the panel: its bar of tools and menus around the charts, what it says, and what it says in their place.
 */

import { changeViews, fold, goToStep, isOfTensors, reload, resetViews, smooth, textOfStep,
  toggleDock } from "./actions.ts";
import { button, copyButton, element, figureButtons } from "./elements.ts";
import { counted, formatCount, formatElapsed, formatScaleShort, isPlain, parseCount, runTitle,
  statusOf } from "./format.ts";
import { rowOf, seriesOf, viewOf } from "./state.ts";
import { CHARTS, toggleView } from "./views.ts";
import { resetZoom, toggleFollowing } from "./zoom.ts";

import type { RunRow } from "./answers.ts";
import type { Api } from "./api.ts";
import type { Figure } from "./elements.ts";
import type { Loaded } from "./rundata.ts";
import type { PanelStore } from "./state.ts";

export class Page {
  alert = element("div", { class: "alert", role: "alert", hidden: true });
  name = element("h1", {}, "Numerics");
  status = element("span", "status");
  facts = element("p", "facts-line");
  problems = element("details", { class: "problems", hidden: true });
  message = element("div", "message");
  live = element("p", { class: "visually-hidden", role: "status" });
  content: HTMLDivElement;
  runsButton = button("Runs", "", () => this.#openRuns());
  eventsButton = button("Events", "Show the events again", () => fold(this.store, "events"));
  smoothing: { slider: HTMLInputElement; value: HTMLOutputElement; label: HTMLLabelElement };
  axisButtons: HTMLButtonElement[];
  stepField: HTMLInputElement;
  copyStep: HTMLButtonElement;
  findingsButton: HTMLButtonElement;
  tensorsButton: HTMLButtonElement;
  viewList = element("div", { class: "view-list", role: "group", "aria-label": "Views" });
  viewMenu = element("details", { class: "menu", ontoggle: () => this.#fitMenu() },
    element("summary", { class: "small" }, "Views"), this.viewList);
  saveList = element("div", { class: "save-list", role: "group", "aria-label": "Save" });
  saveMenu = element("details", { class: "menu", ontoggle: () => this.#fitMenu() },
    element("summary", { class: "small" }, "Save"), this.saveList);
  followButton: HTMLButtonElement;
  resetButton: HTMLButtonElement;
  app: HTMLDivElement;

  constructor(readonly store: PanelStore, readonly api: Api, readonly figure: Figure, body: HTMLElement,
    parts: { charts: HTMLElement; dock: HTMLElement; runs: HTMLElement; legend: HTMLElement; card: HTMLElement;
      events: HTMLElement; cursor: HTMLElement }) {
    this.content = element(
      "div",
      "content",
      element("div", "center", parts.legend, parts.charts, parts.dock),
      element("aside", { class: "side", "aria-label": "Events of the run" }, parts.card, parts.events),
    );
    this.runsButton.classList.add("runs-button");
    this.runsButton.setAttribute("aria-expanded", "false");
    const slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01,
      oninput: () => smooth(store, Number(slider.value)) });
    const value = element("output");
    this.smoothing = { slider, value, label: element("label", "smoothing", "Smoothing", slider, value) };
    this.axisButtons = axisButtons(store);
    this.stepField = stepField(store);
    this.copyStep = copyButton("Copy step", "Every value of the held step as text, for a bug report",
      () => textOfStep(store, api));
    this.findingsButton = button("Findings", "Findings and events as a table; files to save",
      () => toggleDock(store, "findings"));
    this.tensorsButton = button("Tensors", "Heat map and histograms of the tensors",
      () => toggleDock(store, "heatmap"));
    this.tensorsButton.hidden = this.copyStep.hidden = true;
    this.followButton = button("Follow", "Keep the newest step in view (F)", () => toggleFollowing(store));
    this.resetButton = button("Reset zoom", "Show all steps (double click, or 0)", () => resetZoom(store));
    const bar = element(
      "header",
      "bar",
      this.runsButton,
      element("div", "heading", element("div", "heading-line", this.name, this.status), this.facts),
      element(
        "div",
        "tools",
        this.smoothing.label,
        element("div", { class: "segmented", role: "group", "aria-label": "Horizontal axis" }, ...this.axisButtons),
        this.stepField,
        this.copyStep,
        this.findingsButton,
        this.tensorsButton,
        this.viewMenu,
        this.saveMenu,
        this.followButton,
        this.resetButton,
        this.eventsButton,
      ),
    );
    const stage = element("main", { class: "stage", "aria-label": "Numerics of a run" }, bar, this.problems,
      this.content, this.message, this.live);
    this.app = element("div", "app", parts.runs, stage);
    body.append(this.alert, this.app, parts.cursor);
    document.addEventListener("pointerdown", (event) => {
      for (const menu of [this.viewMenu, this.saveMenu])
        if (event.target instanceof Node && !menu.contains(event.target)) menu.open = false;
    });
    this.#watch();
  }

  #watch() {
    const { store, store: { state } } = this;
    store.watch(["runsOpen"], () => this.#showRuns());
    store.watch(["folded"], () => this.#showFolded());
    store.watch(["smoothing"], () => this.#showSmoothing());
    store.watch(["views"], () => this.#showViews());
    store.watch(["dock", "tensors"], () => this.#showDock());
    store.watch(["pin", "zoom", "axis", "following", "loaded", "detail"], () => this.#showTools());
    store.watch(["run", "table", "loaded", "connected", "now"], () => this.showStatus());
    store.watch(["loaded"], () => this.#showProblems(state.loaded?.info.problems ?? []));
    store.watch(["warning"], () => this.#warn(state.warning));
    store.watch(["message", "table"], () => this.#say(state.message));
    store.watch(["said"], () => {
      this.live.textContent = state.said;
    });
    this.#showSmoothing();
    this.#showViews();
    this.#showFolded();
  }

  /** The menu opens to the left of its button's right edge, and further right where that would leave the window. */
  #fitMenu() {
    this.#listSaves();
    for (const list of [this.viewList, this.saveList]) {
      list.style.right = "0";
      list.style.right = `${Math.min(0, list.getBoundingClientRect().left - 8)}px`;
    }
  }

  // ---- Menus

  /** Unfolds the runs; on narrow windows they open over the charts. */
  #openRuns() {
    const { store, store: { state } } = this;
    if (state.folded.has("runs")) fold(store, "runs");
    else store.set({ runsOpen: !state.runsOpen });
  }

  #showFolded() {
    const { folded } = this.store.state;
    this.app.classList.toggle("no-runs", folded.has("runs"));
    this.content.classList.toggle("no-events", folded.has("events"));
    this.runsButton.classList.toggle("unfolds", folded.has("runs"));
    this.eventsButton.hidden = !folded.has("events");
  }

  /** On narrow windows the runs open over the charts. */
  #showRuns() {
    const { runsOpen } = this.store.state;
    this.app.classList.toggle("runs-open", runsOpen);
    this.runsButton.setAttribute("aria-expanded", String(runsOpen));
  }

  /** Files of exactly what is in view. */
  #listSaves() {
    const { store: { state }, api } = this;
    if (!state.loaded || !this.saveMenu.open) return;
    const { run } = state.loaded;
    const [from, to] = viewOf(state).map(Math.round);
    const view = state.zoom ? { from, to } : {};
    const link = (what: "steps" | "events", format: "csv" | "json") =>
      element("a", { class: "save", href: api.exportUrl(run, what, format, view), download: "", onclick: () => {
        this.saveMenu.open = false;
      } }, `${what === "steps" ? "Steps" : "Events"} in view (${format.toUpperCase()})`);
    const figures = figureButtons(this.figure, () => run, () => {
      this.saveMenu.open = false;
    });
    this.saveList.replaceChildren(link("steps", "csv"), link("steps", "json"), link("events", "csv"),
      link("events", "json"), ...figures);
  }

  /** Closes what is open over the charts. @returns whether anything was */
  closeMenus(): boolean {
    for (const menu of [this.viewMenu, this.saveMenu]) {
      if (!menu.open) continue;
      menu.open = false;
      menu.querySelector("summary")?.focus();
      return true;
    }
    const { runsOpen } = this.store.state;
    this.store.set({ runsOpen: false });
    return runsOpen;
  }

  /** The menu of views. */
  #showViews() {
    const { store, store: { state: { views } } } = this;
    const choices = CHARTS.map(({ id, title }) => {
      const box = element("input", { type: "checkbox", "data-view": id, onchange: () => {
        changeViews(store, (chosen) => toggleView(chosen, id));
        this.viewList.querySelector<HTMLElement>(`[data-view=${id}]`)?.focus();
      } });
      box.checked = !views.hidden.has(id);
      return element("label", "view-choice", box, title);
    });
    const opens = (label: string, title: string, tab: "runs" | "values") =>
      button(label, title, () => {
        this.viewMenu.open = false;
        store.set({ dock: tab });
      });
    this.viewList.replaceChildren(
      ...choices,
      opens("Runs as a table", "Runs beside each other, and how their settings differ", "runs"),
      opens("Values as a table", "What the charts show, in numbers", "values"),
      button("As at first", "Order, heights and axes as they were", () => resetViews(store)),
    );
  }

  // ---- What the tools show

  #showSmoothing() {
    const { smoothing: weight } = this.store.state;
    this.smoothing.slider.value = String(weight);
    this.smoothing.value.textContent = weight.toFixed(2);
  }

  #showDock() {
    const { dock, tensors: { answer } } = this.store.state;
    this.tensorsButton.hidden = !answer?.names.length;
    this.tensorsButton.setAttribute("aria-pressed", String(isOfTensors(dock)));
    this.findingsButton.setAttribute("aria-pressed", String(dock === "findings"));
  }

  #showTools() {
    const { state } = this.store;
    if (!state.loaded) return;
    const { zoom, axis, pin, following } = state;
    const series = seriesOf(state);
    this.copyStep.hidden = pin === null;
    this.resetButton.disabled = !zoom;
    this.followButton.setAttribute("aria-pressed", String(!zoom || following));
    for (const made of this.axisButtons) made.setAttribute("aria-pressed", String(made.dataset.axis === axis));
    this.smoothing.label.title = series.exact
      ? "Exponential moving average of the loss, step by step"
      : `Exponential moving average of the loss over points that stand for ${
        counted(series.bucketSteps, "step")
      } each (the last loss of each)`;
  }

  // ---- What it says

  /** Which run, and how it does. */
  showStatus() {
    const { state } = this.store;
    const { run, loaded, connected } = state;
    const row = rowOf(state);
    this.name.textContent = run === null ? "Numerics" : runTitle(run);
    if (!row) {
      this.status.className = this.status.textContent = "";
      this.#showFacts([]);
      return;
    }
    const own = statusOf(row, Date.now() / 1000);
    const { state: how, text } = connected ? own : { state: "unknown", text: "not connected" };
    this.name.title = runTitle(row.run);
    this.status.className = `status ${how}`;
    this.status.textContent = text;
    this.followButton.hidden = own.state === "ended" || own.state === "crashed";
    this.#showFacts(loaded ? factsOf(row, loaded) : []);
  }

  #showFacts(facts: string[]) {
    this.facts.textContent = this.facts.title = facts.join("  ·  ");
  }

  /** @param problems of the log */
  #showProblems(problems: string[]) {
    this.problems.hidden = problems.length === 0;
    if (!problems.length) return;
    this.problems.replaceChildren(
      element("summary", {},
        `${counted(problems.length, "part")} of this log could not be read; what is sound is shown`),
      element("ul", {}, ...problems.slice(0, 100).map((problem) => element("li", {}, problem))),
    );
  }

  /** Above everything: what the server did not do. */
  #warn(text: string | null) {
    this.alert.hidden = text === null;
    if (text === null) this.alert.replaceChildren();
    else if (this.alert.firstChild?.textContent !== text)
      this.alert.replaceChildren(element("span", {}, text), button("Try now", "", () => reload(this.store)));
  }

  /** Shows a message in place of the charts, or the charts again. */
  #say(message: HTMLElement | null) {
    this.message.hidden = message === null;
    this.content.hidden = message !== null;
    this.app.classList.toggle("bare", message !== null && !this.store.state.table?.runs.length);
    if (message === null) this.message.replaceChildren();
    else if (this.message.textContent !== message.textContent) this.message.replaceChildren(message);
  }
}

/** What the x axis counts. */
function axisButtons(store: PanelStore) {
  const axes = [["step", "Step", "By step"], ["time", "Time", "By time since the first step"], ["updates", "Updates",
    "By updates done: skipped steps are left out"]] as const;
  return axes.map(([axis, label, title]) => {
    const made = button(label, title, () => store.set({ axis }));
    made.dataset.axis = axis;
    return made;
  });
}

/** Goes to a step by its number, as people write it. */
function stepField(store: PanelStore) {
  const field = element("input", { class: "search step-field", type: "text", inputmode: "numeric",
    placeholder: "Go to step", "aria-label": "Go to step (G)", onkeydown: (event) => {
      field.setCustomValidity("");
      if (event.key !== "Enter" || !field.value.trim()) return;
      const step = parseCount(field.value);
      if (step !== null) return goToStep(store, step);
      field.setCustomValidity("Give the number of a step, as in 1200 or 1,200");
      field.reportValidity();
    } });
  return field;
}

/** A run in a line: how far it is, then what matters. */
function factsOf(row: RunRow, { overview, eventsAnswer, info }: Loaded) {
  const { steps } = overview.header;
  const written = info.problems.length ? row.steps ?? 0 : 0; // as its writers counted; the list of runs has these
  return [
    isPlain(row) ? "inferred from TensorBoard scalars" : "",
    steps < written ? `${formatCount(steps)} of ${counted(written, "step")} could be read` : counted(steps, "step"),
    ...(eventsAnswer?.headline ?? []),
    row.last_loss_scale == null ? "" : `loss scale ${formatScaleShort(row.last_loss_scale)}`,
    row.last_wall_time != null && row.first_wall_time != null
      ? formatElapsed(row.last_wall_time - row.first_wall_time) : "",
    (row.sessions ?? 1) > 1 ? counted(row.sessions ?? 1, "session") : "",
  ].filter(Boolean);
}
