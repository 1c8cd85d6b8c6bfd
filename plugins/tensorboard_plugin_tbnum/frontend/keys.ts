/** What keys do: on a chart they move the cursor and the view; anywhere but in a field they are shortcuts. */

/** What keys on a chart do. */
export type ChartKeys = {
  view: [number, number];
  cursor: number | null;
  moveTo: (step: number) => void;
  pin: (step: number) => void;
  zoom: (from: number, to: number) => void;
};

/** Arrows move the cursor, plus and minus zoom. @param event on a chart */
export function chartKey(event: KeyboardEvent, { view: [from, to], cursor, moveTo, pin, zoom }: ChartKeys) {
  if (event.altKey || event.metaKey || event.ctrlKey) return;
  const middle = cursor ?? Math.round((from + to) / 2);
  const stride = event.shiftKey ? Math.max(10, Math.round((to - from) / 20)) : 1;
  const page = (to - from) * 0.9;
  const scale = (factor: number) => zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  switch (event.key) {
    case "ArrowLeft":
      moveTo(cursor === null ? middle : cursor - stride);
      break;
    case "ArrowRight":
      moveTo(cursor === null ? middle : cursor + stride);
      break;
    case "Enter":
    case " ":
      if (cursor !== null) pin(cursor);
      break;
    case "Home":
      moveTo(from);
      break;
    case "End":
      moveTo(to);
      break;
    case "PageUp":
      zoom(from - page, to - page);
      break;
    case "PageDown":
      zoom(from + page, to + page);
      break;
    case "+":
    case "=":
      scale(0.5);
      break;
    case "-":
    case "_":
      scale(2);
      break;
    default:
      return;
  }
  event.preventDefault();
}

/** Does what a shortcut stands for. @param shortcuts by key, in small letters */
export function pressShortcut(event: KeyboardEvent, shortcuts: Record<string, () => void>) {
  const { target } = event;
  if (event.defaultPrevented || event.altKey || event.metaKey || event.ctrlKey) return;
  if (target instanceof HTMLInputElement && !["range", "checkbox"].includes(target.type)
    || target instanceof HTMLSelectElement) return;
  const press = shortcuts[event.key.toLowerCase()];
  if (!press) return;
  press();
  event.preventDefault();
}
