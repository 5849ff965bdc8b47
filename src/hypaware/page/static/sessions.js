// The list of sessions as one long list: only the pages near the screen have rows. Keys, selection, and the place in
// the list when one comes back.
//
// Each page is a <tbody> with the height of its rows (`--rows`), so the scrollbar is right from the beginning. The order
// of all sessions is read once; rows are read by their numbers, so nothing moves while new sessions are recorded.

const table = document.querySelector("table.sessions");
const ROWS = 50;
const NEAR = 1500;
const KEPT = 5000;
const SETTLE = 50;

class SessionList {
  constructor(element) {
    this.table = element;
    this.order = [...element.querySelectorAll("tbody tr")].map((row) => Number(row.dataset.number));
    this.bodies = [element.tBodies[0]];
    this.size = Infinity;
    this.loads = new Map();
    this.isDue = false;
  }

  async extend() {
    const answer = await fetch(this.table.dataset.order);
    if (!answer.ok) return false;
    const order = await answer.json();
    const isSame = this.order.every((number, at) => order[at] === number);
    const given = isSame ? [...this.table.querySelectorAll("tbody tr")] : [];
    this.order = order;
    this.size = ROWS;
    const first = this.bodies[0];
    const focused = document.activeElement;
    this.bodies = Array.from({ length: Math.ceil(order.length / ROWS) }, (_, page) => {
      const body = first.cloneNode(false);
      body.style.setProperty("--rows", String(this.numbersOf(page).length));
      const rows = given.slice(page * ROWS, (page + 1) * ROWS);
      if (rows.length && rows.length === this.numbersOf(page).length) {
        body.append(...rows);
        body.classList.add("filled");
      }
      return body;
    });
    first.remove();
    this.table.classList.add("windowed");
    this.table.setAttribute("aria-rowcount", String(order.length + 1));
    this.table.append(...this.bodies);
    // A row that is moved loses the focus.
    if (this.table.contains(focused)) focused.focus({ preventScroll: true });
    document.querySelectorAll(".no-windows a").forEach((each) => { each.hidden = true; });
    const look = () => {
      if (this.isDue) return;
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        this.look();
      });
    };
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    look();
    return true;
  }

  numbersOf(page) {
    return this.order.slice(page * ROWS, (page + 1) * ROWS);
  }

  // Fills the pages near the screen and empties those that are far away.
  look() {
    const near = this.pagesWithin(NEAR);
    const kept = this.pagesWithin(KEPT);
    for (const page of this.loads.keys()) if (page < near.first || page > near.last) this.loads.get(page).stop.abort();
    for (let page = near.first; page <= near.last; page += 1) this.fill(page);
    for (const body of this.table.querySelectorAll("tbody.filled")) {
      const page = this.bodies.indexOf(body);
      if ((page < kept.first || page > kept.last) && !body.contains(document.activeElement)) {
        body.classList.remove("filled");
        body.replaceChildren();
      }
    }
  }

  // The pages that are at most so many pixels away from the screen.
  pagesWithin(margin) {
    const top = this.bodies[0].getBoundingClientRect().top;
    const height = this.bodies[0].offsetHeight;
    const last = this.bodies.length - 1;
    const clamp = (page) => Math.min(last, Math.max(0, Math.floor(page)));
    return { first: clamp((-top - margin) / height), last: clamp((innerHeight + margin - top) / height) };
  }

  // Fills a page with its rows. A page that is passed quickly is not read.
  fill(page) {
    const body = this.bodies[page];
    if (body.classList.contains("filled")) return Promise.resolve();
    const under = this.loads.get(page);
    if (under && !under.stop.signal.aborted) return under.done;
    const stop = new AbortController();
    const load = { stop };
    load.done = this.load(page, body, stop.signal)
      .catch((error) => {
        if (error.name !== "AbortError") throw error;
      })
      .finally(() => {
        if (this.loads.get(page) === load) this.loads.delete(page);
      });
    this.loads.set(page, load);
    return load.done;
  }

  async load(page, body, signal) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE));
    signal.throwIfAborted();
    const address = new URL(this.table.dataset.rows, location.href);
    address.searchParams.set("numbers", this.numbersOf(page).join(","));
    const answer = await fetch(address, { signal });
    if (!answer.ok) return;
    const part = document.createElement("template");
    part.innerHTML = await answer.text();
    signal.throwIfAborted();
    [...part.content.children].forEach((row, at) => {
      row.setAttribute("aria-rowindex", String(page * ROWS + at + 2));
      selection.mark(row);
    });
    body.replaceChildren(part.content);
    body.classList.add("filled");
  }

  get rowHeight() {
    return this.table.querySelector("tbody tr")?.getBoundingClientRect().height ?? 36;
  }

  positionOf(row) {
    const page = this.bodies.indexOf(row.parentElement);
    return (page && page * this.size) + row.sectionRowIndex;
  }

  rowAt(position) {
    const body = this.bodies[Math.floor(position / this.size)];
    return body?.rows[position % this.size] ?? null;
  }

  // Scrolls so that a row is `offset` pixels below the top of the screen.
  scrollTo(position, offset) {
    const body = this.bodies[Math.floor(position / this.size)];
    const top = body.getBoundingClientRect().top + scrollY + (position % this.size) * this.rowHeight;
    scrollTo({ top: top - offset, behavior: "instant" });
  }

  async focus(position) {
    if (!this.rowAt(position)) {
      this.scrollTo(position, innerHeight / 2);
      await this.fill(Math.floor(position / this.size));
    }
    const row = this.rowAt(position);
    row?.querySelector("a")?.focus({ preventScroll: true });
    row?.scrollIntoView({ block: "nearest" });
  }

  // The first row below the heads, and how far it is from the top of the screen.
  place() {
    const height = this.rowHeight;
    const { top } = this.bodies[0].getBoundingClientRect();
    const position = Math.max(0, Math.ceil((this.table.tHead.getBoundingClientRect().bottom - top) / height));
    return { number: this.order[position], offset: top + position * height };
  }

  restore({ number, offset }) {
    const position = this.order.indexOf(number);
    if (position >= 0) this.scrollTo(position, offset);
  }
}

