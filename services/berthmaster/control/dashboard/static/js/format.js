// Numbers and times as people read them.
import { now } from "./store.js";

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => (value === null || value === undefined ? "?" : number.format(value));
export const percent = (value) => (value === null || value === undefined ? "?" : `${Math.round(value)} %`);
export const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function span(seconds) {
  if (seconds === null || seconds === undefined) return "?";
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${number.format(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

export const ago = (at) => (at ? span(now() - at) : "?");

export function clock(at) {
  const date = new Date(at * 1000);
  const today = new Date(now() * 1000).toDateString() === date.toDateString();
  const time = date.toLocaleTimeString("en-GB");
  return today ? time : `${date.toLocaleDateString("en-CA")} ${time}`;
}

export const mib = (value) =>
  value === null || value === undefined ? "?" : value >= 1024 ? `${number.format(value / 1024)} GiB` : `${number.format(value)} MiB`;

export const words = (name) => name.replaceAll("_", " ");
