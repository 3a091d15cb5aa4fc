// Makes elements. Text is always set as text: what people called their jobs is never read as HTML.

export function h(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [what, how] of Object.entries(value)) element.style.setProperty(what, how);
    else if (key === "value" || key === "checked") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

// Shows these children in place of those that were there; the same again touches nothing.
export function fill(parent, ...children) {
  const made = flat(children);
  const fresh = document.createElement(parent.tagName);
  fresh.append(...made);
  if (parent.childElementCount && fresh.innerHTML === parent.innerHTML) return;
  const held = parent.contains(document.activeElement) ? document.activeElement.dataset.keep : "";
  parent.replaceChildren(...fresh.childNodes);
  if (held) parent.querySelector(`[data-keep="${CSS.escape(held)}"]`)?.focus();
}

export const text = (name, content, kind) => h(name, kind ? { class: kind } : {}, content);

export function table(columns, rows, empty) {
  if (!rows.length) return h("p", { class: "note" }, empty);
  return h("div", { class: "wide" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((column) =>
      h("th", { scope: "col", class: column.num ? "num" : null }, column.head)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column) =>
      h("td", { class: column.num ? "num" : column.kind }, column.cell(row))))))));
}

export function pairs(entries) {
  return h("dl", { class: "pairs" }, entries
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function choice(label, options, chosen, pick) {
  return h("div", { class: "choice", role: "group", "aria-label": label }, options.map(([value, name, key]) =>
    h("button", {
      type: "button", "data-keep": `${label}-${value}`, "aria-pressed": String(value === chosen),
      title: key ? `${name} (${key})` : null, onclick: () => pick(value),
    }, name)));
}

export function say(what) {
  document.getElementById("said").textContent = what;
}
