// A session: keys for turns and errors, folds, texts that were cut, copies, and the turn that is being read.
//
// This runs while the conversation is still being sent, so that a long one can be used immediately.

import { highlightIn } from "/static/highlight.js";
import { startFind } from "/static/session_find.js";
import { startLive } from "/static/session_live.js";

while (!document.getElementById("conversation")) await new Promise((done) => { setTimeout(done, 10); });

const view = document.querySelector(".session");
const conversation = document.getElementById("conversation");
const outline = view.querySelector(".outline ol");

function isTyping(event) {
  return event.target instanceof Element && Boolean(event.target.closest("input, textarea, select"));
}

// Places

export function openAround(element) {
  for (let each = element; each && each !== conversation; each = each.parentElement) {
    if (each.tagName === "DETAILS") each.open = true;
  }
}

export function goTo(element, isHere = true) {
  openAround(element);
  element.scrollIntoView({ block: "start" });
  // Groups above are laid out when they come near, which moves what is below.
  requestAnimationFrame(() => element.scrollIntoView({ block: "start" }));
  if (!isHere) return;
  conversation.querySelector(".is-here")?.classList.remove("is-here");
  element.classList.add("is-here");
}

function barBottom() {
  return (document.querySelector(".session-bar")?.getBoundingClientRect().bottom ?? 0) + 4;
}

// Moves to the next or previous of the elements, seen from the top of the window.
function step(elements, direction) {
  if (!elements.length) return;
  const line = barBottom();
  const here = elements.findIndex((each) => each.classList.contains("is-here"));
  let at;
  if (here >= 0 && isNear(elements[here])) {
    at = here + direction;
  } else {
    at = elements.findIndex((each) => topOf(each) > line);
    if (direction < 0) at = (at < 0 ? elements.length : at) - 1;
  }
  const target = elements[Math.min(elements.length - 1, Math.max(0, at < 0 && direction > 0 ? elements.length - 1 : at))];
  goTo(target);
  if (!target.hasAttribute("tabindex")) target.tabIndex = -1;
  target.focus({ preventScroll: true });
}

// Something within a closed fold has no place of its own.
function topOf(element) {
  let shown = element;
  for (let each = element.parentElement; each && each !== conversation; each = each.parentElement) {
    if (each.tagName === "DETAILS" && !each.open) shown = each;
  }
  return shown.getBoundingClientRect().top;
}

function isNear(element) {
  const top = topOf(element);
  return top > -innerHeight && top < innerHeight;
}

const turns = () => [...conversation.querySelectorAll("h2.speaker.you")];
const errors = () => [...conversation.querySelectorAll("details.failed, .error")];

function countErrors() {
  const count = errors().length;
  document.getElementById("errors").hidden = !count;
  document.getElementById("error-count").textContent = count === 1 ? "1 error" : `${count} errors`;
  markTurns();
}

// The number of errors in each turn of the outline: those that are marked in the conversation, which has recognized
// failed commands by their text, too.
function markTurns() {
  const counts = new Map();
  let turn = "";
  for (const each of conversation.querySelectorAll("h2.speaker.you, details.failed, .error")) {
    if (each.matches("h2")) turn = each.id;
    else counts.set(turn, (counts.get(turn) ?? 0) + 1);
  }
  for (const link of view.querySelectorAll(".outline li > a")) {
    const count = counts.get(decodeURIComponent(link.hash.slice(1))) ?? 0;
    let mark = link.nextElementSibling;
    link.parentElement.classList.toggle("has-errors", count > 0);
    if (!count) {
      mark?.remove();
      continue;
    }
    if (!mark) {
      mark = document.createElement("span");
      mark.className = "bad";
      link.after(mark);
    }
    const word = count === 1 ? "error" : "errors";
    const unseen = document.createElement("span");
    unseen.className = "unseen";
    unseen.textContent = ` ${word}`;
    mark.title = `${count} ${word}`;
    mark.replaceChildren(String(count), unseen);
  }
}

