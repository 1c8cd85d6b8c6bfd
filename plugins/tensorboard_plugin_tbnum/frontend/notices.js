/** What is said where there is nothing to draw, in place of all charts or in one. */

import { copyButton, element } from "./elements.js";

/** @import { TensorData } from "./tensordata.js" */
/** @import { ChartSpec, Loaded, SeriesLike } from "./types.js" */

const WRAP_LINE = 'monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/first")';

/** Views of a run that never used tbnum whose first line is found by a tag that can be named. */
const MAPPED = new Set(["loss", "scale", "norm", "lr"]);

/** @param {string} logdir @param {boolean} scanning */
export function emptyState(logdir, scanning) {
  const folder = element("code", {}, logdir || "the logdir");
  if (scanning) return notice("Looking for runs …", element("p", {}, "Reading ", folder, "."));
  return notice(
    "No run recorded here yet",
    element("p", {}, "No tbnum log was found below ", folder, ". The folder is looked at again every few seconds."),
    element("p", {}, "Record one with one line in the training script, after optimizer and scaler are made:"),
    codeLine(`import tbnum\n${WRAP_LINE}`),
    element("p", "quiet", "and start TensorBoard with the folder above it, here runs, as --logdir."),
  );
}

/** @param {string} title @param {string} text */
export function problemState(title, text) {
  return alerting(notice(title, element("p", {}, text)));
}

/** @param {string} text what is being waited for */
export function waitingState(text) {
  return element("div", "notice waiting", element("span", "spinner"), element("p", {}, text));
}

/** @param {string} title @param {...Node} content */
function notice(title, ...content) {
  return element("div", "notice", element("h2", {}, title), ...content);
}

/** @param {HTMLElement} box */
function alerting(box) {
  box.setAttribute("role", "alert");
  return box;
}

/** @param {string} code */
function codeLine(code) {
  const text = element("pre", {}, code);
  return element("div", "code-line", text, copyButton("Copy", "", () => code));
}

/**
 * Why a view has nothing to draw: it is on its way, or was not recorded.
 * @param {ChartSpec} spec @param {Loaded} loaded
 * @param {{series: SeriesLike, prefix: string, tensors: TensorData, plain: boolean}} known `plain`: whether the run never used tbnum
 * @returns {string}
 */
export function whyEmpty(spec, { info, nonfiniteAnswer }, { series, prefix, tensors: { answer, shown }, plain }) {
  const own = spec.ofOptimizer ? prefix : "";
  const has = (/** @type {string[]} */ columns) => spec.lines.some(({ column }) => columns.includes(own + column));
  const coming = spec.ofTensors ? !answer || (has(answer.columns) && !shown[spec.ofTensors])
    : has([...info.columns, ...info.derived].filter((column) => !series.line(column)));
  if (coming) return "loading …";
  if (spec.id === "loss" && nonfiniteAnswer?.step.length) return "no finite loss";
  const name = spec.title.toLowerCase();
  if (plain && MAPPED.has(spec.id)) return `no ${name} found: name its tag with tensorboard --tbnum_map ${spec.lines[0].column}=TAG`;
  return spec.id === "loss" ? "no loss recorded: tell it with monitor.log_loss(loss)" : `no ${name} recorded here`;
}
