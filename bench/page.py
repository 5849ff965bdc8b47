"""Measure the page in Chromium: `python -m bench.page HOME [--repeat 9] [--agentsview URL]`.

The home and its index must be complete; a copy is not made, and nothing is changed except the page's sign-in files. For
each view: the first paint, and when its content is there, each in a new browser context without a cache, after one
visit that is not counted. Search is timed from the last key to the results. With `--agentsview`, the same is measured
for its server, which must show the same history.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from playwright.sync_api import Browser, Page

from bench.measure import Measured
from hypaware.home import Home
from hypaware.index.store import Index, open_index
from scripts.ensure_chromium import find_chromium, install_command
from tests.support.browser import run_chromium, serve_page

_PARTS = 5_000
# What a program loads from elsewhere does not count: this machine may have no network.
_OFFLINE = ("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",)
_WORDS = 20
# Notes when a text is in the document and the frame with it is drawn.
_WATCH = """
(() => {
  const text = %s;
  let note;
  window.shownAt = new Promise((resolve) => { note = resolve; });
  const look = () => {
    if (document.body?.textContent.includes(text)) {
      requestAnimationFrame(() => setTimeout(() => note(performance.now())));
    } else requestAnimationFrame(look);
  };
  look();
})();
"""
_FIRST_PAINT = """
() => new Promise((resolve) => new PerformanceObserver((list) => {
  for (const entry of list.getEntriesByName("first-contentful-paint")) resolve(entry.startTime);
}).observe({ type: "paint", buffered: true }))
"""
_SEARCH = """
([field, word, results]) => new Promise((resolve) => {
  const input = document.querySelector(field);
  const marks = (node) => [...node.querySelectorAll("mark")].some((m) => m.textContent.toLowerCase() === word);
  const began = performance.now();
  const watch = new MutationObserver(() => {
    if (!marks(document.querySelector(results) ?? document.body)) return;
    watch.disconnect();
    requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
  });
  watch.observe(document.body, { childList: true, subtree: true, characterData: true });
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value").set.call(input, word);
  input.dispatchEvent(new InputEvent("input", { bubbles: true, inputType: "insertText" }));
})
"""


class View(NamedTuple):
    name: str
    path: str
    text: str
    """What it shows when its content is there."""


class Facts(NamedTuple):
    """What is in the home: a title of the list, a session of about 5,000 parts, and words to search."""

    rows: int
    title: str
    session: str
    parts: int
    prompt: str
    words: Sequence[str]


class Timing(NamedTuple):
    paint: float
    shown: float

    def __str__(self) -> str:
        return f"{self.paint:.0f} · {self.shown:.0f} ms"


def read_facts(index: Index) -> Facts:
    run = index.connection.execute
    (rows,) = run("SELECT count(*) FROM parts").fetchone()
    newest = run("SELECT title FROM sessions WHERE title IS NOT NULL ORDER BY ended_at DESC LIMIT 1").fetchone()
    session, parts, title = run(
        "SELECT session_id, parts, title FROM sessions ORDER BY abs(parts - ?), id LIMIT 1", (_PARTS,)
    ).fetchone()
    titles = run("SELECT title FROM sessions WHERE title IS NOT NULL ORDER BY ended_at DESC LIMIT 400").fetchall()
    words = dict.fromkeys(
        word.lower() for (text,) in titles for word in text.split() if word.isalpha() and len(word) > 4
    )
    return Facts(rows, _beginning(newest[0]), session, parts, _beginning(title), list(words)[:_WORDS])


def _beginning(text: str) -> str:
    return text[:20].strip()


def measure(home: Path, repeat: int) -> Iterator[Measured]:
    with open_index(Home(home)) as index:
        facts = read_facts(index)
    views = [
        View("overview", "/?days=all", "Cost over time"),
        View("sessions", "/sessions", facts.title),
        View("search page with results", f"/search?q={facts.words[0]}", "match"),
        View("health", "/health", "Disk"),
        View(f"session of {facts.parts:,} parts", f"/sessions/{facts.session}", facts.prompt),
    ]
    with serve_page(Home(home)) as server, run_chromium(_chromium(), _OFFLINE) as browser:

        def open_page(watched: str) -> Page:
            page = _new_page(browser, server.address, watched)
            page.goto(server.open_address())
            return page

        for view in views:
            found = _median(open_page, view, repeat)
            limit, value = (500, found.shown) if "session of" in view.name else (300, found.paint)
            target = "readable ≤ 500 ms" if limit == 500 else "first paint ≤ 300 ms"
            yield Measured(
                f"{view.name}, {facts.rows:,} rows: first paint · content", target, str(found), value <= limit
            )
        page = open_page("")
        spent = _search(page, "/search", "#find", "#results", facts.words)
        told = f"p50 {statistics.median(spent):.0f} ms, p95 {_percentile(spent, 0.95):.0f} ms"
        yield Measured(f"search as you type, {len(spent)} words", "≤ 150 ms", told, _percentile(spent, 0.95) <= 150)
        memory = psutil.Process(server.process.pid).memory_full_info()
        told = f"{memory.uss / 1e6:.0f} MB of its own, {memory.rss / 1e6:.0f} MB resident"
        yield Measured("memory of the page's process after this", "≤ 150 MB", told, memory.rss <= 150e6)


def measure_agentsview(home: Path, address: str, repeat: int) -> Iterator[Measured]:
    with open_index(Home(home)) as index:
        facts = read_facts(index)
    views = [
        View("overview", "/", "Activity by Day and Hour"),
        View("sessions", "/", facts.title),
        View("usage", "/usage?window_days=365", "Cost Over Time"),
        View("activity", "/activity", "Breakdown"),
        View(f"session of {facts.parts:,} parts", f"/sessions/{facts.session}", facts.prompt),
    ]
    with run_chromium(_chromium(), _OFFLINE) as browser:
        for view in views:
            found = _median(lambda watched: _new_page(browser, address, watched), view, repeat)
            yield Measured(f"agentsview: {view.name}: first paint · content", "–", str(found))


def _new_page(browser: Browser, address: str, watched: str) -> Page:
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 900})
    if watched:
        context.add_init_script(_WATCH % json.dumps(watched))
    return context.new_page()


def _median(open_page: Callable[[str], Page], view: View, repeat: int) -> Timing:
    timings = [_time(open_page, view) for _ in range(repeat + 1)][1:]
    return Timing(*(statistics.median(each[at] for each in timings) for at in (0, 1)))


def _time(open_page: Callable[[str], Page], view: View) -> Timing:
    page = open_page(view.text)
    page.goto(view.path, wait_until="commit")
    shown = page.evaluate("() => window.shownAt")
    paint = page.evaluate(_FIRST_PAINT)
    page.context.close()
    return Timing(float(paint), float(shown))


def _search(page: Page, path: str, field: str, results: str, words: Sequence[str]) -> list[float]:
    page.goto(path)
    page.wait_for_load_state("load")
    return [float(page.evaluate(_SEARCH, [field, word, results])) for word in words]


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _chromium() -> str:
    found = find_chromium()
    if found is None:
        sys.exit(f"Chromium is not installed; try: {install_command()}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the page of a home in Chromium.")
    parser.add_argument("home", type=Path)
    parser.add_argument("--repeat", type=int, default=9, help="visits of each view")
    parser.add_argument("--agentsview", metavar="URL", help="a server of agentsview with the same history")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    for found in measure(args.home, args.repeat):
        print(found.line(), flush=True)
    if args.agentsview:
        for found in measure_agentsview(args.home, args.agentsview, args.repeat):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
