// What a job uses and what it is bound by, by attempt: asked of the usage service.
import { h, table } from "./dom.js";
import { count, percent, span, words } from "./format.js";

const UNITS = [["_percent", percent], ["_w", (value) => `${count(Math.round(value))} W`], ["_cores", (value) => value.toFixed(2)],
  ["_mib", (value) => `${(value / 1024).toFixed(1)} GiB`], ["_bytes_per_s", (value) => `${(value / 1e6).toFixed(1)} MB/s`]];

function shown(name, value) {
  const found = UNITS.find(([ending]) => name.endsWith(ending));
  return found ? found[1](value) : count(value);
}

function label(name) {
  const found = UNITS.find(([ending]) => name.endsWith(ending));
  return words(found && found[0] !== "_cores" ? name.slice(0, -found[0].length) : name);
}

function attempt(one) {
  const shares = Object.entries(one.shares || {}).map(([name, share]) => `${name} ${percent(100 * share)}`).join(", ");
  const stages = Object.entries(one.stages || {}).map(([name, seconds]) => `${name} ${span(seconds)}`).join(", ");
  const fault = one.fault ? `: ${words(one.fault)}` : "";
  const rows = Object.entries(one.metrics || {});
  return [
    h("h3", {}, `Attempt ${one.attempt} on ${one.cluster}, ${one.end || "running"}${fault}`),
    h("p", {}, one.bound_by ? `Bound by ${one.bound_by} (${shares}).` : "What it is bound by is not known."),
    stages ? h("p", { class: "soft small" }, `Stages: ${stages}. Measured for ${span(one.measured_s || 0)}.`) : null,
    one.results ? h("p", { class: "soft small" }, `Step ${count(one.results.last_step)}${one.results.loss === undefined || one.results.loss === null ? "" : `, loss ${one.results.loss}`}${one.results.steps_per_s ? `, ${one.results.steps_per_s.toPrecision(3)} steps/s` : ""}.`) : null,
    table([
      { head: "metric", cell: ([name]) => label(name) }, { head: "p50", num: true, cell: ([name, value]) => shown(name, value.p50) },
      { head: "p95", num: true, cell: ([name, value]) => shown(name, value.p95) }, { head: "peak", num: true, cell: ([name, value]) => shown(name, value.peak) },
    ], rows, "Nothing was measured."),
  ];
}

export function profile(reply) {
  if (!reply || reply.type !== "api.profile.v1" || !reply.attempts?.length) return [h("p", { class: "note" }, "Nothing was measured of it yet.")];
  return [...reply.attempts].reverse().slice(0, 5).flatMap(attempt);
}
