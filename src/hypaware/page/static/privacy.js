// Follows a purge or its preview while it runs, and sends a confirmation only once.

const PAUSE = 1_000;
const place = document.getElementById("purge");

async function follow() {
  if (!place.querySelector("[data-running]")) return;
  try {
    const answer = await fetch(place.dataset.source, { headers: { Accept: "text/html" } });
    if (answer.ok) {
      const html = await answer.text();
      if (html !== place.innerHTML) place.innerHTML = html;
    } else if (answer.status === 401 || answer.status === 403) {
      location.reload();
      return;
    }
  } catch {
    // The page's process ends after a while without requests, and starts again with the next request.
  }
  setTimeout(follow, PAUSE);
}

place.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "1";
});
addEventListener("pageshow", () => {
  for (const form of place.querySelectorAll("form")) delete form.dataset.sent;
});
setTimeout(follow, PAUSE);
