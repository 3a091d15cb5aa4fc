// Queues in the order in which they go first, with what each may have and has.
import { fill, h, table } from "./dom.js";
import { count, span } from "./format.js";
import { link } from "./route.js";
import { all, get, on } from "./store.js";

function meter(queue, most) {
  const share = (value) => `${Math.min(100, (100 * value) / most)}%`, own = queue.used - queue.borrowed;
  const words = `${count(queue.used)} used${queue.borrowed ? `, ${count(queue.borrowed)} of it borrowed` : ""}`;
  const mark = (value, name, kind) => (value === null ? null : h("u", { class: kind, title: `${name} ${count(value)}`, style: { left: share(value) } }));
  return h("div", { class: "meter", role: "img", "aria-label": words, title: words },
    h("i", { style: { width: share(own) } }), queue.borrowed ? h("i", { class: "over", style: { left: share(own), width: share(queue.borrowed) } }) : null,
    mark(queue.guarantee, "guarantee"), mark(queue.deserved, "deserved"), mark(queue.capability, "limit", "cap"));
}

// Each below its parent; those of one parent by priority, then by name.
function asTree(list) {
  const named = new Map(list.map((queue) => [queue.queue, queue]));
  const order = (a, b) => (!a || !b ? (a ? 1 : b ? -1 : 0) : b.priority - a.priority || b.waiting - a.waiting || a.queue.localeCompare(b.queue));
  const way = (queue) => [...(queue.above || []).map((name) => named.get(name)).filter(Boolean), queue];
  return [...list].sort((a, b) => {
    const mine = way(a), theirs = way(b);
    for (let at = 0; at < Math.max(mine.length, theirs.length); at += 1) if (mine[at] !== theirs[at]) return order(mine[at], theirs[at]);
    return 0;
  });
}

const amount = (value) => (value === null ? "–" : count(value));

export function queues(root) {
  const ours = h("section", { class: "card" }), kueue = h("section", { class: "card" }), deciders = h("section", { class: "card" });
  root.append(h("h1", { class: "hidden" }, "Queues"), h("div", { class: "stack" }, ours, kueue, deciders));
  function show() {
    const list = asTree(all("queue/"));
    const most = Math.max(1, ...list.map((queue) => Math.max(queue.used, queue.guarantee ?? 0, queue.deserved ?? 0, queue.capability ?? 0)));
    fill(ours, h("h2", {}, "Queues"), table([
      { head: "queue", cell: (queue) => [h("span", { style: { paddingLeft: `${1.2 * (queue.above || []).length}em` } }), h("a", { href: link("jobs", [], { queue: queue.queue }) }, queue.queue), " ",
        queue.held ? h("span", { class: "chip warn" }, "held") : null, queue.deleted ? h("span", { class: "chip bad" }, "deleted") : null,
        queue.via !== "direct" ? h("span", { class: "chip" }, `by Kueue (${queue.via})`) : null] },
      { head: "priority", num: true, cell: (queue) => queue.priority }, { head: "weight", num: true, cell: (queue) => count(queue.weight) },
      { head: "GPUs", cell: (queue) => meter(queue, most) }, { head: "used", num: true, cell: (queue) => count(queue.used) },
      { head: "borrowed", num: true, cell: (queue) => count(queue.borrowed) }, { head: "guarantee", num: true, cell: (queue) => amount(queue.guarantee) },
      { head: "deserved", num: true, cell: (queue) => amount(queue.deserved) }, { head: "limit", num: true, cell: (queue) => amount(queue.capability) },
      { head: "placed", num: true, cell: (queue) => `${count(queue.live)}${queue.max_running_jobs === null ? "" : ` of ${queue.max_running_jobs}`}` },
      { head: "pending", num: true, cell: (queue) => (queue.waiting ? h("a", { href: link("jobs", [], { queue: queue.queue, state: "waiting" }) }, count(queue.waiting)) : "0") },
      { head: "mean wait", num: true, cell: (queue) => (queue.mean_wait_s === null ? "–" : span(queue.mean_wait_s)) },
      { head: "tenants", cell: (queue) => (queue.tenants.length ? queue.tenants.join(", ") : "all") },
    ], list, "No queue is set or used."),
    h("p", { class: "soft small" }, "Bars: used GPUs; the last segment is borrowed beyond the deserved share. Marks: guarantee, deserved share and limit. Among queues of one parent, higher priority goes first. A parent includes all queues below."));
    const theirs = get("kueue") || [];
    kueue.hidden = !theirs.length;
    fill(kueue, h("h2", {}, "Kueue ClusterQueues"), table([
      { head: "cluster", cell: (queue) => h("a", { href: link("cluster", [queue.cluster]) }, queue.cluster) },
      { head: "queue", cell: (queue) => [queue.queue, queue.active ? null : h("span", { class: "chip bad", title: queue.reason }, "inactive")] },
      { head: "cohort", cell: (queue) => queue.cohort || "–" }, { head: "resources", cell: (queue) => queue.resources.join(", ") },
      { head: "used", num: true, cell: (queue) => `${count(queue.used)} of ${count(queue.nominal)}` },
      { head: "admitted", num: true, cell: (queue) => queue.admitted }, { head: "pending", num: true, cell: (queue) => queue.pending },
    ], theirs, ""));
    fill(deciders, h("h2", {}, "Resolvers"), table([
      { head: "cell", cell: ([name]) => name }, { head: "placements/s", num: true, cell: ([, one]) => count(one.placements_per_s) },
      { head: "decision time", num: true, cell: ([, one]) => (one.decide_ms === null ? "–" : `${count(one.decide_ms)} ms`) },
      { head: "fairness", num: true, cell: ([, one]) => one.fairness }, { head: "fragmented", num: true, cell: ([, one]) => `${count(one.fragmentation_percent)} %` },
    ], Object.entries(get("deciders") || {}), "No resolver has reported yet."));
  }
  show();
  const end = on("", (keys) => [...keys].some((key) => key.startsWith("queue/") || key === "kueue" || key === "deciders") && show());
  return { routed: show, end };
}
