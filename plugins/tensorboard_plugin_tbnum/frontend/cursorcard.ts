/**
 * The card that follows the cursor: the exact values of its step, and how they differ from those of the step that is
 * held.
 */

import { element, factTable, placeBeside } from "./elements.ts";
import { laneKind } from "./eventlist.ts";
import { eventTitle } from "./events.ts";
import { counted, formatCount, formatElapsed, formatNumber, formatScale, words } from "./format.ts";
import { icon } from "./marks.ts";

import type { StepValues, TbnumEvent } from "./answers.ts";

/** How much a value is above another, in brackets; of scales how often. */
export function differenceText(value: any, other: any, times: boolean) {
  if (typeof value !== "number" || typeof other !== "number" || !Number.isFinite(value - other)) return "";
  if (times)
    return value === other || !other ? ""
      : value > other ? ` (× ${formatNumber(value / other)})` : ` (÷ ${formatNumber(other / value)})`;
  const difference = Number((value - other).toPrecision(3));
  return difference === 0 ? " (same)" : ` (${difference > 0 ? "+" : ""}${formatNumber(difference)})`;
}

/** The card that follows the cursor with the exact values of its step. */
export class CursorCard {
  // the charts' aria-valuetext says the same
  element = element("div", { class: "cursor-card", hidden: true, "aria-hidden": "true" });

  hide() {
    this.element.hidden = true;
  }

  /**
   * @param known null while it is being fetched
   * @param more
   * `pinned`: the step that this one is held against
   * @returns the same as one line of text
   */
  show(step: number, known: StepValues | null,
    { prefix, elapsed, events, bucket, pinned, beside, title, clock }: { prefix: string; elapsed: number | null;
      clock: string; events: TbnumEvent[]; bucket: string | null; pinned: StepValues | null;
      beside: { element: HTMLElement; text: string; many: boolean } | null; title: string }): string {
    const value = (name: string) => ((known ? known.values[name] ?? null : undefined) as any);
    const own = (name: string) => value(prefix + name);
    const other = (name: string) => ((pinned && pinned.step !== step ? pinned.values[name] : undefined) as any);
    const write = (raw: any, format: (value: any) => string,
      name: string =
        "") => (raw === undefined ? "…" : format(raw) + differenceText(raw, other(name), name === "loss_scale"));
    const skipped = value(`${prefix}skipped`) ?? value("skipped");
    const [norm, clipped] = [own("grad_norm"), own("grad_norm_clipped")];
    const coefficient = own("clip_coef");
    const didClip = typeof coefficient === "number" && coefficient < 1;
    const rows: [string, string][] = [
      ["Loss", write(value("loss"), formatNumber, "loss")],
      ["Loss scale", write(value("loss_scale"), formatScale, "loss_scale")],
      ["Gradient norm", write(norm, formatNumber, `${prefix}grad_norm`)],
      ["… clipped",
        write(clipped, formatNumber) + (didClip ? ` (× ${formatNumber(Number(coefficient.toPrecision(3)))})` : "")],
      ["Threshold", write(own("max_norm"), formatNumber)],
      ["Learning rate", write(own("lr"), formatNumber, `${prefix}lr`)],
      ["Micro-batches", write(value("micro_batches"), formatNumber)],
      ["Skipped", skipped === undefined ? "…" : skipped ? "yes" : "no"],
    ];
    this.element.replaceChildren(
      element("header", {}, element("strong", {}, title || `Step ${formatCount(known?.step ?? step)}`),
        element("span", { title: clock }, [formatElapsed(elapsed), clock].filter(Boolean).join(" · "))),
      ...(beside ? [beside.element] : []),
      ...(beside?.many || (known && !Object.keys(known.values).length) ? [] : [factTable(rows)]),
      ...events.slice(0, 3).map(({ kind, cause }) =>
        element("p", "cursor-event", icon(laneKind(kind)), eventTitle(kind) + (cause ? `: ${words(cause)}` : ""))
      ),
      ...(bucket ? [element("p", "cursor-bucket", bucket)] : []),
      ...(pinned && pinned.step !== step
        ? [
          element("p", "cursor-bucket",
            `Differences are from step ${formatCount(pinned.step)}, ${counted(Math.abs(step - pinned.step), "step")} ${
              step > pinned.step ? "before" : "after"
            }`),
        ] : []),
    );
    this.element.classList.toggle("skipped", skipped === true);
    this.element.hidden = false;
    return `Step ${formatCount(step)}, ${beside ? `${beside.text}; ` : ""}${
      rows.map(([name, text]) => `${name} ${text}`).join(", ")
    }`;
  }

  /** Beside the cursor, within the window. @param y of the window */
  place(x: number, y: number) {
    placeBeside(this.element, x, y - this.element.offsetHeight / 3);
  }
}
