// Buttons for those who may act, each with a question before anything is done.
import { post } from "./api.js";
import { h, say } from "./dom.js";
import { me } from "./me.js";

function asking(title, words, fields, act) {
  const said = h("p", { class: "error", hidden: true, role: "alert" });
  const inputs = fields.map(([name, label, given]) => h("label", {}, label, " ", h("input", { name, value: given ?? "", ...(typeof given === "number" ? { type: "number" } : {}) })));
  const form = h("form", { method: "dialog" }, h("h2", {}, title), h("p", { class: "soft" }, words), inputs, said,
    h("div", { class: "row" }, h("button", { class: "primary", value: "do" }, title), h("button", { type: "button", onclick: () => dialog.close() }, "Not now")));
  const dialog = h("dialog", { "aria-label": title }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const reply = await post("act", act(Object.fromEntries(new FormData(form))));
      if (reply.type === "api.refusal.v1") throw new Error(`refused: ${reply.field} ${reply.expected}`);
      say(`${title}: done. ${reply.note || ""}`);
      dialog.close();
    } catch (error) {
      said.hidden = false;
      said.textContent = error.message;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

export const acts = {
  cordon(cluster, node, isOpen) {
    if (!me.may.cordon) return null;
    const title = isOpen ? "Cordon" : "Uncordon", where = node || cluster;
    const words = isOpen ? `Nothing new is placed on ${where}; what runs there goes on.` : `${where} takes jobs again.`;
    return h("button", {
      type: "button", onclick: () => asking(title, words, [["reason", "Reason"]],
        ({ reason }) => ({ verb: isOpen ? "cordon" : "uncordon", cluster, node, reason })),
    }, title);
  },
  job(job) {
    const mine = me.may.change_all || me.may.change.includes(job.tenant);
    if (!mine || ["succeeded", "failed", "cancelled"].includes(job.state)) return null;
    const { tenant, id } = job;
    return h("span", { class: "row" },
      h("button", { type: "button", onclick: () => asking("Reprioritize", `${id} goes before jobs of a lower priority.`, [["priority", "Priority", job.priority]],
        ({ priority }) => ({ verb: "reprioritize", tenant, id, priority: Number(priority) })) }, "Reprioritize"),
      h("button", { type: "button", onclick: () => asking("Cancel", `${id} is stopped, if it runs, and does not run again.`, [["reason", "Reason"]],
        ({ reason }) => ({ verb: "cancel", tenant, id, reason })) }, "Cancel"));
  },
};
