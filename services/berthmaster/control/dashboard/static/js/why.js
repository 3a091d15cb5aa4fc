// Reasons of a placement or a wait, from the resolver, for job pages and dry runs.
import { fill, h, table } from "./dom.js";
import { clock, count, percent, span, words } from "./format.js";
import { link } from "./route.js";
import { now } from "./store.js";

export function bars(parts) {
  const shown = Object.entries(parts).filter(([, value]) => value > 0);
  const total = Math.max(1, Object.keys(parts).length * 100);
  return h("div", { class: "scoreparts", role: "img", "aria-label": Object.entries(parts).map(([name, value]) => `${words(name)} ${Math.round(value)}`).join(", ") },
    shown.map(([name, value]) => h("i", { title: `${words(name)} ${Math.round(value)}`, style: { flex: `0 0 ${(100 * value) / total}%` } })));
}

export function ranking(ranked) {
  const names = [...new Set(ranked.flatMap((one) => Object.keys(one.parts)))];
  return table([
    { head: "#", num: true, cell: (one) => ranked.indexOf(one) + 1 },
    { head: "cluster", cell: (one) => h("a", { href: link("cluster", [one.cluster]) }, one.cluster) },
    { head: "score", num: true, cell: (one) => one.score.toFixed(1) },
    { head: "components", cell: (one) => bars(one.parts) },
    ...names.map((name) => ({ head: words(name), num: true, cell: (one) => (name in one.parts ? Math.round(one.parts[name]) : "–") })),
    { head: "seen", num: true, cell: (one) => span(one.input_age_s) },
  ], ranked, "No suitable cluster.");
}

export function leftOut(filtered) {
  const by = {};
  for (const [cluster, reason] of Object.entries(filtered)) (by[reason] ||= []).push(cluster);
  const rows = Object.entries(by).sort((a, b) => b[1].length - a[1].length);
  return table([
    { head: "filtered out", cell: ([, clusters]) => clusters.sort().join(", ") },
    { head: "why", kind: "why", cell: ([reason]) => reason },
  ], rows, "No cluster was filtered out.");
}

export function account(told) {
  if (!told) return null;
  const gpus = (milli) => count(milli / 1000);
  const parts = [`${gpus(told.used_gpu_milli ?? 0)} GPUs allocated`];
  if (told.guarantee_gpu_milli !== undefined) parts.push(`${gpus(told.guarantee_gpu_milli)} guaranteed`);
  if (told.deserved_gpu_milli !== undefined) parts.push(`${gpus(told.deserved_gpu_milli)} deserved`);
  if (told.capability_gpu_milli !== undefined) parts.push(`limit ${gpus(told.capability_gpu_milli)}`);
  if (told.borrowed_gpu_milli) parts.push(`${gpus(told.borrowed_gpu_milli)} borrowed`);
  if (told.held) parts.push("held");
  return h("p", { class: "soft" }, `Queue ${told.queue}: ${parts.join(", ")}.`);
}

// When it begins and ends: ``told`` is an Expectation, its times in seconds since 1970.
export function expected(told, at = now()) {
  if (!told) return "";
  const known = (value) => value !== undefined && value !== null;
  const range = (low, high, since) => (known(low) && known(high) && high > low ? ` (${span(Math.max(0, low - since))} to ${span(Math.max(0, high - since))})` : "");
  const said = ["starts", "ends"].filter((name) => known(told[`${name}_s`])).map((name) =>
    `${name} ${told[`${name}_s`] > at ? `in ${span(told[`${name}_s`] - at)}` : "now"}${range(told[`${name}_low_s`], told[`${name}_high_s`], at)}`);
  if (!said.length && known(told.lasts_s)) said.push(`takes ${span(told.lasts_s)}${range(told.lasts_low_s, told.lasts_high_s, 0)}`);
  if (!said.length) return "";
  return `${said.join(", ")}, ${told.by === "similar" ? `by ${count(told.jobs)} similar ${told.jobs === 1 ? "job" : "jobs"}` : "as stated"}`;
}

export function problem(reply) {
  if (!reply) return "no answer";
  if (reply.type === "error") return reply.error;
  if (reply.type === "api.refusal.v1") return `${reply.field ? `${reply.field}: ` : ""}${reply.value ? `${reply.value} is invalid; ` : ""}expected ${reply.expected}`;
  return "";
}

// ``reply`` is a WhyReply, or what stands in its place.
export function why(reply) {
  const wrong = problem(reply);
  if (wrong) return h("p", { class: "error" }, wrong);
  const told = [h("p", { class: `verdict ${reply.state === "queued" ? "warn" : ""}`, id: "why-summary" }, reply.summary)];
  const places = [];
  if (reply.position) places.push(`position ${reply.position} of ${count(reply.waiting)} pending jobs`);
  if (reply.queue_position) places.push(`position ${reply.queue_position} in its queue`);
  if (reply.first_free_s !== undefined && reply.first_free_s !== null) places.push(`capacity in about ${span(Math.max(0, reply.first_free_s - now()))}`);
  if (reply.reservation) places.push(`capacity is reserved on ${reply.reservation.cluster}${reply.reservation.expected_at_s ? `, about ${clock(reply.reservation.expected_at_s)}` : ""}`);
  if (reply.held_back) places.push(`${count(reply.held_back)} earlier jobs have reserved capacity that it would fit in`);
  const times = expected(reply.expected);
  if (times) told.push(h("p", { id: "why-expected" }, `Expected: ${times}.`));
  if (places.length) told.push(h("p", {}, `${places.join("; ")}.`));
  if (reply.hints?.length) told.push(h("h3", {}, "Suggestions"), h("ul", { class: "hints" }, reply.hints.map((hint) => h("li", {}, hint))));
  told.push(account(reply.account));
  if (reply.choice) told.push(choice(reply.choice));
  else if (reply.filtered && Object.keys(reply.filtered).length) told.push(h("h3", {}, "Clusters"), leftOut(reply.filtered));
  return told;
}

export function choice(made) {
  const nodes = [...new Set(made.pods.map((pod) => pod.node))];
  return [
    h("p", {}, "→ ", h("b", {}, h("a", { href: link("cluster", [made.cluster]) }, made.cluster)), ` ${nodes.slice(0, 4).join(", ")}${nodes.length > 4 ? ` and ${nodes.length - 4} more` : ""} `,
      h("span", { class: "soft" }, `attempt ${made.attempt}, ranked by ${made.profile || "balanced"}`)),
    made.follows ? h("p", { class: "soft" }, made.follows) : null,
    h("h3", {}, "Ranking"), ranking(made.ranking || []),
    Object.keys(made.filtered || {}).length ? [h("h3", {}, "Filtered out"), leftOut(made.filtered)] : null,
  ];
}
