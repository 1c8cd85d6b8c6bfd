/** What wheel and touch pad do to a view of steps, in the charts and in the heat map. */

/**
 * With ctrl (as a pinch on a touch pad comes) zooms about the pointer, sideways moves; else the page scrolls.
 * @param view steps @param width pixels of the view
 * @param stepAt at a pixel of the window
 */
export function wheelZoom(event: WheelEvent, [from, to]: [number, number], width: number, stepAt: (x: number) => number,
  zoom: (from: number, to: number) => void) {
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const at = stepAt(event.clientX);
    const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01);
    zoom(at - (at - from) * factor, at + (to - at) * factor);
  } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
    event.preventDefault();
    const by = (sideways / width) * (to - from);
    zoom(from + by, to + by);
  }
}
