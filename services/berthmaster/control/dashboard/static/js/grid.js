// One cluster's GPUs on a canvas: a block for each node, a cell for each GPU. Only cells that look
// otherwise than before are drawn again.
import { color } from "./colors.js";
import { palette } from "./colors.js";
import { h } from "./dom.js";
import { CLOSED, COLUMNS, DEGRADED, LOST, MARKS, MIG, NOT_READY, PARTS, SILENT } from "./store.js";

const MARKED_FROM = 9; // pixels: smaller cells have no room for marks

export class GridCanvas {
  // ``pick(row)``: somebody chose a GPU; ``hover(row, event)``: somebody points at one, or at none (-1).
  constructor(grid, { cell, mode, pick, hover }) {
    this.pick = pick;
    this.hover = hover;
    this.mode = mode;
    this.cell = cell;
    this.gap = cell >= 7 ? 2 : 1;
    this.selected = -1;
    this.canvas = h("canvas", { class: "grid", tabindex: "0", role: "application" });
    this.canvas.addEventListener("click", (event) => this.chosen(this.rowAt(event)));
    this.canvas.addEventListener("pointermove", (event) => this.hover(this.rowAt(event), event));
    this.canvas.addEventListener("pointerleave", (event) => this.hover(-1, event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.hover(-1, null));
    this.take(grid);
  }

  take(grid) {
    this.grid = grid;
    this.width = 0;
    this.canvas.setAttribute("aria-label",
      `${grid.gpus} GPUs of ${grid.cluster}; arrow keys move, Enter opens one`);
  }

  chosen(row) {
    if (row >= 0) this.pick(row);
  }

  // Where each cell is, for a width. Nodes of more than four GPUs have two lines.
  layOut(width) {
    if (width === this.width && this.left.length === this.grid.gpus) return;
    this.width = width;
    const { cell, gap } = this, step = cell + gap, between = Math.max(3, Math.round(cell / 2));
    this.left = new Int32Array(this.grid.gpus);
    this.top = new Int32Array(this.grid.gpus);
    let x = 1, y = 1, tallest = 0;
    for (const node of this.grid.nodes) {
      const across = node.gpus > 4 ? Math.ceil(node.gpus / 2) : node.gpus;
      const lines = Math.ceil(node.gpus / across);
      if (x > 1 && x + across * step > width) {
        x = 1;
        y += tallest * step + between;
        tallest = 0;
      }
      for (let at = 0; at < node.gpus; at++) {
        this.left[node.first + at] = x + (at % across) * step;
        this.top[node.first + at] = y + Math.floor(at / across) * step;
      }
      x += across * step + between;
      tallest = Math.max(tallest, lines);
    }
    const height = y + tallest * step + 1, scale = devicePixelRatio || 1;
    this.canvas.width = Math.ceil(width * scale);
    this.canvas.height = Math.ceil(height * scale);
    this.canvas.style.setProperty("width", `${width}px`);
    this.canvas.style.setProperty("height", `${height}px`);
    this.context = this.canvas.getContext("2d", { alpha: true });
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.drawn = new Array(this.grid.gpus).fill("");
  }

  draw(width, mode = this.mode, anew = false) {
    this.mode = mode;
    if (width > 0) this.layOut(width);
    if (!this.context) return;
    if (anew) this.drawn.fill("");
    const { rows } = this.grid;
    for (let row = 0; row < this.grid.gpus; row++) {
      const at = row * COLUMNS, filled = color(rows, at, mode);
      const look = `${filled}${rows[at + MARKS]}${row === this.selected ? "s" : ""}`;
      if (this.drawn[row] === look) continue;
      this.drawn[row] = look;
      this.paint(row, filled, rows[at + MARKS]);
    }
  }

  paint(row, filled, marks) {
    const { context, cell } = this, x = this.left[row], y = this.top[row], colors = palette();
    context.clearRect(x - 1, y - 1, cell + 2, cell + 2);
    context.fillStyle = filled;
    context.fillRect(x, y, cell, cell);
    if (cell < MARKED_FROM) return;
    if (marks & LOST) this.cross(x, y, colors.card);
    else if (filled === colors.unknown || marks & NOT_READY) this.hatch(x, y, colors.card);
    if (marks & DEGRADED && !(marks & LOST)) {
      context.fillStyle = colors.degraded;
      context.fillRect(x, y + cell - 3, cell, 3);
    }
    if (marks & (PARTS | MIG)) {
      context.fillStyle = colors.ink;
      context.beginPath();
      context.moveTo(x + cell - 5, y);
      context.lineTo(x + cell, y);
      context.lineTo(x + cell, y + 5);
      context.fill();
    }
    if (marks & CLOSED) this.frame(x, y, colors.closed, 2);
    if (row === this.selected) this.frame(x - 1, y - 1, colors.ink, 2, 2);
  }

  frame(x, y, style, thick, more = 0) {
    this.context.strokeStyle = style;
    this.context.lineWidth = thick;
    const inset = thick / 2;
    this.context.strokeRect(x + inset, y + inset, this.cell + more - thick, this.cell + more - thick);
  }

  cross(x, y, style) {
    const { context, cell } = this;
    context.strokeStyle = style;
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x + 2, y + 2);
    context.lineTo(x + cell - 2, y + cell - 2);
    context.moveTo(x + cell - 2, y + 2);
    context.lineTo(x + 2, y + cell - 2);
    context.stroke();
  }

