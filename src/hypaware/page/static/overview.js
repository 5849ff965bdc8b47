// The overview while sessions are running: its numbers and its lists of sessions are renewed every half minute.

const SECONDS = 30;
const PARTS = [".figures", ".sessions"];

async function renew() {
  if (document.visibilityState !== "visible") return;
  const answer = await fetch(location.href).catch(() => null);
  if (!answer?.ok || answer.redirected) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of PARTS) {
    const before = document.querySelector(part);
    const after = fresh.querySelector(part);
    // What has the focus stays.
    if (before && after && !before.contains(document.activeElement)) before.replaceWith(document.adoptNode(after));
  }
}

setInterval(renew, SECONDS * 1000);
