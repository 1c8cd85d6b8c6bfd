/** Whose gradient norm is shown, where several optimizers take the steps. */

import { element } from "./elements.ts";

import type { PanelStore } from "./state.ts";

/** Hidden where there is one. */
export function optimizerSelect(store: PanelStore) {
  const select = element("select", { class: "small", hidden: true,
    "aria-label": "Optimizer whose gradient norm is shown",
    onchange: () => store.set({ optimizer: select.selectedIndex }) });
  store.watch(["loaded", "optimizer"], () => {
    const { loaded, optimizer } = store.state;
    const names = Object.keys(loaded?.info.meta.optimizers ?? {});
    const { options } = select;
    select.hidden = names.length < 2;
    if (names.length !== options.length || names.some((name, at) => name !== options[at].text))
      select.replaceChildren(...names.map((name) => element("option", {}, name)));
    select.selectedIndex = optimizer;
  });
  return select;
}
