// One job: its story, the decision, its GPUs while it runs, and afterwards what they did.
import { ask, post } from "./api.js";
import { acts } from "./act.js";
import { fill, h, pairs, table } from "./dom.js";
import { ago, clock, count, mib, percent, span, words } from "./format.js";
import { chip } from "./jobs.js";
import { plot } from "./plot.js";
import { profile } from "./profile.js";
import { link, parse } from "./route.js";
import { now, on } from "./store.js";
import { jobs as known } from "./summary.js";
import { problem, why } from "./why.js";

const BAD = ["failed", "evicted", "withdrawn", "cancelled", "cancel_requested"], GOOD = ["running", "succeeded"];

const far = (told) => [`step ${count(told.step)}`, told.loss === null || told.loss === undefined ? "" : `loss ${Number(told.loss.toPrecision(4))}`,
  told.eta_s === null || told.eta_s === undefined ? "" : `ends in ${span(told.eta_s)}`].filter(Boolean).join(", ");

function progress(row) {
  const told = row?.progress, saved = row?.checkpoint;
  if (!told && !saved) return null;
  const left = told?.ends_at_s ? told.ends_at_s - now() : null;
  return pairs([
    ["Progress", told ? `${far({ ...told, eta_s: left === null ? null : Math.max(0, left) })}, reported ${ago(told.at_s)} ago` : null],
    ["Checkpoint", saved ? `step ${saved.step}, ${saved.uri}` : null],
  ]);
}

function line(one) {
  const kind = one.event.type.split(".")[1], event = one.event;
  const said = [];
  if (event.cluster) said.push(h("a", { href: link("cluster", [event.cluster]) }, event.cluster));
  if (event.pods?.length) said.push([...new Set(event.pods.map((pod) => pod.node))].slice(0, 3).join(", "));
  if (event.attempt) said.push(`attempt ${event.attempt}`);
  if (event.priority !== undefined) said.push(`priority ${event.priority}`);
  if (event.progress) said.push(far(event.progress));
  if (event.checkpoint && kind === "checkpointed") said.push(`step ${event.checkpoint.step}, ${event.checkpoint.uri}`);
  if (event.exit_code !== undefined && event.exit_code !== null) said.push(`exit code ${event.exit_code}`);
  return h("li", { class: BAD.includes(kind) ? "bad" : GOOD.includes(kind) ? "good" : "" },
    h("time", {}, clock(one.stored_at_s)), h("b", {}, words(kind)), one.void ? h("span", { class: "chip" }, "ignored") : null, " ",
    said.map((part, at) => [at ? ", " : "", part]), event.reason ? h("div", { class: "soft small" }, event.reason) : null,
    h("div", { class: "faint small" }, `by ${event.by}`));
}

function asked(request) {
  if (!request) return h("p", { class: "note" }, "The request is in the archive.");
  return [table([
    { head: "pods", cell: (pods) => `${count(pods.count ?? 1)} × ${pods.name || "main"}` },
    { head: "GPUs each", cell: (pods) => `${count(pods.gpus ?? 0)}${pods.gpu_milli && pods.gpu_milli < 1000 ? ` × ${pods.gpu_milli / 10} %` : ""} ${(pods.gpu_models || []).join(" or ")} ${pods.mig_profile || ""}` },
    { head: "CPU", num: true, cell: (pods) => count((pods.cpu_milli ?? 1000) / 1000) },
    { head: "memory", num: true, cell: (pods) => mib(pods.memory_mib ?? 1024) },
  ], request.pod_sets || [{}], ""),
  pairs([
    ["Image", request.run?.image], ["Command", request.run?.command?.join(" ")], ["Expected", request.expected_duration_s ? span(request.expected_duration_s) : null],
    ["Deadline", request.deadline_s ? span(request.deadline_s) : null], ["Clusters", request.clusters?.join(", ")],
    ["Labels", Object.entries(request.labels || {}).map(([name, value]) => `${name}=${value}`).join(", ")],
  ])];
}

function parts(tenant, all) {
  if (!all?.length) return null;
  return table([
    { head: "part", cell: (part) => h("a", { href: link("job", [tenant, part.id]), class: "mono" }, part.id) },
    { head: "cluster", cell: (part) => h("a", { href: link("cluster", [part.cluster]) }, part.cluster) }, { head: "pods", num: true, cell: (part) => count(part.pods) },
  ], all, "");
}

