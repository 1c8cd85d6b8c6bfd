/**
 * Events of a run in words: what they are called, what they state and what speaks for it, as facts and as text for a
 * bug report.
 */

import { revived } from "./api.ts";
import { counted, formatCount, formatNumber, formatScale, runTitle, sentenceCase, typeset, words } from "./format.ts";
import { LANES, laneOf, shownLanes } from "./marks.ts";
import { lowerBound } from "./sorted.ts";

import type { StepValues, TbnumEvent } from "./answers.ts";
import type { Lane } from "./marks.ts";

/** The event behind a mark. */
export function eventAt(lane: Lane, index: number) {
  return lane.events[lane.owner ? lane.owner[index] : index];
}

/**
 * The events that the legend lets through, in order of step. A skip and the backoff of the scale that follows from it
 * are one. @param folded whether they are
 */
export function listedEvents(lanes: Lane[], hidden: ReadonlySet<string>, folded = true) {
  const order = new Map(LANES.map((lane, index) => [lane.id, index]));
  const shown = shownLanes(lanes, hidden);
  const skips = folded && !hidden.has("skip") ? lanes.find(({ kind }) => kind.id === "skip") : undefined;
  const skipped = new Set(skips?.steps);
  return shown.flatMap(({ kind, events }) =>
    kind.id === "scale_backoff" ? events.filter(({ step }) => !skipped.has(step)) : events
  ).sort((a, b) => a.step - b.step || (order.get(laneOf(a.kind)) ?? 0) - (order.get(laneOf(b.kind)) ?? 0));
}

const NOTHING_HIDDEN: ReadonlySet<string> = new Set();
const listedInAll: WeakMap<Lane[], number> = new WeakMap();

/** How many there are to list, whatever the legend hides. */
export function listedTotal(lanes: Lane[]) {
  const known = listedInAll.get(lanes) ?? listedEvents(lanes, NOTHING_HIDDEN).length;
  listedInAll.set(lanes, known);
  return known;
}

/** How the scale changed at a step, by its backoff. */
export function backoffAt(lanes: Lane[], step: number) {
  const lane = lanes.find(({ kind }) => kind.id === "scale_backoff");
  const at = lane ? lowerBound(lane.steps, step) : -1;
  return lane && lane.steps[at] === step ? scaleChange(lane.events[at].data) : null;
}

/** Those that have every word. */
export function withWords(events: TbnumEvent[], wanted: string) {
  const parts = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  if (!parts.length) return events;
  return events.filter(({ kind, cause, message, step, optimizer, severity }) => {
    const text = [severity, words(kind), words(cause), message, typeset(message), step, optimizer].join(" ")
      .toLowerCase();
    return parts.every((part) => text.includes(part));
  });
}

/** Events whose marks stand at a step. */
export function eventsAt(lanes: Lane[], step: number) {
  return lanes.flatMap((lane) => {
    const mark = lowerBound(lane.steps, step);
    if (lane.steps[mark] !== step) return [];
    const first = eventAt(lane, mark);
    return [first, ...lane.events.filter((event) => event !== first && event.step === step)];
  });
}

export function eventTitle(kind: string) {
  return sentenceCase(kind === "nonfinite_loss" ? "non-finite loss" : words(kind));
}

export function scaleChange(data: Record<string, any>) {
  const before = data.old_scale ?? data.loss_scale;
  const after = data.new_scale;
  return before != null && after != null ? `${formatScale(before)} → ${formatScale(after)}` : null;
}

/** How facts of an event and values of a step are called and written. */
const FACTS: Record<string, [string, (value: any) => string]> = { loss: ["Loss", formatNumber],
  loss_scale: ["Loss scale", formatScale], grad_norm: ["Gradient norm", formatNumber],
  grad_norm_clipped: ["… after clipping", formatNumber], clip_coef: ["Clip coefficient", formatNumber],
  max_norm: ["Threshold", formatNumber], lr: ["Learning rate", formatNumber],
  micro_batches: ["Micro-batches", formatNumber], growth_tracker: ["Growth tracker", formatNumber],
  nonfinite_tensors: ["Non-finite tensors", formatNumber], param_norm: ["Parameter norm", formatNumber],
  update_norm: ["Update norm", formatNumber], skipped: ["Skipped", (value) => (value ? "yes" : "no")],
  tensors: ["Tensors with a gradient", formatNumber],
  params_nonfinite: ["Parameters finite", (value) => (value ? "no" : "yes")],
  injected: ["Injected", (value) => (value ? "on purpose" : "no")] };

