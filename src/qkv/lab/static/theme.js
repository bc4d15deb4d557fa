// Before the first paint, so that a page never flashes in the theme or the words that were not asked for.
const root = document.documentElement;
root.dataset.level = "simple";
try {
  const theme = localStorage.getItem("theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  if (localStorage.getItem("level") === "exact") root.dataset.level = "exact";
} catch {
  // Storage may be forbidden: the system's theme is shown, and the simpler words.
}
