// Before the first paint: the stored choice of light or dark, and that scripts run.
{
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const stored = localStorage.getItem("theme");
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch {
    // Storage is off: the system decides.
  }
}