// The sessions that are selected, the last two of them, on all pages of the list, by their ids as in an address.
class Selection {
  constructor(bar) {
    this.bar = bar;
    this.chosen = new Map();
    bar?.querySelector("button").addEventListener("click", () => {
      this.chosen.clear();
      this.show();
    });
  }

  toggle(row) {
    const id = row.dataset.id;
    if (!id) return;
    if (!this.chosen.delete(id)) this.chosen.set(id, row.querySelector(".title a").textContent);
    if (this.chosen.size > 2) this.chosen.delete(this.chosen.keys().next().value);
    this.show();
  }

  mark(row) {
    const box = row.querySelector(".pick input");
    if (!box) return;
    box.checked = this.chosen.has(row.dataset.id);
    row.classList.toggle("selected", box.checked);
  }

  show() {
    document.querySelectorAll(".sessions tbody tr").forEach((row) => this.mark(row));
    const [first, second] = this.chosen.keys();
    const link = this.bar.querySelector("a");
    this.bar.hidden = first === undefined;
    this.bar.querySelector(".chosen").textContent =
      second === undefined ? "1 selected; select another to compare" : "2 selected";
    link.hidden = second === undefined;
    if (second !== undefined) link.href = `/compare?a=${first}&b=${second}`;
  }
}

const selection = new Selection(document.querySelector(".selection"));

function focusedRow() {
  return document.activeElement?.closest?.(".sessions tbody tr") ?? null;
}

async function start() {
  const list = new SessionList(table);
  const header = document.querySelector(".top");
  const measure = () => table.style.setProperty("--top", `${header.getBoundingClientRect().height}px`);
  new ResizeObserver(measure).observe(header);
  measure();

  let target = null;
  table.addEventListener("keymove", (event) => {
    event.preventDefault();
    const row = focusedRow();
    const from = row ? list.positionOf(row) : target;
    const step = event.detail.step;
    const next = from === null ? visiblePosition(list) : from + step;
    target = Math.min(list.order.length - 1, Math.max(0, next));
    list.focus(target);
  });
  table.addEventListener("change", (event) => {
    if (event.target.matches(".pick input")) selection.toggle(event.target.closest("tr"));
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
    const row = focusedRow();
    if (row && !event.defaultPrevented) selection.toggle(row);
  });

  if (!table.dataset.order) return;
  history.scrollRestoration = "manual";
  const place = history.state?.place;
  addEventListener("pagehide", () => history.replaceState({ ...history.state, place: list.place() }, ""));
  if ((await list.extend()) && place) list.restore(place);
}

// The row at which keys begin: the first one that can be seen.
function visiblePosition(list) {
  return Math.max(0, list.order.indexOf(list.place().number));
}

if (table) start();
