/** What is said where there is nothing to draw, in place of all charts or in one. */

import { copyButton, element } from "./elements.ts";

import type { TensorsShown } from "./state.ts";
import type { SeriesLike } from "./answers.ts";
import type { Loaded } from "./rundata.ts";
import type { ChartSpec } from "./views.ts";

const WRAP_LINE = 'monitor = tbnum.wrap(optimizer, scaler, model=model, logdir="runs/first")';

/** Views of a run that never used tbnum whose first line is found by a tag that can be named. */
const MAPPED = new Set(["loss", "scale", "norm", "lr"]);

export function emptyState(logdir: string, scanning: boolean) {
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

export function noStepState() {
  return notice("This run ended without a step",
    element("p", {}, "Check that the training loop steps the wrapped optimizer, and that the run got that far."));
}

export function problemState(title: string, text: string) {
  return alerting(notice(title, element("p", {}, text)));
}

/** @param text what is being waited for */
export function waitingState(text: string) {
  return element("div", "notice waiting", element("span", "spinner"), element("p", {}, text));
}

function notice(title: string, ...content: Node[]) {
  return element("div", "notice", element("h2", {}, title), ...content);
}

function alerting(box: HTMLElement) {
  box.setAttribute("role", "alert");
  return box;
}

function codeLine(code: string) {
  const text = element("pre", {}, code);
  return element("div", "code-line", text, copyButton("Copy", "", () => code));
}

/**
 * Why a view has nothing to draw: it is on its way, or was not recorded.
 *
 * @param known `plain`: whether the run never used tbnum
 */
export function whyEmpty(spec: ChartSpec, { info, nonfiniteAnswer }: Loaded,
  { series, prefix, tensors, plain }: { series: SeriesLike; prefix: string; tensors: TensorsShown;
    plain: boolean }): string {
  const own = spec.ofOptimizer ? prefix : "";
  const has = (columns: string[]) => spec.lines.some(({ column }) => columns.includes(own + column));
  const coming = spec.ofTensors ? !tensors.answer || (has(tensors.answer.columns) && !tensors[spec.ofTensors])
    : has([...info.columns, ...info.derived].filter((column) => !series.line(column)));
  if (coming) return "loading …";
  if (spec.id === "loss" && nonfiniteAnswer?.step.length) return "no finite loss";
  const name = spec.title.toLowerCase();
  if (plain && MAPPED.has(spec.id))
    return `no ${name} found: name its tag with tensorboard --tbnum_map ${spec.lines[0].column}=TAG`;
  return spec.id === "loss" ? "no loss recorded: log it with monitor.log_loss(loss)" : `no ${name} recorded here`;
}
