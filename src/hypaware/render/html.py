"""A conversation as one HTML file that needs nothing else: no script, no font, no other file, no network.

Everything recorded is escaped, and the content security policy of the page allows nothing but its own style sheet and
images within the file, so that even a mistake here could not run code. Long results are cut unless `full`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from datetime import tzinfo
from functools import cache
from pathlib import Path

from hypaware.index.conversation import RecordedConversation
from hypaware.render.facts import find_main, list_facts, list_totals, resume_command
from hypaware.render.html_blocks import HtmlBlocks, HtmlStyle, to_line
from hypaware.render.outline import outline


def render_html(conversation: RecordedConversation, zone: tzinfo, *, full: bool = False) -> Iterator[str]:
    """Yield the page in pieces."""
    session = conversation.session
    title = to_line(session["title"] or session["session_id"])
    style, digest = _load_style()
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="referrer" content="no-referrer">\n<meta name="robots" content="noindex">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<div class="page">\n'
        f'<header>\n<h1 dir="auto">{title}</h1>\n'
        f'<p class="facts">{" · ".join(map(to_line, list_facts(session, zone)))}</p>\n</header>\n<main>\n'
    )
    blocks = HtmlBlocks(HtmlStyle(zone, session["cwd"], full))
    for event in outline(conversation):
        yield from blocks.event(event)
    yield "</main>\n<footer>\n"
    for line in list_totals(session, conversation.threads):
        yield f'<div class="facts">{to_line(line)}</div>\n'
    yield f'<div class="facts">session {to_line(session["session_id"])}</div>\n'
    if command := resume_command(session, find_main(conversation.threads)):
        yield f"<pre>{to_line(command)}</pre>\n"
    yield "</footer>\n"
    # The list of turns comes last, because it is known last; the style sheet puts it first.
    if len(blocks.turns) > 1:
        yield "<nav>\n<ol>\n"
        for number, text in enumerate(blocks.turns, start=1):
            yield f'<li><a href="#turn-{number}" dir="auto">{text}</a></li>\n'
        yield "</ol>\n</nav>\n"
    yield "</div>\n</body>\n</html>\n"


@cache
def _load_style() -> tuple[str, str]:
    """Return the style sheet, and its hash for the content security policy."""
    style = Path(__file__).with_name("conversation.css").read_text(encoding="utf-8")
    return style, base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
