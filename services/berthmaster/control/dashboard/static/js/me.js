// Who looks, and what that person may do; and the question for a token where nobody is known.
import { ask, post } from "./api.js";
import { fill, h } from "./dom.js";

export const me = { name: "", role: "", tenants: [], may: { change: [], change_all: false, cordon: false } };

export async function learn() {
  Object.assign(me, await ask("me"));
  const holder = document.getElementById("person");
  const words = me.role === "tenant" ? `${me.name || "you"}: ${me.tenants.join(", ")}` : me.name ? `${me.name} (${me.role})` : "";
  fill(holder, words, me.name ? [" ", h("button", { type: "button", onclick: leave }, "leave")] : null);
}

async function leave() {
  await post("logout", {});
  location.reload();
}

// Resolves after a successful sign-in.
export function login(root, why) {
  return new Promise((resolve) => {
    const field = h("input", { type: "password", name: "token", autocomplete: "current-password", required: true, "aria-label": "Token" });
    const said = h("p", { class: "error", role: "alert", hidden: !why }, why);
    const form = h("form", {
      class: "card", onsubmit: async (event) => {
        event.preventDefault();
        try {
          await post("login", { token: field.value });
          root.replaceChildren();
          resolve();
        } catch (error) {
          said.hidden = false;
          said.textContent = error.message;
        }
      },
    }, h("h1", {}, "Sign in"), h("p", { class: "soft" }, "Enter the access token from your operator."),
    h("p", { class: "row" }, field, h("button", { class: "primary" }, "Sign in")), said);
    root.replaceChildren(form);
    field.focus();
  });
}
