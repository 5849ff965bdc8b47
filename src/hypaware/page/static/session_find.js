// Find within the session. The server says which parts contain the words, also in what is folded or was cut.

const MAX_RANGES = 2000;
const PAUSE_MS = 150;
const MAX_PIECES = 12;

export function startFind({ view, conversation, goTo, showAll }) {
  const form = document.getElementById("find-form");
  const field = document.getElementById("find-words");
  const count = document.getElementById("find-count");
  const buttons = view.querySelector(".find-only");
  const filter = document.getElementById("find-filter");
  let matches = [];
  let here = -1;
  let asked = "";
  let timer = 0;
  let asking = null;

  function clear() {
    for (const each of conversation.querySelectorAll(".is-hit, .has-hit")) each.classList.remove("is-hit", "has-hit");
    conversation.querySelector(".is-here")?.classList.remove("is-here");
    globalThis.CSS?.highlights?.delete("found");
    matches = [];
    here = -1;
  }

  async function ask() {
    const words = field.value;
    if (words === asked) return;
    asked = words;
    asking?.abort();
    clear();
    buttons.hidden = !words.trim();
    if (!words.trim()) {
      count.textContent = "";
      conversation.classList.remove("only-hits");
      return;
    }
    asking = new AbortController();
    const address = `${view.dataset.session}/find?format=json&q=${encodeURIComponent(words)}`;
    try {
      const answer = await (await fetch(address, { signal: asking.signal })).json();
      if (words === asked) show(answer);
    } catch (error) {
      if (error.name !== "AbortError") count.textContent = "The search failed";
    }
  }

  function show(answer) {
    const places = new Map();
    for (const each of conversation.querySelectorAll("[data-part]")) places.set(each.dataset.part, each);
    matches = answer.matches
      .map((match) => ({ ...match, element: places.get(match.part) ?? document.getElementById(match.anchor) }))
      .filter((match) => match.element)
      .sort((a, b) => (a.element.compareDocumentPosition(b.element) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
    for (const { element } of matches) mark(element);
    paint();
    const total = answer.matches.reduce((sum, match) => sum + match.count, 0);
    const more = answer.is_complete ? "" : "at least ";
    count.textContent = total ? `${more}${total} in ${answer.matches.length} parts` : "Nothing found";
    applyFilter();
  }

  // Also what is around the match: with the filter, everything else is hidden.
  function mark(element) {
    element.classList.add("is-hit");
    for (let each = element; each && each !== conversation; each = each.parentElement) each.classList.add("has-hit");
  }

  function rangesIn(element, limit) {
    const wanted = asked.toLowerCase();
    const found = [];
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && found.length < limit; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length) continue;
      for (let at = text.indexOf(wanted); at >= 0 && found.length < limit; at = text.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + wanted.length);
        found.push(range);
      }
    }
    return found;
  }

  function paint() {
    if (!globalThis.CSS?.highlights) return;
    const ranges = [];
    for (const { element } of matches) {
      if (ranges.length >= MAX_RANGES) break;
      ranges.push(...rangesIn(element, MAX_RANGES - ranges.length));
    }
    CSS.highlights.set("found", new Highlight(...ranges));
  }

  async function move(step) {
    if (field.value !== asked) await ask();
    if (!matches.length) return;
    here = (here + step + matches.length) % matches.length;
    const { element } = matches[here];
    for (let piece = 0; piece < MAX_PIECES && !rangesIn(element, 1).length; piece++) {
      const link = element.querySelector("a.more");
      if (!link) break;
      await showAll(link);
    }
    paint();
    goTo(element);
    const [range] = rangesIn(element, 1);
    range?.startContainer.parentElement?.scrollIntoView({ block: "center" });
    count.textContent = `${here + 1} of ${matches.length} parts`;
  }

  function applyFilter() {
    conversation.classList.toggle("only-hits", filter.checked && matches.length > 0);
  }

  filter.addEventListener("change", applyFilter);
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE_MS);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    move(1);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.shiftKey) {
      event.preventDefault();
      move(-1);
    } else if (event.key === "Escape") {
      field.value = "";
      ask();
      field.blur();
    }
  });

  return {
    move,
    focus() {
      field.focus();
      field.select();
    },
    again() {
      if (!asked.trim()) return;
      asked = "";
      ask();
    },
  };
}
