// Begins: who looks, the stream, the views by the address bar, the keys.
import { Failed } from "./api.js";
import { cluster } from "./cluster.js";
import { MODES, forget } from "./colors.js";
import { fill, h } from "./dom.js";
import { fleet } from "./fleet.js";
import { job } from "./job.js";
import { jobs } from "./jobs.js";
import { learn, login } from "./me.js";
import { problems } from "./problems.js";
import { queues } from "./queues.js";
import { reports } from "./reports.js";
import { link, parse, set } from "./route.js";
import { connection, follow, on } from "./store.js";
import { start } from "./summary.js";
import { tryit } from "./tryit.js";

const VIEWS = { fleet, cluster, jobs, job, queues, try: tryit, reports, problems };
const NAV = [
  ["fleet", "Fleet", "f"], ["jobs", "Jobs", "j"], ["queues", "Queues", "q"], ["try", "Try it", "y"], ["reports", "Reports", "r"], ["problems", "Problems", "p"],
];
const UNDER = { cluster: "fleet", job: "jobs" };
const root = document.getElementById("view");
let shown = { name: "", view: null };

function nav(active) {
  fill(document.getElementById("nav"), NAV.map(([name, label, key]) =>
    h("a", { href: link(name), title: `${label} (${key})`, "aria-current": (UNDER[active] || active) === name ? "page" : null }, label)));
}

function route() {
  const { view } = parse();
  const name = Object.hasOwn(VIEWS, view) ? view : "";
  nav(name);
  if (shown.name === name && shown.view) {
    shown.view.routed?.();
    return;
  }
  shown.view?.end?.();
  root.replaceChildren();
  shown = { name, view: null };
  document.title = `Berthmaster: ${name || "not found"}`;
  if (!name) {
    root.append(h("h1", {}, "Page not found"), h("p", {}, h("a", { href: link("fleet") }, "Go to Fleet")));
    return;
  }
  shown.view = VIEWS[name](root);
}

function live() {
  const holder = document.getElementById("live");
  holder.dataset.state = connection.state;
  holder.textContent = { live: "live", lost: `${connection.why}; reconnecting`, waiting: "connecting" }[connection.state];
}

function theme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("theme", next);
  forget();
  shown.view?.recolour?.();
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  const view = NAV.find(([, , letter]) => letter === event.key), mode = MODES.find(([, , letter]) => letter === event.key);
  if (view) location.hash = link(view[0]);
  else if (mode && ["fleet", "cluster"].includes(shown.name)) set({ by: mode[0] === "busy" ? "" : mode[0] });
  else if (event.key === "t") theme();
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  }
}

async function begin() {
  document.getElementById("theme").addEventListener("click", theme);
  for (let why = ""; ;) {
    try {
      await learn();
      break;
    } catch (error) {
      if (error instanceof Failed && [401, 429].includes(error.status)) {
        await login(root, why);
        why = "";
      } else {
        root.replaceChildren(h("p", { class: "error" }, `No answer from the server: ${error.message}`));
        await new Promise((resolve) => setTimeout(resolve, 2000));
      }
    }
  }
  on("connection", live);
  follow();
  start();
  addEventListener("hashchange", route);
  addEventListener("keydown", key);
  route();
}

begin();