export function fact(name: string, value: any): [string, string] {
  const known = FACTS[name];
  const plain = revived(value);
  if (known) return [known[0], known[1](plain)];
  const slash = name.lastIndexOf("/"); // before it an optimizer's name, which is kept as it is
  const ofOptimizer = slash < 0 ? undefined : FACTS[name.slice(slash + 1)];
  if (ofOptimizer) return [`${name.slice(0, slash)}: ${ofOptimizer[0]}`, ofOptimizer[1](plain)];
  const label = slash < 0 ? sentenceCase(words(name)) : name;
  if (plain == null || typeof plain === "number") return [label, formatNumber(plain)];
  if (typeof plain === "string") return [label, plain];
  if (typeof plain === "boolean") return [label, plain ? "yes" : "no"];
  return [label, JSON.stringify(plain)];
}

/** Facts that the card has a place of its own for. */
const PLACED = new Set(["ranks", "old_scale", "new_scale", "loss_scale", "evidence", "sentinel", "nonfinite_names",
  "tensors", "nonfinite_tensors"]);

/**
 * What an event states and what speaks for it, in the order in which one asks: scale, recovery, loss, the rest.
 */
export function eventFacts({ data }: TbnumEvent): [string, string][] {
  const rows: [string, string][] = [];
  const evidence = data.evidence ?? {};
  const change = scaleChange(data);
  if (change) rows.push(["Loss scale", change]);
  else if (data.loss_scale != null) rows.push(fact("loss_scale", data.loss_scale));
  if (evidence.recovered_after !== undefined)
    rows.push(["Scale back after",
      evidence.recovered_after === null ? "not in this log" : counted(evidence.recovered_after, "step")]);
  if (evidence.held_steps !== undefined) rows.push(["Held before it", counted(evidence.held_steps, "step")]);
  if (evidence.held_before_growth !== undefined)
    rows.push(["… at the scale below", counted(evidence.held_before_growth, "step")]);
  if (evidence.held_before_probe !== undefined)
    rows.push([`… before a probe of ${formatScale(evidence.failed_probe)}`,
      counted(evidence.held_before_probe, "step")]);
  if (evidence.skips_in_row > 1) rows.push(["Skips in a row", formatCount(evidence.skips_in_row)]);
  if (data.nonfinite_tensors != null)
    rows.push(["Non-finite tensors",
      formatNumber(revived(data.nonfinite_tensors)) + (data.tensors ? ` of ${formatNumber(data.tensors)}` : "")]);
  for (const [name, value] of Object.entries(data)) {
    if (PLACED.has(name) || value == null || value === "") continue;
    rows.push(fact(name, value));
    if (name === "loss" && evidence.recent_loss != null)
      rows.push(["… recent median", formatNumber(revived(evidence.recent_loss))]);
  }
  if (evidence.nonfinite_since != null)
    rows.push(["Parameters not finite since", `step ${formatCount(evidence.nonfinite_since)}`]);
  if (evidence.largest_finite != null)
    rows.push(["Largest finite gradient", formatNumber(revived(evidence.largest_finite))]);
  if (evidence.largest_finite_scaled != null)
    rows.push(["… times the scale", formatNumber(revived(evidence.largest_finite_scaled))]);
  if (evidence.norm_ratio != null)
    rows.push(["Finite gradients",
      `${formatNumber(Number(Number(evidence.norm_ratio).toPrecision(3)))} × their usual length`]);
  rows.push(...lossOfRanks(data.ranks));
  if (evidence.began?.modules?.length) rows.push(["Began in", evidence.began.modules.join("\n")]);
  return rows;
}

