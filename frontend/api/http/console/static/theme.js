// Theme: the system's, unless the button chose another one. Runs before the page is drawn, so that it does not flash.
(() => {
  const NAME = "tetrad-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(NAME);

  function apply() {
    const dark = chosen() ? chosen() === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.getElementById("theme-button")?.setAttribute("aria-pressed", String(dark));
  }

  function toggle() {
    const wanted = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    const ofSystem = system.matches ? "dark" : "light";
    // Back at what the system says: follow it again.
    if (wanted === ofSystem) localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, wanted);
    apply();
  }

  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme-button").addEventListener("click", toggle);
  });
})();