  hatch(x, y, style) {
    const { context, cell } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, cell, cell);
    context.clip();
    context.strokeStyle = style;
    context.lineWidth = 1;
    context.beginPath();
    for (let at = -cell; at < cell; at += 4) {
      context.moveTo(x + at, y + cell);
      context.lineTo(x + at + cell, y);
    }
    context.stroke();
    context.restore();
  }

  rowAt(event) {
    const box = this.canvas.getBoundingClientRect();
    return this.find(event.clientX - box.left, event.clientY - box.top);
  }

  find(x, y) {
    if (!this.left) return -1;
    for (let row = 0; row < this.grid.gpus; row++) {
      const dx = x - this.left[row], dy = y - this.top[row];
      if (dx >= 0 && dy >= 0 && dx < this.cell + this.gap && dy < this.cell + this.gap) return row;
    }
    return -1;
  }

  key(event) {
    const { selected, grid } = this;
    let next = selected;
    if (event.key === "ArrowRight") next = Math.min(grid.gpus - 1, selected + 1);
    else if (event.key === "ArrowLeft") next = Math.max(0, selected - 1);
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") next = this.beside(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = grid.gpus - 1;
    else if (event.key === "Enter" || event.key === " ") this.chosen(Math.max(0, selected));
    else return;
    event.preventDefault();
    this.select(next);
    this.hover(next, null);
  }

  select(row) {
    this.selected = row;
    this.draw(0);
  }

  // The nearest cell of the next line up or down.
  beside(way) {
    const from = Math.max(0, this.selected), y = this.top[from], x = this.left[from];
    let best = from, distance = Infinity;
    for (let row = 0; row < this.grid.gpus; row++) {
      const down = (this.top[row] - y) * way;
      if (down <= 0) continue;
      const far = down * 4 + Math.abs(this.left[row] - x);
      if (far < distance) [best, distance] = [row, far];
    }
    return best;
  }

  // Where a GPU is on the screen.
  boxOf(row) {
    const box = this.canvas.getBoundingClientRect();
    return { x: box.left + this.left[row] + this.cell, y: box.top + this.top[row] + this.cell };
  }
}

export function describe(grid, row) {
  const at = row * COLUMNS, node = grid.nodeAt(row), [busy, held, memory, heat, marks] = grid.rows.subarray(at, at + COLUMNS);
  const known = (value, unit) => (value === 255 ? "not measured" : `${value}${unit}`);
  const words = [];
  if (marks & LOST) words.push("lost");
  if (marks & DEGRADED) words.push("degraded");
  if (marks & NOT_READY) words.push("node not ready");
  if (marks & CLOSED) words.push("cordoned");
  if (marks & MIG) words.push("MIG");
  else if (marks & PARTS) words.push("shared");
  if (marks & 16) words.push("unmanaged pods");
  if (marks & SILENT) words.push("no samples");
  return {
    name: `${node.name} GPU ${row - node.first}`, model: grid.models[node.model], words,
    figures: `busy ${known(busy, " %")} · allocated ${held === 255 ? "?" : `${held} %`} · memory ${known(memory, " %")} · ${known(heat, " °C")}`,
  };
}
