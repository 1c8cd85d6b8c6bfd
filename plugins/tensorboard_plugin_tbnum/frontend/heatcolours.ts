/** The colours of the heat map. Pure. */

import type { HeatMode } from "./heatcells.ts";

/**
 * 256 colours from blue over the ground's own to red, for what is held against something: the middle is the same.
 */
export function divergingMap(dark: boolean) {
  return Uint32Array.from({ length: 256 }, (_, index) => {
    const t = (index - 127.5) / 127.5;
    const lightness = dark ? 0.37 + 0.42 * Math.abs(t) : 0.955 - 0.45 * Math.abs(t);
    const hue = ((t < 0 ? 255 : 35) * Math.PI) / 180;
    const chroma = 0.16 * Math.abs(t) ** 0.8;
    return packed(oklab(lightness, chroma * Math.cos(hue), chroma * Math.sin(hue)));
  });
}

/** The colours of a mode. */
export function coloursOf({ scale }: HeatMode, dark: boolean) {
  return scale === "ratio" ? divergingMap(dark) : colourMap(dark);
}

/**
 * 256 colours of even steps in lightness (OKLab), from the ground's own lightness away from it, over three hues; as
 * pixels of an `ImageData` on a little-endian machine.
 */
export function colourMap(dark: boolean) {
  return Uint32Array.from({ length: 256 }, (_, index) => {
    const t = index / 255;
    const lightness = dark ? 0.37 + 0.55 * t : 0.955 - 0.62 * t;
    const hue = ((dark ? 268 - 175 * t : 215 + 85 * t) * Math.PI) / 180;
    const chroma = dark ? 0.05 + 0.09 * Math.sin(Math.PI * (0.15 + 0.7 * t))
      : 0.02 + 0.13 * Math.sin((Math.PI / 2) * Math.min(1, 1.25 * t));
    return packed(oklab(lightness, chroma * Math.cos(hue), chroma * Math.sin(hue)));
  });
}

/** To sRGB, 0 to 255. */
function oklab(lightness: number, a: number, b: number): [number, number, number] {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channel = (linear: number) => {
    const light = Math.max(0, Math.min(1, linear));
    return Math.round(255 * (light <= 0.0031308 ? 12.92 * light : 1.055 * light ** (1 / 2.4) - 0.055));
  };
  return [
    channel(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    channel(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    channel(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

export function packed([red, green, blue]: [number, number, number]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