function gpuTable(gpus, cluster) {
  const known = (value, unit) => (value === 255 ? "?" : `${value}${unit}`);
  return table([
    { head: "node", cell: (gpu) => h("a", { href: link("cluster", [cluster, gpu.node, String(gpu.index)]) }, gpu.node) },
    { head: "GPU", num: true, cell: (gpu) => gpu.index }, { head: "busy", num: true, cell: (gpu) => known(gpu.busy, " %") },
    { head: "memory", num: true, cell: (gpu) => known(gpu.memory, " %") }, { head: "temperature", num: true, cell: (gpu) => known(gpu.heat, " °C") },
  ], gpus.slice(0, 64), "No GPU is allocated now.");
}

export function job(root) {
  const crumbs = h("div", { class: "crumbs" }), whyCard = h("section", { class: "card", "aria-label": "Why" }), use = h("section", { class: "card" });
  const plotted = h("div", { class: "plot" }), gpus = h("div", {}), story = h("section", { class: "card" }), request = h("section", { class: "card" });
  const profiled = h("section", { class: "card", "aria-label": "Profile" });
  use.append(h("h2", {}, "GPUs"), plotted, gpus);
  root.append(crumbs, h("div", { class: "columns" }, h("div", { class: "stack" }, whyCard, use, profiled), h("div", { class: "stack" }, story, request)));
  let timer = 0, gone = new AbortController(), told = null, profiledAt = 0;

  async function showProfile(tenant, id) {
    if (Date.now() - profiledAt < 10_000) return; // new samples come twice a minute
    profiledAt = Date.now();
    const reply = await post("profile", { tenant, id }).catch(() => null);
    const [shownTenant, shownId] = parse().parts;
    if (shownTenant === tenant && shownId === id) fill(profiled, h("h2", {}, "Profile"), profile(reply));
  }

  function show() {
    const { page, get } = told, view = get?.workload, [tenant, id] = parse().parts;
    const row = page?.job || (view && { tenant, id, state: view.state, cluster: view.cluster || "", priority: view.priority || 0, queue: view.queue || "", submitted_at_s: view.submitted_at_s });
    fill(crumbs, h("a", { href: link("jobs") }, "Jobs"), "/", h("h1", { class: "mono" }, id), row ? [chip(row.state),
      h("span", {}, `${tenant}${row.queue ? `, queue ${row.queue}` : ""}, priority ${row.priority}, submitted ${ago(row.submitted_at_s)} ago`),
      row.origin ? h("span", { class: "chip" }, `created with kubectl: ${row.namespace}/${row.origin}`) : null, row.part_of ? h("a", { href: link("job", [tenant, row.part_of]) }, `part of ${row.part_of}`) : null, acts.job(row)] : null);
    fill(whyCard, h("h2", {}, "Why"), page?.unreadable ? h("p", { class: "error" }, `Unreadable event: ${page.unreadable}`) : null, progress(row), why(told.why), parts(tenant, row?.parts));
    const series = page?.series;
    if (series?.at_s?.length > 1) {
      plot(plotted, series.at_s, [
        ["busiest", series.high, "soft"], ["mean busy", series.mean, "accent", { width: 2 }], ["idlest", series.low, "soft"], ["memory", series.memory, "degraded", { dash: [4, 3] }],
      ], { most: 100, height: 190 });
    } else fill(plotted, h("p", { class: "note" }, row?.state === "running" ? "No samples yet." : row?.state === "queued" ? "Not placed yet." : "No samples of its run."));
    fill(gpus, page?.gpus?.length ? gpuTable(page.gpus, row.cluster) : null);
    const wrong = problem(get);
    fill(story, h("h2", {}, "Events"), wrong ? h("p", { class: "error" }, wrong) : h("ol", { class: "timeline" }, [...(get.story || [])].reverse().map(line)));
    fill(request, h("h2", {}, "Requested"), asked(get?.request));
  }

  async function load() {
    clearTimeout(timer);
    gone.abort();
    gone = new AbortController();
    const mine = gone, [tenant, id] = parse().parts;
    try {
      told = await ask(`job/${encodeURIComponent(tenant || "")}/${encodeURIComponent(id || "")}`, gone.signal);
      show();
      showProfile(tenant, id);
    } catch (error) {
      if (mine.signal.aborted) return;
      fill(whyCard, h("p", { class: "error", role: "alert" }, error.message));
    }
    if (!mine.signal.aborted) timer = setTimeout(load, 2000);
  }

  load();
  let seen = known().changes;
  const end = on("jobs", () => {
    if (known().changes === seen) return;
    seen = known().changes;
    load();
  });
  return { routed() { profiledAt = 0; load(); }, recolour: () => told && show(), end() { clearTimeout(timer); gone.abort(); end(); } };
}
