/** The keys that the panel hears, as a dialog. */

import { element, iconButton, table } from "./elements.ts";

/** What a key does, by where it is heard. */
const KEYS: [string, [string, string][]][] = [
  ["Anywhere", [["N, P", "Next or previous event"], ["0", "Show all steps"], ["F", "Follow the newest step"], ["G",
    "Go to a step"], ["W", "What led to the step under the cursor, or to the event"], ["Esc",
    "Close a menu, let go of the held step, the event, the zoom"], ["?", "These keys"]]],
  ["On a chart", [["← →", "Move the cursor, with Shift by ten or more"], ["Home, End", "First or last step in view"], [
    "+ −",
    "Zoom in or out about the cursor",
  ], ["Page Up, Page Down", "Move the view"], ["Enter",
    "Hold the step: others are shown with their difference from it"]]],
  ["On marks", [["← →", "Next or previous mark of the lane"], ["↑ ↓", "Other lanes"], ["Enter", "Open it"]]],
  ["In the list of runs", [["↑ ↓", "Choose a run"], ["O", "Put a run into the charts beside the current one"]]],
  ["On the heat map", [["Arrows", "Move over tensors and steps"], ["Enter", "Open a module or a tensor"]]],
];

let dialog: HTMLDialogElement | null = null;

export function showKeys() {
  const made = (dialog ??= makeDialog());
  if (!made.isConnected) document.body.append(made);
  if (made.open) made.close();
  else made.showModal();
}

function makeDialog() {
  const close = iconButton("✕", "Close the keys", () => made.close());
  const made: HTMLDialogElement = element("dialog", { class: "key-help", "aria-label": "Keys" },
    element("header", {}, element("h2", {}, "Keys"), close),
    ...KEYS.map(([where, keys]) => table("small-table", ["Key", "What it does"], keys, where)));
  made.addEventListener("keydown", (event) => {
    if (event.key === "?") made.close();
    event.stopPropagation();
  });
  return made;
}
