// A session that is being recorded: new messages come as events and are added where they belong.

const NEAR_END = 120;

export function startLive({ view, conversation, outline, prepare, find }) {
  const live = document.getElementById("live");
  const newest = document.getElementById("newest");
  const announce = document.getElementById("announce");
  let source = null;
  let last = view.dataset.last;
  let unread = 0;

  const isAtEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - NEAR_END;
  const toEnd = () => scrollTo(0, document.documentElement.scrollHeight);

  function open() {
    if (source || document.hidden) return;
    source = new EventSource(`${view.dataset.session}/events?since=${encodeURIComponent(last)}`);
    source.addEventListener("update", (event) => update(JSON.parse(event.data)));
    source.addEventListener("state", (event) => { live.hidden = !JSON.parse(event.data).is_running; });
    source.addEventListener("end", close);
  }

  function close() {
    source?.close();
    source = null;
    live.hidden = true;
  }

  function update({ html, figures, at, is_running: isRunning, facts }) {
    const follows = isAtEnd();
    last = at ?? last;
    live.hidden = !isRunning;
    document.getElementById("figures").innerHTML = figures;
    const template = document.createElement("template");
    template.innerHTML = html;
    const added = add(template.content);
    if (!added) return;
    showFacts(facts);
    prepare(conversation);
    find.again();
    announce.textContent = added === 1 ? "1 new part" : `${added} new parts`;
    if (follows) {
      toEnd();
      requestAnimationFrame(toEnd);
    } else {
      unread += added;
      newest.hidden = false;
      newest.textContent = `${unread} new ↓`;
    }
  }

  // Adds the blocks that are not there yet, and returns how many.
  function add(content) {
    let heading = null;
    let added = 0;
    for (const block of [...content.children]) {
      if (block.matches(".speaker")) {
        heading = block;
        continue;
      }
      const named = block.matches("[data-part]") ? block : block.querySelector("[data-part]");
      if (named && conversation.querySelector(`[data-part="${CSS.escape(named.dataset.part)}"]`)) continue;
      for (const each of [block, ...block.querySelectorAll("[id]")]) {
        if (each.id && document.getElementById(each.id)) each.removeAttribute("id");
      }
      added += 1;
      if (block.dataset.for && putIntoCall(block)) continue;
      const place = placeOf(block);
      if (heading) putHeading(heading, place);
      heading = null;
      place.append(block);
    }
    return added;
  }

  function placeOf(block) {
    const thread = block.dataset.thread;
    if (!thread) return groupIn(conversation);
    let box = conversation.querySelector(`details.agent[data-thread="${CSS.escape(thread)}"]`);
    if (!box) {
      box = document.createElement("details");
      box.className = "agent";
      box.dataset.thread = thread;
      const summary = document.createElement("summary");
      summary.textContent = `subagent ${block.dataset.threadName ?? ""}`;
      const group = document.createElement("div");
      group.className = "group";
      box.append(summary, group);
      groupIn(conversation).append(box);
    }
    return groupIn(box);
  }

  function groupIn(parent) {
    const groups = parent.querySelectorAll(":scope > .group");
    const group = groups[groups.length - 1];
    if (group && group.childElementCount < 24) return group;
    const next = document.createElement("div");
    next.className = "group";
    parent.append(next);
    return next;
  }

  function putHeading(heading, place) {
    if (heading.id && document.getElementById(heading.id)) return;
    const before = [...place.closest("details.agent, .conversation").querySelectorAll(":scope > .group > .speaker")].pop();
    const isSame = before && before.className === heading.className && before.firstChild?.data === heading.firstChild?.data;
    if (isSame && !heading.matches(".you")) return;
    place.append(heading);
    if (heading.matches(".you")) addTurn(heading);
  }

  function addTurn(heading) {
    const number = conversation.querySelectorAll("h2.speaker.you").length;
    const shown = heading.querySelector(".turn");
    if (shown) shown.textContent = number;
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `#${heading.id}`;
    link.dir = "auto";
    item.append(link);
    outline.append(item);
    queueMicrotask(() => { link.textContent = heading.nextElementSibling?.textContent.trim().slice(0, 80) || "…"; });
  }

  // A result goes below the call that waits for it.
  function putIntoCall(block) {
    const call = conversation.querySelector(`details[data-waits="${CSS.escape(block.dataset.for)}"]`);
    if (!call) return false;
    for (const each of [...block.children]) if (each.tagName !== "SUMMARY") call.append(each);
    call.removeAttribute("data-waits");
    const hint = call.querySelector(":scope > summary .hint");
    const lines = (call.querySelector(".result")?.textContent ?? "").trim().split("\n");
    const failed = block.matches(".failed");
    if (hint) hint.textContent = failed ? "failed" : lines.length === 1 && lines[0].length <= 60 ? lines[0] : `${lines.length} lines`;
    call.classList.toggle("failed", failed);
    if (failed) call.open = true;
    return true;
  }

  // The figures of the last turn stay below it.
  function showFacts(facts) {
    let shown = [...conversation.querySelectorAll(":scope > .group > .turn-end")].pop();
    const turn = [...conversation.querySelectorAll(":scope > .group > h2.speaker.you")].pop();
    const isOfTurn = shown && (!turn || turn.compareDocumentPosition(shown) & Node.DOCUMENT_POSITION_FOLLOWING);
    if (!isOfTurn) {
      shown = document.createElement("p");
      shown.className = "facts turn-end";
    }
    shown.textContent = facts ?? "";
    groupIn(conversation).append(shown);
  }

  newest.addEventListener("click", () => {
    toEnd();
    requestAnimationFrame(toEnd);
  });
  addEventListener("scroll", () => {
    if (newest.hidden || !isAtEnd()) return;
    unread = 0;
    newest.hidden = true;
  }, { passive: true });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
