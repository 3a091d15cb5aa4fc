// The small window beside the pointer that names a GPU and tells its figures.
import { fill, h, say } from "./dom.js";
import { describe } from "./grid.js";

const tip = h("div", { class: "tip", hidden: true });
document.body.append(tip);

export function hide() {
  tip.hidden = true;
}

export function show(canvas, row, event) {
  if (row < 0) {
    hide();
    return;
  }
  const told = describe(canvas.grid, row);
  fill(tip, h("p", {}, h("b", {}, told.name), ` ${told.model}`), h("p", {}, told.figures),
    told.words.length ? h("p", { class: "soft" }, told.words.join(", ")) : null);
  if (!event) say(`${told.name}, ${told.model}: ${told.figures} ${told.words.join(", ")}`);
  const at = event ? { x: event.clientX + 14, y: event.clientY + 14 } : canvas.boxOf(row);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.setProperty("left", `${Math.min(at.x, innerWidth - box.width - 8)}px`);
  tip.style.setProperty("top", `${at.y + box.height > innerHeight ? at.y - box.height - 24 : at.y}px`);
}
