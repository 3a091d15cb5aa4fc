// One cluster: its GPUs large, its scores, and the node that was chosen with each of its GPUs.
import { ask } from "./api.js";
import { acts } from "./act.js";
import { fill, h, pairs, table } from "./dom.js";
import { freshness, modeOf, open, toolbar } from "./fleet.js";
import { ago, count, mib, percent, span } from "./format.js";
import { GridCanvas } from "./grid.js";
import { spark } from "./plot.js";
import { link, parse } from "./route.js";
import { get, grids, now, on } from "./store.js";
import * as tip from "./tip.js";

const RESOURCES = [["gpu", "GPU"], ["cpu", "CPU"], ["mem", "memory"], ["tpu", "TPU"]];

function scores(cluster) {
  const rows = RESOURCES.filter(([key]) => `${key}ClusterAvailable` in cluster.scores);
  return h("section", { class: "card" }, h("h2", {}, "Scores"),
    table([
      { head: "of", cell: ([, name]) => name },
      { head: "whole cluster", num: true, cell: ([key]) => cluster.scores[`${key}ClusterAvailable`] },
      { head: "best node", num: true, cell: ([key]) => cluster.scores[`${key}NodeAvailable`] ?? "?" },
    ], rows, "No scores yet."),
    h("p", { class: "soft small" }, `Scores for Open Cluster Management: -100 = no capacity, 100 = most. Freshness: ${cluster.freshness}. `, cluster.note));
}

function about(cluster) {
  const [seen, scored] = get("seen")?.[cluster.cluster] || [];
  return h("section", { class: "card" }, h("h2", {}, "Cluster"), pairs([
    ["Last heartbeat", seen ? `${ago(seen)} ago` : "never"],
    ["Last score", scored ? `${ago(scored)} ago` : "never"],
    ["Nodes", count(cluster.nodes)],
    ["GPUs", Object.entries(cluster.models).map(([model, number]) => `${count(number)} ${model}`).join(", ")],
    ["Free", `${count(cluster.free_gpus)} GPUs`],
    ["Measured idle", percent(cluster.idle_gpu_percent)],
    ["Fragmented", cluster.fragmentation_percent === null ? "?" : `${percent(cluster.fragmentation_percent)} of free capacity`],
    ["Largest gang", Object.entries(cluster.largest_gang).map(([model, number]) => `${count(number)} ${model}`).join(", ")],
    [cluster.draining ? "Drained" : "Cordoned", cluster.cordoned], ["Lost", cluster.lost],
  ]));
}

function gpuLine(gpu, cluster, node) {
  return h("div", { class: "gpu row spread" },
    h("a", { href: link("cluster", [cluster, node, String(gpu.index)]) }, `GPU ${gpu.index}`),
    h("span", { class: "soft small" }, gpu.utilization_percent === undefined ? "not measured" : `${percent(gpu.utilization_percent)} busy`,
      `, ${gpu.held_milli / 10} % allocated`, gpu.health === "lost" || !gpu.offered ? ", lost" : ""),
    spark(gpu.busy, { width: 80, height: 20 }));
}

function gpuBlock(gpu, chosen) {
  const holders = gpu.holders.map((holder) => h("span", {},
    h("a", { href: link("job", [holder.tenant, holder.id]) }, holder.id), holder.milli < 1000 ? ` ${holder.milli / 10} %` : "", " "));
  return h("div", { class: `gpu${chosen ? " chosen" : ""}` },
    h("div", { class: "row spread" },
      h("div", {}, h("b", {}, `GPU ${gpu.index}`), " ", h("span", { class: "soft" }, gpu.model), " ",
        gpu.health && gpu.health !== "ok" ? h("span", { class: "chip bad" }, `${gpu.health}: ${gpu.health_reason}`) : null,
        gpu.offered ? null : h("span", { class: "chip bad" }, "not offered")),
      spark(gpu.busy)),
    pairs([
      ["Busy", gpu.utilization_percent === undefined ? "not measured" : `${percent(gpu.utilization_percent)}${typeof gpu.sm_active_percent === "number" ? `, ${percent(gpu.sm_active_percent)} of its SMs` : ""}`],
      ["Allocated", `${gpu.held_milli / 10} %${gpu.foreign_milli ? ` (unmanaged ${gpu.foreign_milli / 10} %)` : ""}`],
      ["Memory", gpu.memory_used_mib === undefined ? mib(gpu.memory_mib) : `${mib(gpu.memory_used_mib)} of ${mib(gpu.memory_total_mib)}`],
      ["Temperature, power", gpu.temperature_c === undefined || gpu.temperature_c === null ? null : `${Math.round(gpu.temperature_c)} °C, ${Math.round(gpu.power_w)} of ${Math.round(gpu.power_limit_w)} W`],
      ["Jobs", holders.length ? holders : null],
      ["MIG", gpu.mig?.length ? gpu.mig.map((slice) => slice.profile).join(", ") : null],
      ["Throttled", gpu.throttle_reasons?.join(", ")],
      ["XID", gpu.xid ?? null],
      ["Id", chosen ? h("code", {}, gpu.uuid) : null],
    ]));
}