// Folds

let isExpanded = false;
function expand() {
  isExpanded = !isExpanded;
  for (const each of conversation.querySelectorAll("details")) each.open = isExpanded;
  const button = view.querySelector("[data-do=expand]");
  button.setAttribute("aria-pressed", String(isExpanded));
  button.textContent = isExpanded ? "Collapse all" : "Expand all";
}

// Texts that were cut

export async function showAll(link) {
  const address = new URL(link.href);
  const isFirst = !address.searchParams.has("from");
  address.searchParams.set("format", "piece");
  link.setAttribute("aria-busy", "true");
  const answer = await fetch(address);
  if (!answer.ok) return;
  const template = document.createElement("template");
  template.innerHTML = await answer.text();
  const shown = link.previousElementSibling;
  const rest = link.nextElementSibling?.matches(".raw") ? link.nextElementSibling : null;
  const added = template.content.firstElementChild;
  for (const each of template.content.querySelectorAll("pre")) each.classList.add("piece");
  if (isFirst) {
    // The beginning that was shown is part of the piece.
    if (link.parentElement.matches(".said")) while (link.previousSibling) link.previousSibling.remove();
    else if (shown?.matches("pre")) shown.remove();
  }
  rest?.remove();
  link.replaceWith(template.content);
  highlightIn(conversation);
  added?.scrollIntoView({ block: "nearest" });
}

view.addEventListener("click", (event) => {
  const link = event.target.closest("a.more");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    showAll(link);
  }
});

// Copies

