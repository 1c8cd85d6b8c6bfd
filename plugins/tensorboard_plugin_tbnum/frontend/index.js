/** The Numerics tab. TensorBoard imports this module in a frame and calls `render()`. */

import { element } from "./elements.js";
import { Panel } from "./panel.js";

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
