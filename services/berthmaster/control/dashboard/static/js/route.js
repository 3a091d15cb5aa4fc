// The address bar says what is shown: #/jobs?state=waiting&q=train. So a view can be shared, and the
// browser's own buttons lead back and forth.

export function parse(hash = location.hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
  return { view: parts[0] || "fleet", parts: parts.slice(1), query: new URLSearchParams(query || "") };
}

export function link(view, parts = [], query = {}) {
  const path = [view, ...parts.map(encodeURIComponent)].join("/");
  const kept = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const said = new URLSearchParams(kept).toString();
  return `#/${path}${said ? `?${said}` : ""}`;
}

// Another query of the same view. Without ``anew`` the browser's way back leads past it.
export function set(query, anew = false) {
  const at = parse();
  const all = { ...Object.fromEntries(at.query), ...query };
  const target = link(at.view, at.parts, all);
  if (target === location.hash) return;
  if (anew) location.hash = target;
  else {
    history.replaceState(null, "", target);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}
