// All that is broken or not as it should be, and the services.
import { fill, h, table } from "./dom.js";
import { ago } from "./format.js";
import { get, on } from "./store.js";
import { problem } from "./summary.js";

export function problems(root) {
  const list = h("section", { class: "card" }), services = h("section", { class: "card" });
  root.append(h("h1", { class: "hidden" }, "Problems"), h("div", { class: "columns" }, list, services));
  function show() {
    const told = get("problems") || [];
    fill(list, h("h2", {}, "Problems"),
      told.length ? h("ul", { class: "problems" }, told.map(problem)) : h("p", { class: "note" }, "No problems."));
    fill(services, h("h2", {}, "Services"), table([
      { head: "service", cell: (one) => one.service },
      { head: "heard", num: true, cell: (one) => one.heard },
      { head: "state", cell: (one) => (one.heard ? h("span", { class: "chip good" }, "answers") : h("span", { class: "chip bad" }, `silent for ${ago(one.last_at_s)}`)) },
    ], get("services") || [], "No service has answered yet, or you may not see them."));
  }
  show();
  const end = on("", (keys) => (keys.has("problems") || keys.has("services") || keys.has("time")) && show());
  return { routed: show, end };
}
