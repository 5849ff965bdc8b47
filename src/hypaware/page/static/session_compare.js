// Two sessions side by side: colours of code, and texts that were cut.

import { highlightIn } from "/static/highlight.js";

highlightIn(document);
document.addEventListener("click", async (event) => {
  const link = event.target instanceof Element ? event.target.closest("a.more") : null;
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const address = new URL(link.href);
  address.searchParams.set("format", "piece");
  const answer = await fetch(address);
  if (!answer.ok) return;
  const template = document.createElement("template");
  template.innerHTML = await answer.text();
  if (!new URL(link.href).searchParams.has("from") && link.previousElementSibling?.matches("pre")) link.previousElementSibling.remove();
  if (link.nextElementSibling?.matches(".raw")) link.nextElementSibling.remove();
  link.replaceWith(template.content);
  highlightIn(document);
});
