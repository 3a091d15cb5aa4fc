// Colours of values. Scales rise in lightness alone, readable without distinguishing hues. Faults have
// a shape of their own.
import { BUSY, HELD, HEAT, LOST, DEGRADED, MARKS, MEMORY, UNKNOWN } from "./store.js";

export const MODES = [
  ["busy", "Busy", "1"], ["held", "Allocated", "2"], ["memory", "Memory", "3"], ["heat", "Temperature", "4"], ["health", "Health", "5"],
];
const COLUMN = { busy: BUSY, held: HELD, memory: MEMORY, heat: HEAT, health: MARKS };
const COLDEST = 25, HOTTEST = 95; // degrees Celsius
const STEPS = 64;
let ramps = null;

function rgb(text) {
  const hex = text.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function ramp(style, name) {
  const stops = [0, 1, 2, 3, 4].map((at) => rgb(style.getPropertyValue(`--${name}-${at}`)));
  return Array.from({ length: STEPS + 1 }, (_, step) => {
    const at = (step / STEPS) * 4, low = Math.min(3, Math.floor(at)), part = at - low;
    const mixed = stops[low].map((value, i) => Math.round(value + part * (stops[low + 1][i] - value)));
    return `rgb(${mixed.join(",")})`;
  });
}

export function palette() {
  if (ramps) return ramps;
  const style = getComputedStyle(document.documentElement);
  const named = (name) => style.getPropertyValue(`--${name}`).trim();
  ramps = {
    heat: ramp(style, "heat"), hot: ramp(style, "hot"), unknown: named("unknown"), lost: named("lost"),
    degraded: named("degraded"), closed: named("closed"), ink: named("ink"), soft: named("soft"),
    line: named("line"), accent: named("accent"), card: named("card"),
  };
  return ramps;
}

export function forget() {
  ramps = null;
}

// How full, 0 to 1, or null if nobody knows; of the row of numbers that begins there.
export function level(rows, at, mode) {
  const value = rows[at + COLUMN[mode]];
  if (mode === "health") return 0;
  if (value === UNKNOWN) return null;
  if (mode === "heat") return Math.min(1, Math.max(0, (value - COLDEST) / (HOTTEST - COLDEST)));
  return Math.min(1, value / 100);
}

export function color(rows, at, mode) {
  const colors = palette(), marks = rows[at + MARKS];
  if (marks & LOST) return colors.lost;
  if (mode === "health") return marks & DEGRADED ? colors.degraded : colors.heat[STEPS / 2];
  const full = level(rows, at, mode);
  if (full === null) return colors.unknown;
  return (mode === "heat" ? colors.hot : colors.heat)[Math.round(full * STEPS)];
}
