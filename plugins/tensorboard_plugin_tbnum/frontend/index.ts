/** The Numerics tab. TensorBoard imports this module in a frame and calls `render()`. */

import { element } from "./elements.ts";
import { startPanel } from "./panel.ts";

export async function render() {
  document.documentElement.lang = "en";
  document.title = "Numerics";
  await stylesheet();
  document.body.replaceChildren();
  startPanel(document.body);
}

/** @returns resolved when it applies, or cannot be had */
function stylesheet(): Promise<void> {
  return new Promise((resolve) => {
    const { href } = new URL("./style.css", import.meta.url);
    document.head.append(
      element("link", { rel: "stylesheet", href, onload: () => resolve(), onerror: () => resolve() }),
    );
  });
}
