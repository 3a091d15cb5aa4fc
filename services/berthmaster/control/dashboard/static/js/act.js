// Buttons of operator actions, each with a confirmation.
import { post } from "./api.js";
import { h, say } from "./dom.js";
import { me } from "./me.js";
import { now } from "./store.js";

function seconds(hours) {
  const number = Number(hours.replace(",", "."));
  if (!(number > 0)) throw new Error("Time limit: a number of hours above 0, or empty");
  return number * 3600;
}

function asking(title, words, fields, act) {
  const said = h("p", { class: "error", hidden: true, role: "alert" });
  const inputs = fields.map(([name, label, given]) => h("label", {}, label, " ", h("input", { name, value: given ?? "", ...(typeof given === "number" ? { type: "number" } : {}) })));
  const form = h("form", { method: "dialog" }, h("h2", {}, title), h("p", { class: "soft" }, words), inputs, said,
    h("div", { class: "row" }, h("button", { class: "primary", value: "do" }, title), h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
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
    const back = isDraining ? button("Undrain", `${where} takes new jobs again. Jobs that are not moving yet stay.`)
      : isOpen ? button("Cordon", `${where} gets no new jobs. Running jobs continue.`) : button("Uncordon", `${where} takes new jobs again.`);
    return h("span", { class: "row" }, back, isDraining ? null
      : button("Drain", `${where} gets no new jobs, and running jobs move once capacity is free elsewhere. After the time limit the rest is evicted. Empty: no time limit.`,
        [["hours", "Time limit in hours"]], ({ hours }) => (hours.trim() ? { by_s: now() + seconds(hours) } : {})));
  },
  job(job) {
    const mine = me.may.change_all || me.may.change.includes(job.tenant);
    if (!mine || ["succeeded", "failed", "cancelled"].includes(job.state)) return null;
    const { tenant, id } = job, runs = ["claimed", "running"].includes(job.state);
    const told = (title, words, more = {}) => h("button", { type: "button", onclick: () => asking(title, words, [["reason", "Reason"]],
      ({ reason }) => ({ verb: title.toLowerCase(), tenant, id, reason, ...more })) }, title);
    return h("span", { class: "row" },
      job.held ? told("Release", `${id} may be placed again.`)
        : told("Hold", runs ? `${id} is evicted and stays pending until its release.` : `${id} stays pending until its release.`, { evict: runs }),
      runs && !job.held ? told("Evict", `The attempt of ${id} ends, and ${id} is requeued.`) : null,
      h("button", { type: "button", onclick: () => asking("Reprioritize", `${id} goes before jobs of lower priority.`, [["priority", "Priority", job.priority]],
        ({ priority }) => ({ verb: "reprioritize", tenant, id, priority: Number(priority) })) }, "Reprioritize"),
      h("button", { type: "button", onclick: () => asking("Cancel", `${id} is stopped and does not run again.`, [["reason", "Reason"]],
        ({ reason }) => ({ verb: "cancel", tenant, id, reason })) }, "Cancel"));
  },
};