async function copyFrom(button, address) {
  const before = button.textContent;
  button.textContent = "…";
  try {
    // Begun within the click: a browser allows nothing else.
    const text = fetch(address).then((answer) => (answer.ok ? answer.blob() : Promise.reject(new Error(answer.status))))
      .then((blob) => new Blob([blob], { type: "text/plain" }));
    await navigator.clipboard.write([new ClipboardItem({ "text/plain": text })]);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not copied";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

for (const button of view.querySelectorAll("[data-fetch-copy]")) {
  button.hidden = false;
  button.addEventListener("click", () => copyFrom(button, button.dataset.fetchCopy));
}

const copyMessage = document.createElement("button");
copyMessage.type = "button";
copyMessage.className = "copy-message";
copyMessage.textContent = "Copy";
copyMessage.title = "Copy this message as Markdown";
copyMessage.hidden = true;
document.body.append(copyMessage);
let pointed = null;

function point(event) {
  const target = event.target instanceof Element ? event.target : null;
  if (!target || target === copyMessage) return;
  const found = conversation.contains(target) ? target.closest("[data-message]") ?? target.closest("[data-part]") : null;
  if (found === pointed) return;
  pointed = found;
  copyMessage.hidden = !found;
  if (!found) return;
  const box = found.getBoundingClientRect();
  copyMessage.style.top = `${Math.max(box.top, 0) + scrollY + 2}px`;
  copyMessage.style.left = `${box.right + scrollX - 60}px`;
}
document.addEventListener("pointerover", point);
document.addEventListener("focusin", point);
copyMessage.addEventListener("click", () => {
  const message = pointed?.dataset.message ?? messageOf(pointed);
  if (message) copyFrom(copyMessage, `${view.dataset.session}/message?message=${encodeURIComponent(message)}`);
});

// The id of a message stands on its first element only.
function messageOf(element) {
  const anchor = element?.dataset.part?.replace(/-\d+$/, "");
  return anchor ? document.getElementById(anchor)?.dataset.message : null;
}

// The turn that is being read

let isMarked = false;
function markTurn() {
  isMarked = false;
  const line = barBottom() + 80;
  let current = null;
  const items = outline.querySelectorAll("li");
  // Turns are in order, so the current one is found by halving.
  let [low, high] = [0, items.length - 1];
  while (low <= high) {
    const middle = (low + high) >> 1;
    const heading = document.getElementById(items[middle].firstElementChild.hash.slice(1));
    if (heading && heading.getBoundingClientRect().top <= line) [current, low] = [items[middle], middle + 1];
    else high = middle - 1;
  }
  const before = outline.querySelector(".current");
  if (before === current) return;
  before?.classList.remove("current");
  before?.firstElementChild.removeAttribute("aria-current");
  current?.classList.add("current");
  current?.firstElementChild.setAttribute("aria-current", "true");
  if (current) {
    const top = current.offsetTop - outline.offsetTop;
    if (top < outline.scrollTop || top > outline.scrollTop + outline.clientHeight - 40) outline.scrollTop = top - 80;
  }
}
addEventListener("scroll", () => {
  copyMessage.hidden = true;
  pointed = null;
  if (!isMarked) requestAnimationFrame(markTurn);
  isMarked = true;
}, { passive: true });

// A narrow window has the turns in a menu.
const menu = view.querySelector(".outline-menu");
menu?.addEventListener("toggle", () => {
  if (menu.open && !menu.querySelector(".outline")) {
    const copy = view.querySelector(".outline").cloneNode(true);
    copy.classList.add("menu-list");
    menu.append(copy);
    copy.addEventListener("click", (event) => { if (event.target.closest("a")) menu.open = false; });
  } else if (!menu.open) {
    menu.querySelector(".outline")?.remove();
  }
});
document.addEventListener("click", (event) => {
  for (const open of document.querySelectorAll(".menu[open]")) if (!open.contains(event.target)) open.open = false;
});

// Keys and buttons

const find = startFind({ view, conversation, goTo, showAll });
const actions = {
  "error-next": () => step(errors(), 1),
  "error-previous": () => step(errors(), -1),
  "find-next": () => find.move(1),
  "find-previous": () => find.move(-1),
  expand,
};
view.addEventListener("click", (event) => {
  const name = event.target.closest("[data-do]")?.dataset.do;
  if (name) actions[name]?.();
});
view.querySelector("[data-do=expand]").hidden = false;

// Before the keys of every view, which mean other things there.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || isTyping(event)) return;
  if (document.querySelector("dialog[open]")) return;
  const run = {
    j: () => step(turns(), 1),
    k: () => step(turns(), -1),
    e: actions["error-next"],
    E: actions["error-previous"],
    f: find.focus,
    x: expand,
    l: () => scrollTo(0, document.documentElement.scrollHeight),
  }[event.key];
  if (!run || (event.key === "f" && Date.now() - went < 1500)) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  run();
}, { capture: true });
let went = 0;
document.addEventListener("keyup", (event) => { if (event.key === "g") went = Date.now(); });

// While the conversation is being sent, and after it

let isWaiting = Boolean(location.hash);
for (const kind of ["wheel", "touchstart", "keydown", "pointerdown"]) {
  addEventListener(kind, () => { isWaiting = false; }, { passive: true, once: true });
}
function arrive() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target || !conversation.contains(target)) return;
  isWaiting = false;
  goTo(target, false);
}
addEventListener("hashchange", arrive);

function prepare(root) {
  highlightIn(root);
  countErrors();
  markTurn();
}

function setBarTop() {
  const top = document.querySelector(".top").getBoundingClientRect().height;
  document.documentElement.style.setProperty("--bar-top", `${top}px`);
}
setBarTop();
addEventListener("resize", setBarTop);

// The last group may still grow.
function prepareGroups() {
  for (const group of conversation.querySelectorAll(":scope > .group:not([data-ready]):not(:last-child)")) {
    group.dataset.ready = "";
    highlightIn(group);
  }
  if (isWaiting) arrive();
}
while (document.readyState === "loading") {
  prepareGroups();
  await new Promise((done) => { setTimeout(done, 200); });
}
prepareGroups();
prepare(conversation.lastElementChild ?? conversation);
if (isWaiting) arrive();
startLive({ view, conversation, outline, prepare, find });