function nodeCard(node, chosen) {
  return h("section", { class: "card", "aria-label": `Node ${node.node}` },
    h("div", { class: "row spread" }, h("h2", {}, node.node), acts.place(node.cluster, node.node, node.schedulable, node.draining)),
    h("p", {}, h("span", { class: `chip ${node.ready ? "good" : "bad"}` }, node.ready ? "ready" : "not ready"), " ",
      node.schedulable ? null : h("span", { class: "chip warn" }, node.draining ? "drained" : "cordoned"), " ",
      h("span", { class: "soft" }, node.heard_at_s ? `readings ${span(now() - node.heard_at_s)} old` : "no samples")),
    node.gpus.map((gpu) => (gpu.index === chosen ? gpuBlock(gpu, true) : gpuLine(gpu, node.cluster, node.node))),
    node.shares.length ? pairs(node.shares.map((share) => [share.resource, `${share.count} of ${share.milli / 10} %`])) : null,
    h("h3", {}, "Managed pods"),
    table([
      { head: "job", cell: (pod) => h("a", { href: link("job", [pod.tenant, pod.id]) }, pod.id) },
      { head: "tenant", cell: (pod) => pod.tenant },
      { head: "GPUs", cell: (pod) => (pod.gpus.length ? pod.gpus.join(", ") : "none") },
      { head: "CPU", num: true, cell: (pod) => `${count(pod.cpu_milli / 1000)}` },
    ], node.pods, "None."));
}

export function cluster(root) {
  const crumbs = h("div", { class: "crumbs" }), bar = h("div", {}), holder = h("section", { class: "card" });
  const side = h("div", { class: "stack" }), facts = h("div", { class: "stack" });
  root.append(crumbs, bar, h("div", { class: "columns" }, h("div", { class: "stack" }, holder, facts), side));
  let name = "", canvas = null, timer = 0, gone = new AbortController();

  function head() {
    const told = get(`cluster/${name}`);
    if (!told) {
      fill(crumbs, h("a", { href: link("fleet") }, "Fleet"), "/", h("h1", {}, name));
      fill(facts, h("p", { class: "note" }, "No cluster has this name."));
      return;
    }
    const [state, words] = freshness(told);
    fill(crumbs, h("a", { href: link("fleet") }, "Fleet"), "/", h("h1", {}, name), h("span", { class: `fresh ${state}` }, words),
      acts.place(name, "", told.cordoned === null, told.draining));
    fill(facts, h("div", { class: "columns even" }, scores(told), about(told)));
  }

  function draw(anew = false) {
    const grid = grids.get(name);
    if (!grid) {
      fill(holder, h("p", { class: "note" }, "No GPUs to show: the cluster has none, or you may not see them."));
      return;
    }
    if (!canvas || canvas.grid.cluster !== name) {
      const cell = Math.max(6, Math.min(26, Math.floor(Math.sqrt((holder.clientWidth * innerHeight * 0.4) / Math.max(1, grid.gpus))) - 3));
      canvas = new GridCanvas(grid, { cell, mode: modeOf(), pick: (row) => open(grids.get(name), row), hover: (row, event) => tip.show(canvas, row, event) });
      holder.replaceChildren(canvas.canvas);
    } else if (canvas.grid !== grid) canvas.take(grid);
    canvas.draw(holder.clientWidth - 34, modeOf(), anew);
  }

  async function node() {
    clearTimeout(timer);
    gone.abort();
    gone = new AbortController();
    const [, wanted, index] = parse().parts, mine = gone;
    if (!wanted) {
      fill(side, h("section", { class: "card" }, h("p", { class: "note" }, "Select a GPU to see its node, its jobs and its usage.")));
      return;
    }
    try {
      const told = await ask(`node/${encodeURIComponent(name)}/${encodeURIComponent(wanted)}`, gone.signal);
      fill(side, nodeCard(told, Number(index)));
    } catch (error) {
      if (mine.signal.aborted) return;
      fill(side, h("section", { class: "card" }, h("p", { class: "error" }, error.message)));
    }
    if (!mine.signal.aborted) timer = setTimeout(node, 1000);
  }

  function routed() {
    const [wanted, nodeName, index] = parse().parts;
    if (wanted !== name) {
      name = wanted || "";
      canvas = null;
    }
    fill(bar, toolbar(modeOf()));
    head();
    draw(true);
    const found = nodeName && canvas?.grid.nodes.find((each) => each.name === nodeName);
    if (canvas) canvas.select(found ? found.first + Number(index || 0) : -1);
    node();
  }

  routed();
  const resized = new ResizeObserver(() => draw());
  resized.observe(holder);
  const end = on("", (keys) => {
    if (keys.has(`cluster/${name}`) || keys.has("time")) head();
    if (keys.has(`gpus/${name}`) || keys.has(`layout/${name}`)) draw();
  });
  return {
    routed,
    recolour: () => draw(true),
    end() {
      clearTimeout(timer);
      gone.abort();
      resized.disconnect();
      tip.hide();
      end();
    },
  };
}
