// Colours code that is visible. The work is done in a worker, which is ended if one block takes it longer than a second.

const LIMIT_MS = 1000;
const MAX_CHARACTERS = 50000;
const queue = [];
let worker = null;
let current = null;
let timer = 0;

function next() {
  if (current || !queue.length) return;
  current = queue.shift();
  if (!worker) {
    worker = new Worker("/static/highlight_worker.js");
    worker.onmessage = (event) => finish(event.data);
    worker.onerror = () => finish(null, true);
  }
  timer = setTimeout(() => finish(null, true), LIMIT_MS);
  worker.postMessage({ code: current.textContent, language: languageOf(current) });
}

function finish(html, isOver = false) {
  clearTimeout(timer);
  const block = current;
  current = null;
  if (isOver) {
    worker?.terminate();
    worker = null;
  }
  if (block) {
    block.dataset.highlighted = html ? "yes" : "no";
    const content = html && toContent(html, block.textContent);
    if (content) block.replaceChildren(content);
  }
  next();
}

// The result is used only if it is the same text, in nothing but spans with the highlighter's classes.
function toContent(html, text) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const content = template.content;
  if (content.textContent !== text) return null;
  for (const element of content.querySelectorAll("*")) {
    if (element.tagName !== "SPAN" || element.attributes.length !== 1) return null;
    if (!/^(?:hljs-[\w-]+|language-[\w-]+)(?: [\w-]+)*$/.test(element.getAttribute("class") ?? "")) return null;
  }
  return content;
}

function languageOf(block) {
  return /(?:^|\s)language-([\w+#.-]+)/.exec(block.className)?.[1].toLowerCase() ?? "";
}

const visible = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    visible.unobserve(entry.target);
    if (!entry.target.dataset.highlighted) queue.push(entry.target);
  }
  next();
}, { rootMargin: "200px" });

export function highlightIn(root) {
  for (const block of root.querySelectorAll("pre > code[class*=language-]")) {
    if (!block.dataset.highlighted && block.textContent.length <= MAX_CHARACTERS) visible.observe(block);
  }
}
