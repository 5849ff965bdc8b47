"""A conversation as one HTML file that needs nothing else: no script, no font, no image, no network.

Everything recorded is escaped, and the content security policy of the page allows nothing but its own style sheet, so
that even a mistake here could not run code. Long results are cut unless `full`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from datetime import tzinfo
from functools import cache
from html import escape as escape_html
from json import dumps
from pathlib import Path
from typing import Any

from hypaware.index.conversation import RecordedConversation
from hypaware.index.messages import Message
from hypaware.index.parts import prompt_of
from hypaware.render.edits import DiffLine
from hypaware.render.facts import (
    describe_turn,
    describe_usage,
    find_main,
    list_facts,
    list_totals,
    resume_command,
    to_local,
)
from hypaware.render.outline import (
    AgentEnd,
    AgentStart,
    Call,
    CallEnd,
    Context,
    Event,
    Kind,
    LateResult,
    Part,
    Said,
    Speaker,
    TurnEnd,
    outline,
    readable_thinking,
)
from hypaware.render.safe_markdown import to_html
from hypaware.render.tool_calls import cut_lines, has_failed, result_text, summarize_call
from hypaware.render.wrap import escape_block
from hypaware.text import escape_cell, format_count

_MAX_LINES, _MAX_CHARACTERS = 400, 40_000
_MAX_ENTRY = 80
_SHORT = 6
"""Lines of a result that are shown without a click."""
_BAD = ' class="bad"'
_SIGNS = {"+": "add", "-": "del", "@": "gap", " ": "same"}


def render_html(conversation: RecordedConversation, zone: tzinfo, *, full: bool = False) -> Iterator[str]:
    """Yield the page in pieces."""
    session = conversation.session
    title = _line(session["title"] or session["session_id"])
    style, digest = _load_style()
    yield (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        f"style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">\n"
        '<meta name="referrer" content="no-referrer">\n<meta name="robots" content="noindex">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n<div class="page">\n'
        f'<header>\n<h1 dir="auto">{title}</h1>\n'
        f'<p class="facts">{" · ".join(map(_line, list_facts(session, zone)))}</p>\n</header>\n<main>\n'
    )
    renderer = _HtmlRenderer(zone, session["cwd"], full)
    for event in outline(conversation):
        yield from renderer.event(event)
    yield "</main>\n<footer>\n"
    for line in list_totals(session, conversation.threads):
        yield f'<div class="facts">{_line(line)}</div>\n'
    yield f'<div class="facts">session {_line(session["session_id"])}</div>\n'
    if command := resume_command(session, find_main(conversation.threads)):
        yield f"<pre>{_line(command)}</pre>\n"
    yield "</footer>\n"
    yield from renderer.contents()
    yield "</div>\n</body>\n</html>\n"


class _HtmlRenderer:
    def __init__(self, zone: tzinfo, cwd: str | None, full: bool) -> None:
        self._zone, self._cwd, self._full = zone, cwd, full
        self._turns: list[str] = []

    def contents(self) -> Iterator[str]:
        """Yield the list of turns. It comes last, because it is known last; the style sheet puts it first."""
        if len(self._turns) > 1:
            yield "<nav>\n<ol>\n"
            for number, text in enumerate(self._turns, start=1):
                yield f'<li><a href="#turn-{number}" dir="auto">{text}</a></li>\n'
            yield "</ol>\n</nav>\n"

    def event(self, event: Event) -> Iterator[str]:
        match event:
            case Speaker():
                yield self._speaker(event)
            case Said():
                yield self._said(event)
            case Context():
                yield self._fold(f"context ({format_count(event.lines, 'line')})", "\n\n".join(event.texts))
            case Call():
                yield self._call(event)
            case CallEnd():
                yield self._call_end(event.call)
            case LateResult():
                summary = f"<summary>{_line(event.part['tool_name'] or 'tool')}, result</summary>"
                yield f'<details class="call">{summary}{self._result(event.part)}</details>\n'
            case AgentStart():
                yield f'<div class="agent-box"><div class="dim">subagent {_line(event.thread.name or "")}</div>\n'
            case AgentEnd():
                usage = describe_usage(event.thread.tokens, event.thread.cost_usd)
                yield f'<p class="facts">{_line(usage)}</p></div>\n' if usage else "</div>\n"
            case TurnEnd():
                if facts := describe_turn(event):
                    yield f'<p class="facts turn-end">{_line(facts)}</p>\n'

    def _speaker(self, event: Speaker) -> str:
        shown = _line(event.label)
        if event.name == "you":
            self._turns.append(_line(_first_words(event.message)))
            number = len(self._turns)
            shown = f'<a id="turn-{number}" href="#turn-{number}">{shown}</a>'
        at = to_local(event.message["at"], self._zone)
        time = f'<time datetime="{_line(event.message["at"])}">{at:%Y-%m-%d %H:%M:%S}</time>'
        return f'<div class="speaker {event.name}">{shown} {time}</div>\n'

    def _said(self, event: Said) -> str:
        text = event.part["text"] or ""
        match event.kind:
            case Kind.TEXT:
                is_typed = event.part["is_typed"]
                body = to_html(prompt_of(text) if is_typed else text)
                return f'<div class="said{" typed" if is_typed else ""}" dir="auto">{body}</div>\n'
            case Kind.THINKING:
                text = readable_thinking(text)
                return self._fold(f"thinking ({format_count(len(text.splitlines()), 'line')})", text)
            case Kind.SUMMARY:
                return self._fold("summary of the compacted conversation", text)
            case Kind.ERROR:
                return f'<p class="error">{_block(text)}</p>\n'
            case Kind.ATTACHMENT:
                return f'<p class="dim">{_line(event.part["type"])} {_line(text[:200])}</p>\n'

    def _call(self, event: Call) -> str:
        call = summarize_call(event.part["tool_name"], event.part["tool_args"], self._cwd)
        failed = event.result is not None and has_failed(event.result)
        is_short = event.result is not None and len((event.result["text"] or "").splitlines()) <= _SHORT
        is_open = call.changes is not None or call.steps or event.has_agents or failed or is_short
        summary = f"<code>{_line(call.summary)}</code>" if call.summary else ""
        start = (
            f'<details class="call{" failed" if failed else ""}"{" open" if is_open else ""}>'
            f"<summary><strong>{_line(call.name)}</strong>{summary}</summary>\n"
        )
        if call.changes is not None:
            return start + self._diff(call.changes)
        if call.steps:
            return start + _pre("\n".join(call.steps))
        return start if event.has_agents else start + self._arguments(event.part["tool_args"])

    def _arguments(self, args: Any) -> str:
        """Return the arguments behind a fold, unless the summary says all of them."""
        if isinstance(args, str) and "\n" in args.strip():
            return self._fold("arguments", args)
        if not isinstance(args, dict) or len(args) <= 1:
            return ""
        return self._fold("arguments", dumps(args, ensure_ascii=False, indent=2))

    def _call_end(self, call: Call) -> str:
        if call.result is None or (call.is_edit and not has_failed(call.result) and not self._full):
            return "</details>\n"
        return f"{self._result(call.result)}</details>\n"

    def _result(self, part: Part) -> str:
        return _pre(self._cut(result_text(part)) or "(no text)", is_bad=has_failed(part))

    def _diff(self, changes: Sequence[DiffLine]) -> str:
        limit = len(changes) if self._full else _MAX_LINES
        lines = [f'<span class="{_SIGNS[line.sign]}">{_diff_text(line)}</span>' for line in changes[:limit]]
        if len(changes) > limit:
            lines.append(f'<span class="gap">… {format_count(len(changes) - limit, "more line")}</span>')
        return f'<pre class="diff">{"".join(lines)}</pre>\n'

    def _fold(self, summary: str, text: str) -> str:
        return f"<details><summary>{_line(summary)}</summary>{_pre(self._cut(text))}</details>\n"

    def _cut(self, text: str) -> str:
        stripped = text.strip("\n")
        if self._full:
            return stripped
        cut = cut_lines(stripped[:_MAX_CHARACTERS].splitlines(), _MAX_LINES)
        more = len(stripped) - _MAX_CHARACTERS
        return cut if more <= 0 else f"{cut}\n… {format_count(more, 'more character')}"


def _diff_text(line: DiffLine) -> str:
    if line.sign == "@":
        return _line(line.text) or "…"
    return _line(f"{line.sign} {line.text[:_MAX_CHARACTERS]}".replace("\t", "    "))


def _first_words(message: Message) -> str:
    text = next((part["text"] for part in message["parts"] if part["is_typed"] and part["text"]), None) or "…"
    return " ".join(prompt_of(text)[: 4 * _MAX_ENTRY].split())[:_MAX_ENTRY]


def _pre(text: str, *, is_bad: bool = False) -> str:
    return f"<pre{_BAD if is_bad else ''}>{_block(text)}</pre>\n"


def _block(text: str) -> str:
    return escape_html(escape_block(text))


def _line(text: str) -> str:
    return escape_html(escape_cell(text))


@cache
def _load_style() -> tuple[str, str]:
    """Return the style sheet, and its hash for the content security policy."""
    style = Path(__file__).with_name("conversation.css").read_text(encoding="utf-8")
    return style, base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
