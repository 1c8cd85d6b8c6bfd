/**
 * Numbers, times and tick positions as people read them. Pure: no document, no fetch.
 *
 * An unknown value is `null` or `undefined` and reads as a dash; NaN and infinity are values and read as what they are.
 */

const DASH = "–";
const MINUS = "−";
// Made once: toLocaleString makes a new one at each call, which takes longer than a drawing should.
const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SIX_DIGITS = new Intl.NumberFormat("en-US", { maximumSignificantDigits: 6 });
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

/** @param exponent an integer */
function superscript(exponent: number) {
  const digits = [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("");
  return (exponent < 0 ? "⁻" : "") + digits;
}

/** A count or a step with thousands apart: 1,234,567. */
export function formatCount(value: number | null | undefined) {
  if (value == null || !Number.isFinite(value)) return DASH;
  return WHOLE.format(value);
}

/** A count as people write it, thousands apart or not: 1200, 1,200, 1.200, 1 200. Null: it is none. */
export function parseCount(text: string): number | null {
  const wanted = text.trim();
  if (!/^\d+$|^\d{1,3}([.,_'’\s]\d{3})+$/.test(wanted)) return null;
  return Number(wanted.replaceAll(/\D/g, ""));
}

/** A count where room is short: 999, 1.2k, 35k, 1.2M. */
export function formatCompact(value: number) {
  for (const [size, letter] of ([[1e9, "G"], [1e6, "M"], [1e3, "k"]] as [number, string][])) {
    if (value < size) continue;
    const scaled = value / size;
    return `${scaled < 10 ? Math.floor(scaled * 10) / 10 : Math.floor(scaled)}${letter}`;
  }
  return String(value);
}

/** Five digits, zeros at the end too, so that numbers below each other align. */
export function formatAligned(value: number | null | undefined) {
  const size = Math.abs(value ?? NaN);
  return value != null && size >= 1e-3 && size < 1e5 && !Number.isInteger(value)
    ? value.toPrecision(5).replace("-", MINUS) : formatNumber(value);
}

/** A measured value to six significant digits, the most that a float32 carries faithfully. */
export function formatNumber(value: number | null | undefined) {
  if (value == null) return DASH;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size >= 1e7 || size < 1e-4) {
    const [mantissa, exponent] = size.toExponential(5).split("e");
    text = `${trimZeros(mantissa)}×10${superscript(Number(exponent))}`;
  } else {
    text = SIX_DIGITS.format(size);
  }
  return (value < 0 ? MINUS : "") + text;
}

/** @param text of a decimal number */
function trimZeros(text: string) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** A loss scale with its power of two, where it is one: 65,536 (2¹⁶). */
export function formatScale(value: number | null | undefined) {
  if (value == null || !Number.isFinite(value) || value <= 0) return formatNumber(value);
  const exponent = Math.log2(value);
  if (!Number.isInteger(exponent) || value === 1 || value === 2) return formatNumber(value);
  return value >= 1e9 ? formatPower(2, exponent) : `${formatCountOrNumber(value)} (${formatPower(2, exponent)})`;
}

function formatCountOrNumber(value: number) {
  return Number.isInteger(value) ? formatCount(value) : formatNumber(value);
}

/** The shortest text of a loss scale: 2¹⁶, or the number where it is no power. */
export function formatScaleShort(value: number | null | undefined) {
  if (value == null || !Number.isFinite(value) || value <= 0) return formatNumber(value);
  const exponent = Math.log2(value);
  return Number.isInteger(exponent) ? formatPower(2, exponent) : formatNumber(value);
}

/** @param exponent an integer */
export function formatPower(base: number | string, exponent: number) {
  return `${base}${superscript(exponent)}`;
}

/** A text of the server's with its powers and arrows as the panel writes them: `2^18 -> 2^17` is "2¹⁸ → 2¹⁷". */
export function typeset(text: string) {
  return text.replaceAll(/\b(\d+)\^(-?\d+)/g, (_, base, exponent) => formatPower(base, Number(exponent))).replaceAll(
    " -> ",
    " → ",
  );
}

/** A share in percent, never rounded down to none: 2.3 %, < 0.01 %. */
export function formatShare(part: number, whole: number) {
  if (!whole) return DASH;
  const percent = (100 * part) / whole;
  if (part > 0 && percent < 0.01) return "< 0.01 %";
  return `${Number(percent.toPrecision(2)).toLocaleString("en-US")} %`;
}

/**
 * Time since the start as a clock: 0:45, 12:30, 1:02:30, 2d 03:00:00; below a second 0:00.250, unless it is given how
 * many decimals.
 */
export function formatElapsed(seconds: number | null | undefined, decimals?: number) {
  if (seconds == null || !Number.isFinite(seconds)) return DASH;
  decimals ??= seconds !== 0 && Math.abs(seconds) < 1 ? 3 : 0;
  const unit = 10 ** -decimals;
  const rounded = Math.round(Math.abs(seconds) / unit) * unit;
  const whole = Math.floor(rounded + unit / 4);
  const fraction = decimals ? Math.abs(rounded - whole).toFixed(decimals).slice(1) : "";
  const [days, hours, minutes, rest] = [
    Math.floor(whole / 86400),
    Math.floor(whole / 3600) % 24,
    Math.floor(whole / 60) % 60,
    whole % 60,
  ];
  const two = (part: number) => String(part).padStart(2, "0");
  let text;
  if (days) text = `${days}d ${two(hours)}:${two(minutes)}:${two(rest)}`;
  else if (hours) text = `${hours}:${two(minutes)}:${two(rest)}`;
  else text = `${minutes}:${two(rest)}`;
  return (seconds < 0 && rounded > 0 ? MINUS : "") + text + fraction;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit",
  second: "2-digit" });

/** Day and time of the wall clock where the reader is: "2 Dec, 14:05:09". @param seconds since the epoch */
export function formatClock(seconds: number | null) {
  return seconds === null || !Number.isFinite(seconds) ? "" : CLOCK.format(seconds * 1000);
}

/** How long ago in the largest fitting unit: 12 s, 3 min, 5 h, 2 days. */
export function formatAge(seconds: number) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 2 * 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} days`;
}

/** Words for a machine's name: `bad_batch` is "bad batch". */
export function words(name: string | null | undefined) {
  return (name ?? "").replaceAll("_", " ");
}

/** With a capital at its beginning. */
export function sentenceCase(text: string) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** `1 step`, `2 steps`. */
export function counted(count: number, singular: string, plural: string = `${singular}s`) {
  return `${formatCount(count)} ${count === 1 ? singular : plural}`;
}

/**
 * Whether a run is being written: "training", "ended", "crashed", or "silent" for so long.
 * A run is silent when nothing came for 30 seconds, or for five of its usual steps if those are longer.
 *
 * @param now seconds since the epoch
 */
export function statusOf(
  run: { ended: string | null; last_wall_time: number | null; first_wall_time: number | null; steps: number | null },
  now: number,
): { state: "training" | "ended" | "crashed" | "silent" | "unknown"; text: string } {
  if (run.ended === "crash") return { state: "crashed", text: "crashed" };
  if (run.ended) return { state: "ended", text: "ended" };
  if (run.last_wall_time == null) return { state: "unknown", text: "no step yet" };
  const quiet = now - run.last_wall_time;
  const usual = (run.last_wall_time - (run.first_wall_time ?? run.last_wall_time)) / Math.max(1, (run.steps ?? 1) - 1);
  if (quiet <= Math.max(30, 5 * usual)) return { state: "training", text: "training" };
  return { state: "silent", text: `silent for ${formatAge(quiet)}` };
}

// ---- Ticks: where they stand, and how they read. Each returns positions within [min, max].

/** Multiples of 1, 2 or 5 times a power of ten, at most `count`, and never closer than `smallest`. */
export function linearTicks(min: number, max: number, count: number, smallest: number = 0) {
  return multiples(min, max, linearIncrement((max - min) / Math.max(1, count), smallest));
}

/** The smallest of 1, 2, 5 times a power of ten that is at least `rough`. */
function linearIncrement(rough: number, smallest: number = 0) {
  const wanted = Math.max(rough, smallest, Number.MIN_VALUE * 1e16);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const factor = [1, 2, 5, 10].find((candidate) => candidate * power >= wanted * (1 - 1e-9)) ?? 10;
  return factor * power;
}

const CLOCK_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Round times: seconds, minutes, hours, days. */
export function timeTicks(min: number, max: number, count: number) {
  const rough = (max - min) / Math.max(1, count);
  if (rough <= 1) return linearTicks(min, max, count);
  const increment = CLOCK_SECONDS.find((candidate) => candidate >= rough) ?? 86400 * linearIncrement(rough / 86400);
  return multiples(min, max, increment);
}

/**
 * Ticks of a log2 axis in exponents: every exponent, or every second, fourth, eighth, ... where they would crowd.
 * @param min exponent @param max exponent
 */
export function log2Ticks(min: number, max: number, count: number) {
  const rough = Math.max(1, (max - min) / Math.max(1, count));
  return multiples(min, max, 2 ** Math.round(Math.log2(rough)));
}

/**
 * Ticks of a log10 axis, in log10: decades; 1-2-5 or finer where less than two decades are in view.
 * @param min log10 @param max log10
 */
export function log10Ticks(min: number, max: number, count: number) {
  const decades = linearTicks(min, max, count, 1);
  if (decades.length >= 3 || count < 2) return decades;
  for (const factors of [[1, 2, 3, 5], [1, 2, 5], [1, 3]]) {
    const ticks: number[] = [];
    for (let decade = Math.floor(min); decade <= Math.ceil(max); decade++) {
      for (const factor of factors) {
        const at = decade + Math.log10(factor);
        if (at >= min && at <= max) ticks.push(at);
      }
    }
    if (ticks.length <= count && ticks.length >= 2) return ticks;
  }
  if (decades.length >= 2) return decades;
  const inside = linearTicks(10 ** min, 10 ** max, count).filter((value) => value > 0).map(Math.log10);
  return inside.length ? inside : decades;
}

function multiples(min: number, max: number, increment: number) {
  const ticks: number[] = [];
  if (!(max >= min) || !(increment > 0)) return ticks;
  const first = Math.ceil(min / increment - 1e-9);
  for (let index = first; index * increment <= max + increment * 1e-9 && ticks.length < 1000; index++) {
    ticks.push(index === 0 ? 0 : Number((index * increment).toPrecision(15)));
  }
  return ticks;
}

/** Labels of linear ticks, all with the decimals that their distance needs. */
export function linearLabels(ticks: number[]) {
  if (!ticks.length) return [];
  const largest = Math.max(...ticks.map(Math.abs));
  const increment = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : largest || 1;
  if (largest >= 1e6 || (largest > 0 && largest < 1e-3)) {
    const [upper, lower] = [largest, increment].map((value) => Math.floor(Math.log10(value) + 1e-9));
    return ticks.map((tick) => shortExponent(tick, Math.max(2, Math.min(7, upper - lower)))); // 7: what float32 holds
  }
  const decimals = Math.min(12, Math.max(0, -Math.floor(Math.log10(increment) + 1e-9)));
  return ticks.map((tick) =>
    sign(tick,
      Math.abs(tick).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }))
  );
}

/** Labels of steps: 250,000 in full, from a million on in millions. */
export function stepLabels(ticks: number[]) {
  const largest = Math.max(0, ...ticks.map(Math.abs));
  const increment = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : 1;
  if (largest < 1e6 || increment < 1e4) return ticks.map((tick) => formatCount(tick));
  return ticks.map((tick) => (tick === 0 ? "0" : `${Number((tick / 1e6).toFixed(6)).toLocaleString("en-US")}M`));
}

/** @param ticks seconds */
export function timeLabels(ticks: number[]) {
  const increment = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.min(1, Math.abs(ticks[0] ?? 1));
  const decimals = increment >= 1 || !increment ? 0 : Math.min(6, Math.ceil(-Math.log10(increment) - 1e-9));
  return ticks.map((tick) => formatElapsed(tick, decimals));
}

/** @param ticks exponents */
export function log2Labels(ticks: number[]) {
  return ticks.map((tick) => formatPower(2, Math.round(tick)));
}

/** @param ticks log10 */
export function log10Labels(ticks: number[]) {
  return ticks.map((tick) => {
    const value = Number((10 ** tick).toPrecision(3));
    if (value >= 1e-3 && value < 1e5) return value.toLocaleString("en-US", { maximumSignificantDigits: 3 });
    return shortExponent(value);
  });
}

/** @param decimals at most */
function shortExponent(value: number, decimals: number = 2) {
  if (value === 0) return "0";
  const [mantissa, exponent] = Math.abs(value).toExponential(decimals).split("e");
  const short = trimZeros(mantissa);
  const power = formatPower(10, Number(exponent));
  return sign(value, short === "1" ? power : `${short}×${power}`);
}

/** @param text of its size */
function sign(value: number, text: string) {
  return value < 0 ? MINUS + text : text;
}

/** How a run is called where people read it: `.` is the logdir itself. */
export function runTitle(run: string) {
  return run === "." ? "(logdir)" : run;
}

/** Whether a run never used tbnum: what it says of skips is inferred. */
export function isPlain(run: { source?: string }) {
  return run.source === "tensorboard";
}
