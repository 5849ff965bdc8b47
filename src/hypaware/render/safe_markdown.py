"""Recorded text that is Markdown, made harmless: as HTML, and as Markdown for other programs.

Clients write Markdown, so it is shown as such. As HTML, tags in it are escaped, images are left out, links lead only to
http, https and mailto, and there are no style attributes. As Markdown, the text is kept only if it has no HTML and no
other links, and if it ends where it should: an open block of code or a comment would swallow what follows. This is
checked with a parser. Text that fails the check becomes a block of code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape as escape_html
from typing import TYPE_CHECKING, Any

from hypaware.render.wrap import escape_block

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_MAX_PARSED = 100_000
"""Characters; longer texts are shown as they are."""
_LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_RELATIVE = re.compile(r"[^:/?#]*(?:[/?#]|\Z)")
_END = "hypaware-end-of-text"


def to_html(text: str) -> str:
    """Return the text as HTML."""
    shown = escape_block(text)
    if len(shown) > _MAX_PARSED:
        return f"<pre>{escape_html(shown)}</pre>\n"
    return str(_html_parser().render(shown))


def to_markdown(text: str) -> str:
    """Return the text as Markdown that stands for itself, whatever comes before and after it."""
    shown = escape_block(text).strip("\n")
    if len(shown) <= _MAX_PARSED:
        for candidate in (shown, f"{shown}\n```"):
            if _is_contained(candidate):
                return candidate
    return to_code(text)


def to_code(text: str, language: str = "") -> str:
    """Return the text as a block of code, with a fence that does not occur in it."""
    shown = escape_block(text).strip("\n")
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def to_inline_code(text: str) -> str:
    """Return one line as inline code."""
    shown = escape_block(text).replace("\n", " ").strip()
    if not shown:
        return ""
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    space = " " if longest else ""
    return f"{fence}{space}{shown}{space}{fence}"


@cache
def _html_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": 100})
    parser.enable(["table", "strikethrough"]).disable(["image"])
    parser.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]

    def open_link(renderer: Any, tokens: list[Token], at: int, options: Any, env: Any) -> str:
        tokens[at].attrSet("rel", "noopener noreferrer nofollow")
        tokens[at].attrSet("target", "_blank")
        return str(renderer.renderToken(tokens, at, options, env))

    def open_cell(renderer: Any, tokens: list[Token], at: int, options: Any, env: Any) -> str:
        # A content security policy without inline styles would refuse the style attribute.
        if style := tokens[at].attrs.pop("style", None):
            tokens[at].attrSet("class", str(style).removeprefix("text-align:"))
        return str(renderer.renderToken(tokens, at, options, env))

    parser.add_render_rule("link_open", open_link)
    parser.add_render_rule("th_open", open_cell)
    parser.add_render_rule("td_open", open_cell)
    return parser


@cache
def _checking_parser() -> MarkdownIt:
    """Return a parser that finds everything that some program could act on."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": 100})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # type: ignore[method-assign]
    return parser


def _is_contained(text: str) -> bool:
    tokens = _checking_parser().parse(f"{text}\n\n{_END}\n")
    if [each.content for each in tokens[-2:-1]] != [_END] or tokens[-1].level != 0:
        return False
    return all(_is_harmless(token) for token in _list_tokens(tokens))


def _list_tokens(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()


def _is_harmless(token: Token) -> bool:
    if token.type in ("html_block", "html_inline", "image"):
        return False
    if token.type != "link_open":
        return True
    target = str(token.attrGet("href") or "")
    return _LINK.match(target) is not None or _RELATIVE.match(target) is not None
