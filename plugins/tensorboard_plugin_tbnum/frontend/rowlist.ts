/**
 * A list of which only the rows in sight exist, and the field that searches it: what the lists of runs and events are
 * made of.
 */

import { element } from "./elements.ts";

/** What a list consists of. */
export type RowListOptions = {
  label: string;
  /** pixels */
  rowHeight: number;
  /** a row whose key is the same as before is left as it is, so that nothing changes under a pointer */
  key: (index: number) => unknown;
  draw: (index: number, row: HTMLElement) => void;
  choose: (index: number) => void;
  /** by the O key, or a click on what has `data-tick` */
  toggle?: (index: number) => void;
};

/** A list of which only the rows in sight exist, however long it is; a listbox by keyboard and for screen readers. */
export class RowList {
  count = 0;
  chosen = -1;
  active = -1;
  prefix: string;
  inner = element("div", { class: "rows-inner", role: "presentation" });
  element: HTMLDivElement;
  height = 0;
  drawn: Map<number, { key: unknown; row: HTMLElement }> = new Map();

  constructor(readonly options: RowListOptions) {
    const { label, toggle } = options;
    this.prefix = `row-${label.toLowerCase().replaceAll(" ", "-")}`;
    this.element = element("div", { class: "rows", tabindex: 0, role: "listbox", "aria-label": label,
      onkeydown: (event) => this.#key(event), onclick: (event) => {
        const row = (event.target as HTMLElement).closest("[data-index]");
        const tick = (event.target as HTMLElement).closest("[data-tick]");
        if (row instanceof HTMLElement)
          (tick && toggle ? toggle : (index: number) => this.#pick(index))(Number(row.dataset.index));
      } }, this.inner);
    this.element.addEventListener("scroll", () => this.#render(), { passive: true });
    new ResizeObserver(() => this.#resized()).observe(this.element);
  }

  /** @param chosen index, or -1 */
  show(count: number, chosen: number) {
    const moved = chosen !== this.chosen;
    this.count = count;
    this.chosen = chosen;
    if (moved) this.active = chosen;
    if (this.active >= count) this.active = count - 1;
    this.inner.style.height = `${count * this.options.rowHeight}px`;
    if (moved && chosen >= 0) this.reveal(chosen);
    this.#render();
  }

  reveal(index: number) {
    const top = index * this.options.rowHeight;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top - this.options.rowHeight;
    else if (top + this.options.rowHeight > scrollTop + clientHeight)
      this.element.scrollTop = top + 2 * this.options.rowHeight - clientHeight;
  }

  /** A chosen row that was in sight stays in sight; one that was chosen before there was room comes into it. */
  #resized() {
    const { scrollTop, clientHeight } = this.element;
    const top = this.chosen * this.options.rowHeight;
    const before = this.height;
    this.height = clientHeight;
    if (this.chosen >= 0 && (!before || (top >= scrollTop && top < scrollTop + before))) this.reveal(this.chosen);
    this.#render();
  }

  #render() {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / this.options.rowHeight) - 4);
    const last = Math.min(this.count, Math.ceil((scrollTop + clientHeight) / this.options.rowHeight) + 4);
    for (const [index, { row }] of this.drawn) {
      if (index >= first && index < last) continue;
      row.remove();
      this.drawn.delete(index);
    }
    let next: HTMLElement | null = null;
    for (let index = last - 1; index >= first; index--) {
      const key = this.options.key(index);
      const known = this.drawn.get(index);
      let row = known?.row;
      if (!row || known?.key !== key) {
        row = element("div", "row");
        this.options.draw(index, row);
        if (known) known.row.replaceWith(row);
        else this.inner.insertBefore(row, next);
        this.drawn.set(index, { key, row });
      }
      this.#mark(row, index);
      next = row;
    }
    if (this.active >= first && this.active < last)
      this.element.setAttribute("aria-activedescendant", `${this.prefix}-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /** Indices of the rows in sight, from the top. */
  get inSight(): number[] {
    const { scrollTop, clientHeight } = this.element;
    const first = Math.floor(scrollTop / this.options.rowHeight);
    const last = Math.min(this.count, Math.ceil((scrollTop + clientHeight) / this.options.rowHeight));
    return Array.from({ length: Math.max(0, last - first) }, (_, at) => first + at);
  }

  #mark(row: HTMLElement, index: number) {
    row.classList.toggle("chosen", index === this.chosen);
    row.classList.toggle("active", index === this.active);
    row.dataset.index = String(index);
    row.id = `${this.prefix}-${index}`;
    row.style.transform = `translateY(${index * this.options.rowHeight}px)`;
    row.style.height = `${this.options.rowHeight}px`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(index === this.chosen));
    row.setAttribute("aria-setsize", String(this.count));
    row.setAttribute("aria-posinset", String(index + 1));
  }

  #pick(index: number) {
    this.active = index;
    this.options.choose(index);
  }

  #key(event: KeyboardEvent) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.options.rowHeight) - 1);
    const moves: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity,
      End: Infinity };
    if (event.key in moves) {
      event.preventDefault();
      this.active = Math.max(0, Math.min(this.count - 1, this.active + moves[event.key]));
      this.reveal(this.active);
      this.#render();
    } else if ((event.key === "Enter" || event.key === " ") && this.active >= 0) {
      event.preventDefault();
      this.#pick(this.active);
    } else if (event.key.toLowerCase() === "o" && this.active >= 0 && !event.ctrlKey && !event.metaKey
      && !event.altKey) {
      this.options.toggle?.(this.active);
    }
  }
}

export function searchField(label: string, changed: () => void, title: string = "") {
  return element("input", { class: "search", type: "search", placeholder: label, "aria-label": label, title,
    spellcheck: "false", oninput: changed });
}
