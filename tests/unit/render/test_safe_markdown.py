"""Recorded Markdown: shown as Markdown, but never as markup that a reader did not expect."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from hypaware.render.safe_markdown import to_code, to_html, to_inline_code, to_markdown

TAGS = {
    *("p", "em", "strong", "s", "code", "pre", "a", "br", "hr", "blockquote", "ul", "ol", "li"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"href", "title", "rel", "class", "start", "target"}
ATTACKS = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt&colon;alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD4=)",
    "[x](vbscript:x)",
    "[x](file:///etc/passwd)",
    "![x](https://example.com/track.png)",
    "<javascript:alert(1)>",
    "[x]: javascript:alert(1)\n\n[x]",
    '[x](https://e.com "\\" onclick=\\"alert(1)")',
    '```"><script>alert(1)</script>\nx\n```',
    "`<script>`",
    "&lt;script&gt;&#60;script&#62;",
    "</div></main><script>",
    "<!-- open",
    "```\nopen",
    "~~~~\nopen",
    "<details>",
    "- ```\n  open",
    "> ```\n> open",
    "    <script>",
]


class Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.targets += [value or "" for name, value in attrs if name == "href"]


def collect(html: str) -> Collector:
    found = Collector()
    found.feed(html)
    return found


def test_markdown_is_rendered() -> None:
    html = to_html("# Title\n\nSome **bold** `code` and a [link](https://example.com).\n\n| a |\n|---|\n| 1 |\n")

    assert "<h1>Title</h1>" in html
    assert "<strong>bold</strong> <code>code</code>" in html
    assert '<a href="https://example.com" rel="noopener noreferrer nofollow" target="_blank">link</a>' in html
    assert "<td>1</td>" in html


def test_tables_are_aligned_without_styles() -> None:
    html = to_html("| a | b | c |\n|:--|--:|:-:|\n| 1 | 2 | 3 |\n")

    assert '<th class="left">a</th>' in html
    assert '<td class="right">2</td>' in html
    assert '<td class="center">3</td>' in html
    assert "style" not in html


@pytest.mark.hazard(62)
@given(st.sampled_from(ATTACKS).flatmap(lambda attack: st.text(max_size=20).map(lambda text: f"{text}{attack}{text}")))
@example("\n".join(ATTACKS))
def test_html_has_only_plain_tags_and_links_to_the_web(text: str) -> None:
    found = collect(to_html(text))

    assert found.tags <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert all(re.match(r"https?://|mailto:", target, re.IGNORECASE) for target in found.targets)


def test_text_that_is_too_long_to_parse_is_shown_as_plain_text() -> None:
    assert to_html("*" * 200_000) == f"<pre>{'*' * 200_000}</pre>\n"
    assert to_html("<b>" * 50_000).startswith("<pre>&lt;b&gt;")


@pytest.mark.parametrize(
    "text", ["plain", "**bold** [x](https://example.com)", "- a\n- b\n", "```py\nx = 1\n```", "a < b && c"]
)
def test_harmless_markdown_is_not_changed(text: str) -> None:
    assert to_markdown(text) == text.strip("\n")


@pytest.mark.hazard(62)
@given(st.lists(st.sampled_from(ATTACKS) | st.text(max_size=10), max_size=4).map("\n".join))
@example("```\nopen")
@example("<!-- open")
def test_markdown_brings_no_html_and_ends_where_it_should(text: str) -> None:
    parser = MarkdownIt("commonmark", {"html": True})
    parser.validateLink = lambda url: True  # type: ignore[method-assign]

    tokens = parser.parse(f"{to_markdown(text)}\n\nwhat follows\n")

    inner = [child for token in tokens for child in (token, *(token.children or ()))]
    assert not {"html_block", "html_inline", "image"} & {token.type for token in inner}
    targets = [str(token.attrGet("href")) for token in inner if token.type == "link_open"]
    assert not [target for target in targets if re.match(r"\s*(javascript|data|vbscript|file):", target, re.IGNORECASE)]
    assert (tokens[-2].type, tokens[-2].content, tokens[-1].level) == ("inline", "what follows", 0)


@given(st.text(alphabet="`~a \n", max_size=60))
def test_a_block_of_code_holds_its_text(text: str) -> None:
    (token,) = MarkdownIt().parse(to_code(text))

    assert token.type == "fence"
    assert token.content == text.strip("\n") + "\n"


@given(st.text(alphabet="`a ", max_size=30).filter(str.strip))
def test_inline_code_holds_its_text(text: str) -> None:
    (token,) = [each for each in MarkdownIt().parse(to_inline_code(text)) if each.type == "inline"]

    assert [child.type for child in token.children or ()] == ["code_inline"]
    assert (token.children or [])[0].content.strip() == text.strip()
