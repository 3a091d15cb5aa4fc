// What ended jobs used, and how figures went: asked of the usage service, which keeps them.
import { post } from "./api.js";
import { fill, h, table } from "./dom.js";
import { clock, count, percent, span } from "./format.js";
import { me } from "./me.js";
import { plot } from "./plot.js";
import { parse, set } from "./route.js";
import { now } from "./store.js";

const GROUPS = ["tenant", "queue", "owner", "model", "cluster", "day", "month"];
const PERIODS = [["1", "last day"], ["7", "last week"], ["30", "last 30 days"], ["365", "last year"]];
const SPANS = [["hour", "hour"], ["day", "day"], ["month", "month"]];
const PLOTS = [
  [["allocation_percent", "fragmentation_percent"], "Allocation and fragmentation", " %", 100], [["waiting", "live"], "Jobs", "", null],
  [["wait_p50_s", "wait_p95_s"], "Waits", " s", null], [["placements_per_s", "endings_per_s"], "Placements and endings per second", "", null],
];

const hours = (value) => (value === undefined || value === null ? "–" : count(value));

function columns(group, currency) {
  return [
    ...group.map((name) => ({ head: name, cell: (row) => (name === "day" || name === "month" ? row.period : row[name]) || "–" })),
    { head: "jobs", num: true, cell: (row) => count(row.jobs ?? 0) }, { head: "failed", num: true, cell: (row) => count(row.failed ?? 0) },
    { head: "evictions", num: true, cell: (row) => count(row.evictions ?? 0) }, { head: "requested GPU-h", num: true, cell: (row) => hours(row.asked_gpu_h ?? 0) },
    { head: "allocated GPU-h", num: true, cell: (row) => hours(row.held_gpu_h ?? 0) }, { head: "used GPU-h", num: true, cell: (row) => hours(row.used_gpu_h) },
    { head: "wait p50", num: true, cell: (row) => (row.wait_p50_s === undefined || row.wait_p50_s === null ? "–" : span(row.wait_p50_s)) },
    { head: "p95", num: true, cell: (row) => (row.wait_p95_s === undefined || row.wait_p95_s === null ? "–" : span(row.wait_p95_s)) },
    { head: "cost", num: true, cell: (row) => (row.cost === undefined || row.cost === null ? "–" : `${count(row.cost)} ${currency}`) },
  ];
}

export function reports(root) {
  const bar = h("div", { class: "filters" }), card = h("section", { class: "card" }), trends = h("section", { class: "card" });
  root.append(h("h1", { class: "hidden" }, "Reports"), bar, h("div", { class: "stack" }, card, trends));
  let timer = 0;

  function pick(name, options, label, first) {
    const at = parse().query.get(name) || first;
    return h("select", { "aria-label": label, "data-keep": name, onchange: (event) => set({ [name]: event.target.value }, true) },
      options.map(([value, text]) => h("option", { value, selected: value === at }, text)));
  }

  async function load() {
    clearTimeout(timer);
    const query = parse().query, group = [query.get("group") || "queue"].filter((name) => GROUPS.includes(name));
    fill(bar, "By", pick("group", GROUPS.map((name) => [name, name]), "Group", "queue"), pick("days", PERIODS, "Period", "7"), "Trends by", pick("span", SPANS, "Trends", "hour"));
    const tenant = me.role === "tenant" ? me.tenants[0] : "";
    const own = tenant ? { tenant } : {};
    const until = now(), since = until - 86400 * Number(query.get("days") || 7);
    const [report, told] = await Promise.allSettled([
      post("report", { ...own, kind: "usage", since_s: since, until_s: until, group }), post("trends", { ...own, span: query.get("span") || "hour" }),
    ]);
    const wrong = (result) => (result.status === "rejected" ? result.reason.message : result.value.type === "api.refusal.v1" ? `${result.value.field}: ${result.value.expected}` : "");
    fill(card, h("h2", {}, "Usage of ended jobs"), wrong(report) ? h("p", { class: "error" }, wrong(report))
      : [table(columns(group, report.value.currency || ""), [...(report.value.rows || [])], "No jobs ended in this period."),
        h("p", { class: "soft small" }, `${clock(since)} to ${clock(until)}. Total: ${hours(report.value.total?.held_gpu_h ?? 0)} GPU-hours allocated to ${count(report.value.total?.jobs ?? 0)} jobs. `, (report.value.notes || []).join("; "))]);
    if (wrong(told)) fill(trends, h("h2", {}, "Trends"), h("p", { class: "error" }, wrong(told)));
    else draw(told.value);
    timer = setTimeout(load, 30_000);
  }

  function draw(told) {
    if (!trends.querySelector(".plot")) {
      trends.replaceChildren(h("h2", {}, "Trends"), h("div", { class: "columns even" }, PLOTS.map(([, title]) => h("div", {}, h("h3", {}, title), h("div", { class: "plot" })))));
    }
    const holders = trends.querySelectorAll(".plot");
    PLOTS.forEach(([names, , unit, most], at) => {
      const lines = names.map((name, index) => [name, (told.trends || []).find((one) => one.name === name && one.means?.length), index]).filter(([, line]) => line);
      const length = Math.max(0, ...lines.map(([, line]) => line.means.length));
      if (!length) return fill(holders[at], h("p", { class: "note" }, "No data yet."));
      const times = Array.from({ length }, (_, i) => told.since_s + i * told.step_s);
      plot(holders[at], times, lines.map(([name, line, index]) => [name.replaceAll("_", " "), line.means, index ? "degraded" : "accent"]), { most, unit, height: 170 });
    });
  }

  load();
  return { routed: load, recolour: load, end: () => clearTimeout(timer) };
}
