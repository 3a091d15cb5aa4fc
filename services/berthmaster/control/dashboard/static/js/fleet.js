// Every cluster as a tile with its GPUs; one cluster zoomed, down to one GPU.
import { MODES } from "./colors.js";
import { choice, fill, h } from "./dom.js";
import { ago, count, percent } from "./format.js";
import { GridCanvas } from "./grid.js";
import { link, parse, set } from "./route.js";
import { all, get, grids, now, on } from "./store.js";
import * as tip from "./tip.js";

export function freshness(cluster) {
  const [seen] = get("seen")?.[cluster.cluster] || [];
  if (!seen) return ["stale", "never seen"];
  const age = now() - seen, interval = cluster.interval_s || 1;
  const state = age > Math.max(10, 3 * interval) ? "stale" : age > Math.max(4, 2 * interval) ? "aging" : "";
  return [state, state ? `seen ${ago(seen)} ago` : "live"];
}

export function toolbar(mode) {
  const hot = mode === "heat";
  return h("div", { class: "bench" },
    choice("Colour by", MODES, mode, (value) => set({ by: value === "busy" ? "" : value })),
    h("span", { class: "legend" },
      mode === "health" ? null : [hot ? "25 °C" : "0", h("span", { class: `ramp ${hot ? "hot" : "heat"}` }), hot ? "95 °C" : "100 %"],
      [["lost", "lost"], ["degraded", "degraded"], ["unknown", "not measured"], ["closed", "cordoned"], ["parts", "shared or MIG"]]
        .map(([kind, name]) => [h("b", { class: kind }), name])));
}

export const modeOf = () => (MODES.some(([name]) => name === parse().query.get("by")) ? parse().query.get("by") : "busy");

// As large as fits: all cells of the fleet on one screen, if they can.
export function cellSize(gpus, width, height) {
  const room = Math.sqrt((width * height * 0.7) / Math.max(1, gpus));
  return Math.max(3, Math.min(24, Math.floor(room - 2)));
}

function facts(cluster) {
  const models = Object.entries(cluster.models).map(([name, number]) => `${count(number)} ${name}`).join(", ");
  return h("p", { class: "facts" },
    h("span", {}, models || "no GPUs"),
    h("span", {}, h("b", {}, count(cluster.free_gpus)), " free"),
    h("span", {}, h("b", {}, percent(cluster.busy_percent)), " busy"),
    h("span", { title: "GPU score of the whole cluster / of its best node: -100 = no capacity, 100 = most" }, "score ",
      h("b", {}, cluster.scores.gpuClusterAvailable ?? "?"), " / ", h("b", {}, cluster.scores.gpuNodeAvailable ?? "?")));
}

class Tile {
  constructor(name, mode) {
    this.name = name;
    this.head = h("header", {});
    this.facts = h("div", {});
    this.holder = h("div", {});
    this.element = h("article", { class: "card tile", "data-cluster": name }, this.head, this.facts, this.holder);
    this.mode = mode;
    this.canvas = null;
  }

  show() {
    const cluster = get(`cluster/${this.name}`);
    const [state, words] = freshness(cluster);
    this.element.className = ["card tile", state === "stale" ? "silent" : "", cluster.lost !== null ? "lost" : "",
      cluster.cordoned !== null ? "cordoned" : ""].filter(Boolean).join(" ");
    fill(this.head, h("h2", {}, h("a", { href: link("cluster", [this.name]), "data-keep": this.name }, this.name)),
      cluster.lost !== null ? h("span", { class: "chip bad" }, "lost") : null,
      cluster.cordoned !== null ? h("span", { class: "chip warn", title: cluster.cordoned }, "cordoned") : null,
      cluster.freshness !== "fresh" ? h("span", { class: "chip warn", title: cluster.note }, `scores ${cluster.freshness}`) : null,
      h("span", { class: `fresh ${state}` }, words));
    fill(this.facts, facts(cluster));
  }

  draw(cell, anew = false) {
    const grid = grids.get(this.name);
    if (!grid) return;
    if (!this.canvas || this.canvas.cell !== cell) {
      this.canvas = new GridCanvas(grid, {
        cell, mode: this.mode, pick: (row) => open(grids.get(this.name), row),
        hover: (row, event) => tip.show(this.canvas, row, event),
      });
      this.holder.replaceChildren(this.canvas.canvas);
    } else if (this.canvas.grid !== grid) this.canvas.take(grid);
    this.canvas.draw(this.holder.clientWidth, this.mode, anew);
  }
}

export function open(grid, row) {
  const node = grid.nodeAt(row);
  tip.hide();
  location.hash = link("cluster", [grid.cluster, node.name, String(row - node.first)], { by: modeOf() === "busy" ? "" : modeOf() });
}

export function fleet(root) {
  const bar = h("div", {}), tiles = h("div", { class: "tiles" }), none = h("p", { class: "note" }, "No cluster has reported yet.");
  const shown = new Map();
  root.append(h("h1", { class: "hidden" }, "Fleet"), bar, none, tiles);
  let mode = modeOf(), cell = 8;

  function arrange() {
    const clusters = all("cluster/").sort((a, b) => b.gpus - a.gpus || a.cluster.localeCompare(b.cluster));
    const total = clusters.reduce((sum, cluster) => sum + cluster.gpus, 0);
    cell = cellSize(total, root.clientWidth, innerHeight - 260);
    const names = new Set(clusters.map((cluster) => cluster.cluster));
    for (const [name, tile] of shown) if (!names.has(name)) {
      tile.element.remove();
      shown.delete(name);
    }
    for (const { cluster: name, gpus } of clusters) {
      if (!shown.has(name)) shown.set(name, new Tile(name, mode));
      const tile = shown.get(name);
      // The share of a line that its GPUs need.
      const basis = Math.max(250, Math.sqrt(gpus / Math.max(1, total)) * root.clientWidth * 0.78);
      tile.element.style.setProperty("flex", `${Math.max(1, Math.round(Math.sqrt(gpus)))} 1 ${Math.round(basis)}px`);
      tiles.append(tile.element);
      tile.show();
    }
    none.hidden = clusters.length > 0;
    for (const tile of shown.values()) tile.draw(cell);
    // Tiles have heads and edges: smaller cells until all of it is on one screen, if it can be.
    const room = Math.max(320, innerHeight - tiles.offsetTop - 20);
    for (let tries = 0; tries < 6 && cell > 4 && tiles.offsetHeight > room; tries++) {
      cell = Math.max(4, Math.floor(cell * 0.85));
      for (const tile of shown.values()) tile.draw(cell);
    }
  }

  fill(bar, toolbar(mode));
  arrange();
  const resized = new ResizeObserver(arrange);
  resized.observe(root);
  const ends = [
    on("", (keys) => {
      const come = [...keys].some((key) => key.startsWith("cluster/") && !shown.has(key.slice(8)));
      if (come || [...keys].some((key) => key.startsWith("layout/"))) return arrange();
      for (const [name, tile] of shown) {
        if (keys.has(`cluster/${name}`) && !get(`cluster/${name}`)) return arrange();
        if (keys.has(`cluster/${name}`) || keys.has("time")) tile.show();
        if (keys.has(`gpus/${name}`)) tile.draw(cell);
      }
    }),
  ];
  return {
    routed() {
      mode = modeOf();
      fill(bar, toolbar(mode));
      for (const tile of shown.values()) {
        tile.mode = mode;
        tile.draw(cell, true);
      }
    },
    recolour() {
      for (const tile of shown.values()) tile.draw(cell, true);
    },
    end() {
      resized.disconnect();
      tip.hide();
      ends.forEach((end) => end());
    },
  };
}
