// Search while one types: each key asks immediately, the address follows, and a key that comes before the answer ends the
// search before it, in the server too. Filters apply to the words in the field, whether they were sent or not.

const field = document.getElementById("find");
const results = document.getElementById("results");
let running = null;
let shown = field.value.trim();

// The address of the view for the words in the field, beginning at the first match.
function addressOf(words) {
  const address = new URL(location.href);
  address.searchParams.delete("offset");
  if (words) address.searchParams.set("q", words);
  else address.searchParams.delete("q");
  return address;
}

async function search() {
  const words = field.value.trim();
  if (words === shown && !running) return;
  running?.abort();
  const mine = new AbortController();
  running = mine;
  results.setAttribute("aria-busy", "true");
  const address = addressOf(words);
  try {
    const answer = await fetch(`/lists/search${address.search}`, { signal: mine.signal });
    const text = await answer.text();
    if (mine.signal.aborted) return;
    if (answer.ok) {
      results.innerHTML = text;
      shown = words;
      document.title = `${words ? `${words.slice(0, 80)} · ` : ""}Search · HypAware`;
      history.replaceState(history.state, "", address);
      for (const link of document.querySelectorAll(".filters a, .filters form")) follow(link, words);
    } else {
      location.assign(address);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    results.querySelector(".summary")?.replaceChildren("The page does not answer. Start it again: hyp open");
  } finally {
    if (running === mine) {
      running = null;
      results.removeAttribute("aria-busy");
    }
  }
}

// Lets a link or form of the filter bar keep the words that are searched for now.
function follow(element, words) {
  if (element instanceof HTMLFormElement) {
    let hidden = element.querySelector("input[type=hidden][name=q]");
    if (!hidden) {
      hidden = document.createElement("input");
      hidden.type = "hidden";
      hidden.name = "q";
      element.append(hidden);
    }
    hidden.value = words;
    return;
  }
  const address = new URL(element.href);
  if (words) address.searchParams.set("q", words);
  else address.searchParams.delete("q");
  element.href = address;
}

function moveTo(step) {
  const items = [...results.querySelectorAll("[data-key-item]")].filter((each) => each.getClientRects().length);
  const at = items.findIndex((each) => each.contains(document.activeElement));
  const next = items[Math.max(0, Math.min(items.length - 1, at + step))];
  next?.querySelector("a")?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

field.addEventListener("input", search);

// Esc leaves the field. By itself the browser would clear it.
field.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing) return;
  event.preventDefault();
  field.blur();
});

// Enter in the field: the results for these words, and the first of them in focus, so that Enter opens it.
field.form.addEventListener("submit", async (event) => {
  event.preventDefault();
  await search();
  if (document.activeElement === field) moveTo(1);
});

// k at the first hit leads back to the field.
results.addEventListener("keymove", (event) => {
  const first = [...results.querySelectorAll("[data-key-item]")].find((each) => each.getClientRects().length);
  if (event.detail.step < 0 && first?.contains(document.activeElement)) {
    event.preventDefault();
    field.focus();
    field.select();
  }
});

if (!field.value && !location.hash) field.focus();
