// Jobs as a table: pending with reasons, placed, and ended. The address has the filters.
import { ask } from "./api.js";
import { fill, h, table } from "./dom.js";
import { ago, count, span } from "./format.js";
import { me } from "./me.js";
import { link, parse, set } from "./route.js";
import { all, get, now, on } from "./store.js";
import { jobs as known } from "./summary.js";
import { expected } from "./why.js";

const STATES = [["", "All"], ["waiting", "Pending"], ["live", "Placed"], ["running", "Running"], ["ended", "Ended"], ["failed", "Failed"]];
const SORTS = [["", "default order"], ["waited", "longest wait"], ["gpus", "most GPUs"], ["priority", "priority"], ["changed", "last change"]];
const PAGE = 100;

export const jobLink = (job) => h("a", { href: link("job", [job.tenant, job.id]), class: "mono" }, job.id);
export const chip = (state) => h("span", { class: `chip ${state}` }, state === "queued" ? "pending" : state);

function place(job) {
  const names = job.parts?.length ? job.parts.map((part) => part.cluster) : job.cluster ? [job.cluster] : [];
  return names.map((name, at) => [at ? ", " : "", h("a", { href: link("cluster", [name]) }, name)]);
}

function why(job) {
  if (job.state !== "queued") return job.reason;
  if (!job.why) return job.reason || "";
  const free = job.why.first_free_s;
  const said = [job.why.summary.replace(/\.$/, "")];
  if (job.why.position) said.push(`position ${job.why.position} of all pending jobs`);
  const times = expected(job.why.expected);
  if (times) said.push(times);
  else if (free !== null && free !== undefined) said.push(`capacity in about ${span(Math.max(0, free - now()))}`);
  return said.join("; ");
}

function times(job) {
  if (job.state === "queued") return `pending ${ago(job.submitted_at_s)}`;
  if (job.state === "running") return `running ${ago(job.running_at_s || job.placed_at_s)}`;
  return `${ago(job.changed_at_s)} ago`;
}

const COLUMNS = [
  { head: "job", cell: jobLink },
  { head: "state", cell: (job) => [chip(job.state), job.cancelling ? h("span", { class: "chip warn" }, "cancelling") : job.held ? h("span", { class: "chip warn" }, "held") : null] },
  { head: "tenant", cell: (job) => job.tenant },
  { head: "queue", cell: (job) => (job.queue ? h("a", { href: link("jobs", [], { queue: job.queue }) }, job.queue) : "") },
  { head: "GPUs", num: true, cell: (job) => [count(job.gpus), job.models.length ? h("span", { class: "soft" }, ` ${job.models.join(", ")}`) : null] },
  { head: "prio", num: true, cell: (job) => job.priority },
  { head: "cluster", cell: place },
  { head: "since", num: true, cell: times },
  { head: "reason and expected start", kind: "why", cell: why },
  { head: "origin", cell: (job) => (job.origin ? h("span", { title: job.namespace }, `kubectl: ${job.origin}`) : "") },
];

export function jobs(root) {
  const filters = h("div", { class: "filters" }), list = h("section", { class: "card" });
  const ticker = h("section", { class: "card" });
  root.append(h("h1", { class: "hidden" }, "Jobs"), filters, h("div", { class: "stack" }, list, ticker));
  let changes = -1, asking = false, again = false, told = null, wrong = "";

  function controls() {
    const { query } = parse(), at = (name) => query.get(name) || "";
    const pick = (name, options, label) => h("select", { "aria-label": label, "data-keep": name, onchange: (event) => set({ [name]: event.target.value, offset: "" }, true) },
      options.map(([value, text]) => h("option", { value, selected: value === at(name) }, text)));
    const queues = [["", "all queues"], ...all("queue/").map((queue) => [queue.queue, queue.queue])];
    const clusters = [["", "all clusters"], ...all("cluster/").map((one) => [one.cluster, one.cluster]).sort()];
    if (filters.contains(document.activeElement) && document.activeElement.type === "search") return;
    fill(filters,
      h("input", { type: "search", placeholder: "id, owner, label=value (/)", "aria-label": "Search", "data-keep": "q", value: at("q"), oninput: (event) => set({ q: event.target.value, offset: "" }) }),
      pick("state", STATES, "State"), pick("queue", queues, "Queue"), pick("cluster", clusters, "Cluster"), pick("sort", SORTS, "Order"),
      me.role !== "tenant" || me.tenants.length > 1 ? h("input", { placeholder: "tenant", "aria-label": "Tenant", "data-keep": "tenant", value: at("tenant"), onchange: (event) => set({ tenant: event.target.value.trim(), offset: "" }, true) }) : null);
    const search = filters.querySelector("input[type=search]");
    if (search) search.value = at("q");
  }

  async function load() {
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    const { query } = parse();
    query.set("limit", PAGE);
    changes = known().changes;
    try {
      told = await ask(`jobs?${query}`);
      wrong = "";
    } catch (error) {
      wrong = error.message;
    }
    asking = false;
    show();
    if (again) {
      again = false;
      load();
    }
  }

  function show() {
    if (wrong) return fill(list, h("p", { class: "error", role: "alert" }, wrong));
    if (!told) return;
    const from = Number(parse().query.get("offset") || 0);
    const more = h("p", { class: "row soft" }, `${count(told.total)} found`,
      from > 0 ? h("a", { href: link("jobs", [], { ...Object.fromEntries(parse().query), offset: Math.max(0, from - PAGE) || "" }) }, "earlier") : null,
      from + PAGE < told.total ? h("a", { href: link("jobs", [], { ...Object.fromEntries(parse().query), offset: from + PAGE }) }, "more") : null);
    fill(list, table(COLUMNS, told.rows, "No jobs match."), more);
  }

  function events() {
    const recent = get("recent") || all("recent/").flat().sort((a, b) => a.at_s - b.at_s);
    fill(ticker, h("h2", {}, "Recent events"), recent.length
      ? h("ul", { class: "ticker" }, [...recent].reverse().slice(0, 15).map((line) => h("li", {},
        h("span", { class: "soft" }, `${span(now() - line.at_s)} ago `), h("a", { href: link("job", [line.tenant, line.id]) }, line.id), ` ${line.kind.replaceAll("_", " ")}`,
        line.cluster ? ` on ${line.cluster}` : "", line.reason ? h("span", { class: "soft" }, `: ${line.reason}`) : null)))
      : h("p", { class: "note" }, "No events yet."));
  }

  function routed() {
    controls();
    load();
  }
  routed();
  events();
  const timer = setInterval(() => known().changes !== changes && load(), 1000);
  const slow = setInterval(load, 5000); // reasons and times change without an event
  const end = on("", (keys) => [...keys].some((key) => key.startsWith("recent") || key === "time") && events());
  return { routed, end() { clearInterval(timer); clearInterval(slow); end(); } };
}
