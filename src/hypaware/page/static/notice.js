// Follows the build of the index: the notice changes until it is complete, and then offers the whole answer.
const pause = 2000;
const box = document.getElementById("notice");

async function look() {
  let answer;
  try {
    answer = await fetch("/notice");
  } catch {
    setTimeout(look, 5 * pause); // the page is not served at the moment
    return;
  }
  const isComplete = answer.status === 204;
  if (isEmpty() && answer.ok) {
    location.reload(); // nothing was shown that could be lost
    return;
  }
  if (isComplete) {
    box.querySelector("p").replaceChildren("The index is complete. ", makeReload());
    return;
  }
  if (answer.ok) {
    const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
    const now = parsed.querySelector("#notice p");
    now.querySelector("a").replaceWith(makeReload());
    box.querySelector("p").replaceWith(document.importNode(now, true));
  }
  setTimeout(look, pause);
}

function isEmpty() {
  const typed = [...document.querySelectorAll("input")].some((field) => field === document.activeElement);
  return !typed && box.querySelector("progress") && document.querySelector("main .empty");
}

function makeReload() {
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = "Reload";
  return link;
}

if (box) setTimeout(look, pause);