/** The loss of each rank, those at fault marked. */
function lossOfRanks(ranks: Record<string, any> | null | undefined): [string, string][] {
  if (!ranks?.numbers?.length) return [];
  const mark = ranks.how === "part" ? "its part of the gradients is not finite" : "at fault";
  const lines = ranks.numbers.map((rank: number, at: number) => {
    const loss = ranks.losses[at] == null ? "unknown" : formatNumber(revived(ranks.losses[at]));
    return `rank ${rank}: ${loss}${ranks.guilty.includes(rank) ? `  ← ${mark}` : ""}`;
  });
  const shown = lines.length <= 16 ? lines
    : lines.filter((line: string, at: number) => at < 8 || line.includes("←")).concat(`… of ${lines.length} ranks`);
  return [["Loss by rank", shown.join("\n")]];
}

/** The sentence that a sentinel's finding makes. */
export function sentinelText(seen: Record<string, any> | null | undefined): string {
  if (!seen) return "";
  const where = seen.module == null ? "a tensor of no module" : seen.module === "" ? "the model itself" : seen.module;
  const what = `${seen.what ?? "tensor"} of ${where}`;
  const shape = Array.isArray(seen.shape) && seen.shape.length ? ` (${seen.shape.join(" × ")}, ${seen.dtype})`
    : seen.dtype ? ` (${seen.dtype})` : "";
  const largest = seen.largest == null ? ""
    : `; the largest that went before it was ${formatNumber(revived(seen.largest))}${
      seen.limit == null ? "" : `, the limit is ${formatNumber(revived(seen.limit))}`
    }`;
  return `Going ${seen.phase ?? "forward"}, the first that was not finite was the ${what}${shape}${largest}.`;
}

/** The tensors at fault with their counts, where those are known. */
export function tensorsAtFault({ data }: TbnumEvent): { name: string; nan: number | null; inf: number | null }[] {
  if (Array.isArray(data.evidence?.nonfinite)) return data.evidence.nonfinite;
  return Array.isArray(data.nonfinite_names)
    ? data.nonfinite_names.map((name) => ({ name: String(name), nan: null, inf: null })) : [];
}

/** An event and its step's record as text, for a bug report: every value in full. */
export function eventText(run: string, event: TbnumEvent, step: StepValues | null, address: string) {
  const lines = [
    `tbnum: ${words(event.kind)} at step ${event.step} of ${runTitle(run)}${
      event.cause ? ` (${words(event.cause)})` : ""
    }`,
  ];
  if (event.message) lines.push(event.message);
  if (event.remedy) lines.push(`What to do: ${event.remedy}`);
  const seen = sentinelText(event.data.sentinel);
  if (seen) lines.push(seen);
  lines.push("", ...eventFacts(event).map(([name, value]) => `${name}: ${value.replaceAll("\n", ", ")}`));
  const faults = tensorsAtFault(event);
  if (faults.length)
    lines.push("", "Tensors at fault:",
      ...faults.map(({ name, nan, inf }) => `  ${name}${nan === null ? "" : `  NaN ${nan}  inf ${inf}`}`));
  if (step && step.step === event.step) lines.push("", ...recordText(step));
  lines.push("", address);
  return lines.join("\n");
}

/** A step as text, for a bug report. */
export function stepText(run: string, step: StepValues, address: string) {
  const events = step.events.map(({ kind, cause, message }) =>
    `${eventTitle(kind)}${cause ? ` (${words(cause)})` : ""}: ${message}`
  );
  return [`tbnum: step ${step.step} of ${runTitle(run)}`, ...events, "", ...recordText(step), "", address].join("\n");
}

/** Every value of a step in full, as text. */
function recordText({ values }: StepValues) {
  const width = Math.max(...Object.keys(values).map((name) => name.length));
  return ["The step's record:",
    ...Object.entries(values).map(([name, value]) => `  ${name.padEnd(width)}  ${value ?? "unknown"}`)];
}
