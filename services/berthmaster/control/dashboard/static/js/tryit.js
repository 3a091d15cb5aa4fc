// Try a request: where it would go and why, beside what it would move or what it lacks. Nothing is
// submitted. The request is in the address, so that a trial can be shared.
import { post } from "./api.js";
import { fill, h, table } from "./dom.js";
import { count } from "./format.js";
import { me } from "./me.js";
import { parse, set } from "./route.js";
import { choice, expected, leftOut, problem, ranking, why } from "./why.js";

const FIRST = { id: "try-1", queue: "default", pod_sets: [{ gpus: 8, gpu_models: ["G2"] }], expected_duration_s: 3600 };
const LISTS = [["placed", "would be placed"], ["waits", "would stay pending"], ["elsewhere", "would go elsewhere"], ["stranded", "no suitable cluster left"]];

function going(reply) {
  const wrong = problem(reply);
  if (wrong) return h("p", { class: "error" }, wrong);
  return [
    h("p", { class: `verdict ${reply.placed ? "good" : "warn"}`, id: "try-verdict" }, reply.summary),
    reply.expected ? h("p", { id: "try-expected" }, `Expected: ${expected(reply.expected)}.`) : null,
    reply.choice ? choice(reply.choice) : [reply.ranking?.length ? ranking(reply.ranking) : null, Object.keys(reply.filtered || {}).length ? leftOut(reply.filtered) : null],
  ];
}

function moving(reply) {
  const wrong = problem(reply);
  if (wrong) return h("p", { class: "error" }, wrong);
  return [
    h("p", { class: "verdict" }, reply.summary),
    reply.job ? why(reply.job) : null,
    LISTS.filter(([name]) => reply[name]?.length).map(([name, words]) => [h("h3", {}, `${count(reply.counts?.[name] ?? reply[name].length)} ${words}`), table([
      { head: "job", cell: (one) => one.id }, { head: "queue", cell: (one) => one.queue }, { head: "GPUs", num: true, cell: (one) => count(one.gpus) },
      { head: "now", cell: (one) => one.was || "waits" }, { head: "then", cell: (one) => one.would || "waits" },
    ], reply[name], "")]),
    reply.hidden ? h("p", { class: "soft" }, `${count(reply.hidden)} of these jobs belong to other tenants.`) : null,
  ];
}

export function tryit(root) {
  const kept = parse().query.get("request");
  const field = h("textarea", { class: "request", spellcheck: "false", "aria-label": "Request (JSON)", value: kept || JSON.stringify(FIRST, null, 2) });
  const tenant = h("input", { "aria-label": "Tenant", value: parse().query.get("tenant") || me.tenants[0] || "default" });
  const said = h("p", { class: "error", hidden: true, role: "alert" }), left = h("section", { class: "card" }), right = h("section", { class: "card" });
  let timer = 0, number = 0;

  async function run() {
    clearTimeout(timer);
    let request;
    try {
      request = JSON.parse(field.value);
      if (typeof request !== "object" || request === null || Array.isArray(request)) throw new Error("a request must be a JSON object");
      said.hidden = true;
    } catch (error) {
      said.hidden = false;
      said.textContent = `Invalid JSON: ${error.message}`;
      return;
    }
    set({ request: field.value.length < 4000 ? field.value : "", tenant: tenant.value });
    const mine = ++number;
    try {
      const told = await post("try", { tenant: tenant.value.trim(), request });
      if (mine !== number) return; // a newer one is on its way
      fill(left, h("h2", {}, "Placement"), going(told.dry_run));
      fill(right, h("h2", {}, "Effect, or missing capacity"), moving(told.whatif));
    } catch (error) {
      if (mine !== number) return;
      said.hidden = false;
      said.textContent = error.message;
    }
  }
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(run, 350);
  };
  field.addEventListener("input", soon);
  tenant.addEventListener("input", soon);
  root.append(h("h1", { class: "hidden" }, "Try it"), h("div", { class: "columns even" },
    h("div", { class: "stack" }, h("section", { class: "card" }, h("div", { class: "row spread" }, h("h2", {}, "Request"), h("label", { class: "row" }, "Tenant", tenant)), field, said,
      h("p", { class: "row" }, h("button", { type: "button", class: "primary", onclick: run }, "Try it"), h("span", { class: "soft" }, "A dry run: edit the request to see its placement. Nothing is submitted."))), left), right));
  run();
  return { end: () => clearTimeout(timer) };
}
