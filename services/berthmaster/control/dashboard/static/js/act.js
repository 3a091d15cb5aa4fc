// Buttons for those who may act, each with a question before anything is done.
import { post } from "./api.js";
import { h, say } from "./dom.js";
import { me } from "./me.js";
import { now } from "./store.js";

function seconds(hours) {
  const number = Number(hours.replace(",", "."));
  if (!(number > 0)) throw new Error("Within hours: a number above 0, or nothing");
  return number * 3600;
}

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
  place(cluster, node, isOpen, isDraining) {
    if (!me.may.cordon) return null;
    const where = node || cluster;
    const button = (title, words, fields = [], more = () => ({})) => h("button", {
      type: "button", onclick: () => asking(title, words, [["reason", "Reason"], ...fields],
        ({ reason, ...given }) => ({ verb: title.toLowerCase(), cluster, node, reason, ...more(given) })),
    }, title);
    const back = isDraining ? button("Undrain", `${where} takes jobs again; what was not told to go yet stays.`)
      : isOpen ? button("Cordon", `Nothing new is placed on ${where}; what runs there goes on.`) : button("Uncordon", `${where} takes jobs again.`);
    return h("span", { class: "row" }, back, isDraining ? null
      : button("Drain", `Nothing new is placed on ${where}, and what runs there is moved away once there is room for it elsewhere. After so many hours it is ended all the same; empty: never.`,
        [["hours", "Within hours"]], ({ hours }) => (hours.trim() ? { by_s: now() + seconds(hours) } : {})));
  },
  job(job) {
    const mine = me.may.change_all || me.may.change.includes(job.tenant);
    if (!mine || ["succeeded", "failed", "cancelled"].includes(job.state)) return null;
    const { tenant, id } = job, runs = ["claimed", "running"].includes(job.state);
    const told = (title, words, more = {}) => h("button", { type: "button", onclick: () => asking(title, words, [["reason", "Reason"]],
      ({ reason }) => ({ verb: title.toLowerCase(), tenant, id, reason, ...more })) }, title);
    return h("span", { class: "row" },
      job.held ? told("Release", `${id} is placed again when it is its turn.`)
        : told("Hold", runs ? `${id} is ended, and waits until it is released.` : `${id} waits until it is released.`, { evict: runs }),
      runs && !job.held ? told("Evict", `The attempt of ${id} is ended; it waits again, and runs when it is its turn.`) : null,
      h("button", { type: "button", onclick: () => asking("Reprioritize", `${id} goes before jobs of a lower priority.`, [["priority", "Priority", job.priority]],
        ({ priority }) => ({ verb: "reprioritize", tenant, id, priority: Number(priority) })) }, "Reprioritize"),
      h("button", { type: "button", onclick: () => asking("Cancel", `${id} is stopped, if it runs, and does not run again.`, [["reason", "Reason"]],
        ({ reason }) => ({ verb: "cancel", tenant, id, reason })) }, "Cancel"));
  },
};
