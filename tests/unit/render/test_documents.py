"""Markdown and HTML: complete, folded where it is long, and harmless whatever was recorded."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import UTC
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from hypaware.index.conversation import RecordedConversation, Thread
from hypaware.render.html import render_html
from hypaware.render.markdown import render_markdown
from tests.support.conversations import (
    TOKENS,
    answered,
    at,
    called,
    conversation,
    in_agent,
    message,
    part,
    said,
    typed,
)

EDIT = {"file_path": "/home/dev/project/cart.py", "old_string": "b = 2", "new_string": "b = 3"}
HOSTILE = (
    "</summary></details></main><script>alert(1)</script><img src=x onerror=alert(1)>\"'`&<!--\x1b[31m\u202e\n"
    "[x](javascript:alert(1))\n```\n# heading"
)
VOID = {"meta", "br", "hr"}


def sample() -> RecordedConversation:
    agent = in_agent("a1", message(4, "user", part("text", "Count them")), said(5, "There are *two*."))
    return conversation(
        typed(1, "Fix the **cart**."),
        message(2, "assistant", part("reasoning", "First I look.")),
        called(3, "t", "Task", {"description": "Count functions", "prompt": "Count them"}),
        *agent,
        answered(6, "t", "two"),
        called(7, "e", "Edit", EDIT),
        answered(8, "e", "The file was updated."),
        called(9, "b", "Bash", {"command": "make"}),
        answered(10, "b", "\n".join(f"line {number}" for number in range(500)), failed=True),
        typed(11, "Thanks."),
        said(12, "Done.", tokens=TOKENS, cost_usd=0.25),
        threads=(Thread("a1", True, None, "t", at(4)),),
    )


def hostile() -> RecordedConversation:
    return conversation(
        typed(0, HOSTILE),
        message(1, "developer", part("text", HOSTILE)),
        message(2, "assistant", part("reasoning", HOSTILE), part("error", HOSTILE), part("image", HOSTILE)),
        message(3, "assistant", part(HOSTILE, HOSTILE), model=HOSTILE),
        said(4, HOSTILE),
        called(5, "a", HOSTILE, {HOSTILE: HOSTILE, "command": HOSTILE}),
        answered(6, "a", HOSTILE),
        called(7, "e", "Edit", {"file_path": HOSTILE, "old_string": HOSTILE, "new_string": HOSTILE + "x"}),
        answered(8, "e", HOSTILE, failed=True),
        called(9, "p", "TodoWrite", {"todos": [{"content": HOSTILE, "status": HOSTILE}]}),
        answered(10, "unknown", HOSTILE),
        typed(11, HOSTILE),
        *in_agent(HOSTILE, message(12, "user", part("text", HOSTILE))),
        threads=(Thread(HOSTILE, True, None, None, at(12)),),
        title=HOSTILE,
        project=HOSTILE,
        branch=HOSTILE,
        models=[HOSTILE],
        client=HOSTILE,
        unpriced_models=[HOSTILE],
    )


class Page(HTMLParser):
    """Checks that tags are balanced, and collects them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def html_of(found: RecordedConversation, *, full: bool = False) -> str:
    return "".join(render_html(found, UTC, full=full))


def markdown_of(found: RecordedConversation, *, full: bool = False) -> str:
    return "".join(render_markdown(found, UTC, full=full))


def test_html_shows_the_conversation() -> None:
    html = html_of(sample())
    page = Page(html)

    for text in ("Fix the cart", "You", "claude-opus-5-5", "subagent a1", "+ b = 3", "line 0", "2 turns", "$0.42"):
        assert text in page.text
    assert "<strong>cart</strong>" in html
    assert html.index("There are <em>two</em>") < html.index("<pre>two</pre>")
    assert 'href="#turn-2"' in html
    assert 'id="turn-2"' in html
    assert "cd /home/dev/project &amp;&amp; claude --resume" in html


def test_html_cuts_long_results_unless_all_is_asked_for() -> None:
    cut, full = (Page(html_of(sample(), full=full)).text for full in (False, True))

    assert "line 399" in cut
    assert "100 more lines" in cut
    assert "line 400" not in cut
    assert "line 499" in full


def test_html_allows_nothing_but_its_own_style() -> None:
    html = html_of(sample())
    style = html.partition("<style>")[2].partition("</style>")[0]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)

    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    own = f"img-src data:; style-src 'sha256-{digest}'"
    assert policy == f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'"
    assert "@media print" in style
    assert "prefers-color-scheme: dark" in style
    assert "url(" not in style


@pytest.mark.hazard(62)
@pytest.mark.parametrize("full", [False, True])
def test_nothing_that_was_recorded_becomes_markup_of_the_page(full: bool) -> None:
    page = Page(html_of(hostile(), full=full))

    assert not page.tags & {"script", "img", "iframe", "object", "form", "link"}
    assert not {name for name in page.attributes if name.startswith("on") or name in ("style", "src")}
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page.text)
    assert "alert(1)" in page.text


def test_markdown_shows_the_conversation() -> None:
    text = markdown_of(sample())

    assert text.startswith("# Fix the cart\n\nclaude · project · main · claude-opus-5-5 · 2026-11-15 07:00 to 07:00\n")
    for block in (
        "### You · 2026-11-15 07:00:01\n\nFix the **cart**.\n",
        "<details><summary>thinking (1 line)</summary>\n\n```\nFirst I look.\n```\n\n</details>\n",
        "**Task** `Count functions`\n\n<details><summary>subagent a1</summary>\n\n#### Prompt · ",
        "There are *two*.\n\n</details>\n\n```\ntwo\n```\n",
        "**Edit** `cart.py +1 -1`\n\n```diff\n-b = 2\n+b = 3\n```\n",
        "**Bash** `make` (failed)\n\n<details><summary>result (500 lines)</summary>\n",
        "line 59\n… 440 more lines\n",
        "```sh\ncd /home/dev/project && claude --resume 0dc91b82-3238-4907-98f3-ae0d1d845b97\n```\n",
    ):
        assert block in text
    assert "line 499" in markdown_of(sample(), full=True)


@pytest.mark.hazard(62)
@pytest.mark.parametrize("full", [False, True])
def test_nothing_that_was_recorded_becomes_html_in_markdown(full: bool) -> None:
    text = markdown_of(hostile(), full=full)
    tokens = MarkdownIt("commonmark", {"html": True}).parse(text)

    inner = [child for token in tokens for child in (token, *(token.children or ()))]
    html = [token.content for token in inner if token.type in ("html_block", "html_inline")]
    page = Page("".join(html))
    assert page.tags == {"details", "summary"}
    assert not [token for token in inner if token.type in ("link_open", "image")]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", text)


def test_a_million_characters_in_one_line_are_written() -> None:
    found = conversation(
        typed(0, "x" * 1_000_000),
        called(1, "b", "Bash", {"command": "y" * 1_000_000}),
        answered(2, "b", "z" * 1_000_000),
    )

    assert html_of(found, full=True).count("z") >= 1_000_000
    assert markdown_of(found, full=True).count("x") >= 1_000_000
