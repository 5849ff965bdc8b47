// Replaces the health by a newer one every ten seconds while it is visible.

const PAUSE = 10_000;
const SOON = 1_000;
const place = document.getElementById("health");
const note = document.getElementById("health-note");
let timer = 0;
let last = Date.now();

// Whether a part of it is still being read.
function isLate() {
  return place.querySelector("[data-late]") !== null;
}

// The head of the page may have been sent before the verdict was known.
function showVerdict() {
  const verdict = document.getElementById("verdict")?.textContent;
  if (verdict) document.title = `${verdict} · Health · HypAware`;
}

function isSelecting() {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && place.contains(selection.anchorNode));
}

function replace(html) {
  const open = [...place.querySelectorAll("details[open]")].map((each) => each.id);
  const buttons = [...place.querySelectorAll("button")];
  const focused = buttons.indexOf(document.activeElement);
  const label = focused >= 0 ? buttons[focused].getAttribute("aria-label") : null;
  place.innerHTML = html;
  showVerdict();
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (label) [...place.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === label)?.focus();
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const answer = await fetch(place.dataset.source, { headers: { Accept: "text/html" } });
    if (answer.status === 401) {
      note.textContent = "Signed out. Run hyp open again.";
      return;
    }
    if (!answer.ok) throw new Error(String(answer.status));
    const html = await answer.text();
    if (!isSelecting()) replace(html);
    if (note.textContent) note.textContent = "";
  } catch {
    note.textContent = "The page does not answer; this is what was last known.";
  }
  last = Date.now();
  timer = setTimeout(refresh, isLate() ? SOON : PAUSE);
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(refresh, Math.max(0, last + PAUSE - Date.now()));
});
showVerdict();
timer = setTimeout(refresh, isLate() ? 0 : PAUSE);
