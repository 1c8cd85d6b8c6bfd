/** The panel: puts its parts together, and keeps address, memory and server in step with what is shown. */

import { goOn, goTo, hover, pin, reload, say, select, showWhatLed } from "./actions.ts";
import { Api } from "./api.ts";
import { Charts } from "./charts.ts";
import { Cursor } from "./cursor.ts";
import { Docks } from "./docks.ts";
import { followTheme, isSeen, onPlace, onReload, readPlace, remember, writePlace } from "./host.ts";
import { pressShortcut } from "./keys.ts";
import { showKeys } from "./keyhelp.ts";
import { waitingState } from "./notices.ts";
import { Page } from "./page.ts";
import { RunsInCharts } from "./runsincharts.ts";
import { Selection } from "./selection.ts";
import { Server } from "./server.ts";
import { PLACE_KEYS, chosenEvent, makeStore, placeOf, stateOf, viewOf } from "./state.ts";
import { formatViews } from "./views.ts";
import { resetZoom, toggleFollowing } from "./zoom.ts";

const STATUS_MS = 5000;
const PLACE_MS = 120; // until what changes the address has come to rest

/** Makes the panel in a page, and starts it. Who is made first draws first. */
export function startPanel(body: HTMLElement) {
  const store = makeStore();
  const { state } = store;
  const api = new Api();
  const server = new Server(api, store);
  const selection = new Selection(store);
  const runs: RunsInCharts = new RunsInCharts(api, store, () => charts,
    (overlay) => {
      selection.legend.element.after(overlay.legend.element);
      selection.card.element.before(overlay.baseline.element);
    });
  const charts = new Charts(store);
  const docks = new Docks(api, store, charts, runs);
  selection.watch();
  const cursor = new Cursor(store, charts, server.data, runs);
  const page = new Page(store, api, (form) => docks.figure(form), body, { charts: charts.root, dock: docks.element,
    runs: runs.list.element, legend: selection.legend.element, card: selection.card.element,
    events: selection.list.element, cursor: cursor.card.element });

  keepPlace();
  store.watch(["zoom"], () => {
    const [from, to] = state.loaded ? viewOf(state) : [0, 0];
    if (state.cursor !== null && (state.cursor < from || state.cursor > to)) hover(store, null);
    if (state.loaded) say(store, charts.summaries[0] ?? "");
  });
  store.set({ message: waitingState("Loading …") });
  store.set(stateOf(readPlace()));
  followTheme(() =>
    requestAnimationFrame(() => {
      charts.recolor();
      docks.tensors?.recolor();
    })
  );
  onPlace((other) => goTo(store, other));
  onReload(() => reload(store));
  watchSize();
  document.addEventListener("visibilitychange", () => reload(store));
  document.addEventListener("keydown", (event) => pressShortcut(event, shortcuts()));
  setInterval(() => store.set({ now: Date.now() / 1000 }), STATUS_MS);
  reload(store);

  /** The address follows the state; what the browser remembers, only what a person chose here. */
  function keepPlace() {
    let timer = 0;
    const write = () => {
      clearTimeout(timer);
      timer = setTimeout(() => {
        if (isSeen()) writePlace(placeOf(state));
      }, PLACE_MS);
    };
    store.watch([...PLACE_KEYS, "asked"], write);
    store.watch(["folded"], () => remember("folded", [...state.folded].join()));
    store.watch(["own"], () => {
      remember("views", formatViews(state.own.views));
      remember("smoothing", String(state.own.smoothing));
    });
  }

  function watchSize() {
    let wasSeen = isSeen();
    const sizes = new ResizeObserver(() => {
      const seen = isSeen();
      const appeared = seen && !wasSeen;
      wasSeen = seen;
      if (!seen) return;
      charts.resize();
      if (appeared) reload(store);
    });
    sizes.observe(charts.root);
    sizes.observe(document.documentElement);
  }

  /** Keys that are heard anywhere but in a field. */
  function shortcuts(): Record<string, () => void> {
    return {
      n: () => goOn(store, 1),
      p: () => goOn(store, -1),
      0: () => resetZoom(store),
      f: () => {
        if (!page.followButton.hidden) toggleFollowing(store);
      },
      g: () => {
        page.stepField.focus();
        page.stepField.select();
      },
      w: () => showWhatLed(store),
      "?": () => showKeys(),
      escape: () => {
        if (page.closeMenus()) return;
        if (state.pin !== null) pin(store, null);
        else if (state.cursor !== null) hover(store, null);
        else if (chosenEvent(state)) select(store, null);
        else resetZoom(store);
      },
    };
  }
}
