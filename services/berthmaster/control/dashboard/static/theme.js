// Before anything is drawn: the theme that was chosen last, else the system's.
(() => {
  const kept = localStorage.getItem("theme");
  const system = matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark";
  document.documentElement.dataset.theme = kept || system;
})();
