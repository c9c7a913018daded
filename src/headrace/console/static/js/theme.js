// Light or dark, before anything is painted: the reader's choice, else the system's. A classic script, not a module.
(() => {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem("headrace-theme");
  const apply = () => {
    document.documentElement.dataset.theme = chosen() ?? (system.matches ? "dark" : "light");
    const button = document.getElementById("theme");
    if (button) button.textContent = document.documentElement.dataset.theme === "dark" ? "Light" : "Dark";
    dispatchEvent(new Event("themechange"));
  };
  apply();
  system.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      if (next === (system.matches ? "dark" : "light")) localStorage.removeItem("headrace-theme");
      else localStorage.setItem("headrace-theme", next);
      apply();
    });
  });
})();
