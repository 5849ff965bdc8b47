// What every view has: the choice of light or dark, keys, lists that keys move in, tooltips, copy buttons, filters.
//
// A list: an element with `data-key-list`; its items have `data-key-item`, and each is a link or contains one. j and k
// (and the arrows, from the search field) move the focus to the next item's link, so Enter opens it. A view that draws
// its rows itself handles the event `keymove` of the first list (detail.step is 1 or -1) and calls preventDefault().
// A tooltip: `data-tip` with its text. A copy button: `data-copy` with the text.

const root = document.documentElement;

document.getElementById("theme")?.addEventListener("click", () => {
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("theme", root.dataset.theme);
  } catch {
    // Storage is off: the choice is lost with the page.
  }
});

// Lists

export function moveInList(step) {
  const list = document.querySelector("[data-key-list]");
  if (!list) return false;
  const move = new CustomEvent("keymove", { detail: { step }, cancelable: true, bubbles: true });
  if (!list.dispatchEvent(move)) return true;
  const found = document.querySelectorAll("[data-key-list] [data-key-item]");
  const items = [...found].filter((item) => item.getClientRects().length);
  if (!items.length) return false;
  const at = items.findIndex((item) => item.contains(document.activeElement));
  const next = at < 0 ? (step > 0 ? 0 : items.length - 1) : Math.min(items.length - 1, Math.max(0, at + step));
  const target = items[next].matches("a[href], button") ? items[next] : items[next].querySelector("a[href], button");
  target?.focus();
  items[next].scrollIntoView({ block: "nearest" });
  return true;
}

// Keys

export function isTyping(event) {
  const target = event.target;
  return target instanceof Element && Boolean(target.closest("input, textarea, select, [contenteditable]"));
}

const help = document.getElementById("help");
const views = { o: "/", s: "/sessions", f: "/search", m: "/machines", h: "/health" };
let goes = 0;

function go(path) {
  const link = document.querySelector(`.top nav a[href="${path}"], .top nav a[href^="${path}?"]`);
  if (link) location.assign(link.href);
}

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const find = document.getElementById("find");
  if (isTyping(event)) {
    if (event.key === "Escape") event.target.blur();
    if (event.target.type === "search" && event.key === "ArrowDown" && moveInList(1)) event.preventDefault();
    return;
  }
  if (help?.open) return;
  if (Date.now() - goes < 1500) {
    goes = 0;
    if (event.key in views) {
      event.preventDefault();
      go(views[event.key]);
      return;
    }
  }
  if (event.key === "/") {
    event.preventDefault();
    const field = document.querySelector("main input[type=search]") ?? find;
    field?.focus();
    field?.select();
  } else if (event.key === "g") {
    goes = Date.now();
  } else if (event.key === "?") {
    event.preventDefault();
    help?.showModal();
  } else if (event.key === "j" || event.key === "k") {
    if (moveInList(event.key === "j" ? 1 : -1)) event.preventDefault();
  } else if (event.key === "Escape") {
    document.querySelectorAll(".filters details[open]").forEach((each) => each.removeAttribute("open"));
  }
});
document.getElementById("keys")?.addEventListener("click", () => help?.showModal());
help?.addEventListener("click", (event) => {
  if (event.target === help) help.close();
});

// Tooltips

const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
tip.setAttribute("role", "presentation");
document.body.append(tip);

function showTip(target) {
  tip.textContent = target.dataset.tip;
  tip.hidden = false;
  const at = target.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.min(Math.max(4, at.left + at.width / 2 - width / 2), innerWidth - width - 4);
  const above = at.top - height - 6;
  tip.style.left = `${left}px`;
  tip.style.top = `${above > 4 ? above : at.bottom + 6}px`;
}

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const target = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (target) showTip(target);
    else tip.hidden = true;
  });
}
document.addEventListener("focusout", () => { tip.hidden = true; });
document.addEventListener("scroll", () => { tip.hidden = true; }, { capture: true, passive: true });

// Copy buttons

document.addEventListener("click", async (event) => {
  const button = event.target instanceof Element ? event.target.closest("[data-copy]") : null;
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    return;
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
});

// Filters: a choice applies immediately, and empty fields stay out of the address.

for (const form of document.querySelectorAll("form[data-filters]")) {
  form.addEventListener("submit", () => {
    const value = (name) => form.elements.namedItem(name)?.value;
    // Dates replace days.
    const hasDates = Boolean(value("since") || value("until"));
    for (const field of form.elements) {
      if (field.name && (!field.value || (field.name === "days" && hasDates))) field.disabled = true;
    }
  });
  form.addEventListener("change", (event) => {
    if (event.target.matches("select")) form.requestSubmit();
  });
}
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("form[data-filters] :disabled")) field.disabled = false;
});
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll(".filters details[open]")) {
    if (!open.contains(event.target)) open.removeAttribute("open");
  }
});
