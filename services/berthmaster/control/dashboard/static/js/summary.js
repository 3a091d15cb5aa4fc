// The three facts above every view: how full the fleet is, what waits, what is broken.
import { ask } from "./api.js";
import { fill, h } from "./dom.js";
import { ago, count, many, percent } from "./format.js";
import { spark } from "./plot.js";
import { link } from "./route.js";
import { all, connection, get, on } from "./store.js";

const KEPT = 720;
const history = { held_percent: [], waiting: [] };

async function past() {
  try {
    const told = await ask("history");
    history.held_percent = told.held_percent;
    history.waiting = told.waiting;
    show();
  } catch {
    // the line begins with what comes from now on
  }
}

function point() {
  const told = get("pulse");
  for (const name of Object.keys(history)) {
    history[name].push(told[name]);
    if (history[name].length > KEPT) history[name].shift();
  }
}

// Of all, or of the tenants whose jobs may be seen.
export function jobs() {
  const whole = get("jobs");
  if (whole) return whole;
  const found = { counts: {}, oldest_at_s: null, changes: 0 };
  for (const one of all("jobs/")) {
    for (const [state, number] of Object.entries(one.counts)) found.counts[state] = (found.counts[state] || 0) + number;
    if (one.oldest_at_s) found.oldest_at_s = Math.min(found.oldest_at_s || Infinity, one.oldest_at_s);
    found.changes += one.changes;
  }
  return found;
}

function full() {
  const fleet = get("fleet");
  if (!fleet) return h("div", { class: "fact" }, "No cluster has reported yet.");
  const held = fleet.held_percent ?? 0;
  return h("div", { class: "fact", id: "fact-full" },
    h("span", { class: "big" }, fleet.held_percent === null ? "?" : Math.round(held), h("small", {}, "% allocated")),
    h("div", { class: "say" },
      h("div", { class: "bar", role: "img", "aria-label": `${percent(held)} allocated, ${percent(fleet.busy_percent)} busy` },
        h("i", { style: { width: `${held}%` } }), h("i", { style: { width: `${fleet.busy_percent ?? 0}%` } })),
      h("p", {}, h("b", {}, count(fleet.held_gpus)), ` of ${many(fleet.gpus - fleet.lost_gpus, "GPU")} allocated, `,
        h("b", {}, percent(fleet.busy_percent)), " busy"),
      h("p", { class: "soft small" }, `${many(fleet.clusters, "cluster")}, ${many(fleet.nodes, "node")}`)),
    spark(history.held_percent));
}

function waits() {
  const told = jobs(), waiting = told.counts.queued || 0;
  const live = ["placed", "claimed", "admitted", "running"].reduce((sum, state) => sum + (told.counts[state] || 0), 0);
  return h("div", { class: `fact ${waiting ? "warn" : "good"}`, id: "fact-waits" },
    h("span", { class: "big" }, count(waiting), h("small", {}, "pending")),
    h("div", { class: "say" },
      h("p", {}, waiting ? h("a", { href: link("jobs", [], { state: "waiting", sort: "waited" }) }, `longest ${ago(told.oldest_at_s)}`) : "no pending jobs"),
      h("p", {}, h("a", { href: link("jobs", [], { state: "live" }) }, many(live, "job")), " placed"),
      h("p", { class: "soft small" }, `${count((told.counts.failed || 0))} failed recently`)));
}

function broken() {
  const told = get("problems") || [], bad = told.filter((line) => line.level === "broken"), notes = told.length - bad.length;
  const away = connection.state === "lost";
  const number = bad.length + (away ? 1 : 0);
  const lines = [...(away ? [{ level: "broken", cluster: "", text: "no connection: this page shows old data" }] : []), ...told];
  return h("div", { class: `fact ${number ? "bad" : notes ? "" : "good"}`, id: "fact-broken" },
    h("span", { class: "big" }, number ? number : "✓", h("small", {}, number ? " broken" : notes ? many(notes, "note") : "all well")),
    h("div", { class: "say" },
      lines.length ? h("ul", { class: "problems" }, lines.slice(0, 3).map(problem)) : h("p", { class: "soft" }, "Nothing is silent, lost or degraded."),
      lines.length > 3 ? h("p", { class: "small" }, h("a", { href: link("problems") }, `and ${lines.length - 3} more`)) : null));
}

export function problem(line) {
  return h("li", { class: line.level, title: line.text },
    line.cluster ? [h("a", { href: link("cluster", [line.cluster]) }, line.cluster), " "] : null, line.text,
    line.since_s ? `, for ${ago(line.since_s)}` : "");
}

function show() {
  fill(document.getElementById("summary"), full(), waits(), broken());
}

export function start() {
  past();
  on("pulse", point);
  on("", (keys) => {
    if (["fleet", "problems", "connection", "time", "pulse"].some((key) => keys.has(key)) || [...keys].some((key) => key.startsWith("jobs"))) show();
  });
  show();
}
