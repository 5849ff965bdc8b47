"""A conversation as Markdown, to be pasted into an issue or a pull request.

Long results, thinking and subagents are folded with `<details>`, the only HTML in it. Results are cut unless `full`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from html import escape as escape_html

from hypaware.index.conversation import RecordedConversation
from hypaware.index.prompts import prompt_of
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
from hypaware.render.safe_markdown import to_code, to_inline_code, to_markdown
from hypaware.render.tool_calls import cut_lines, has_failed, result_text, summarize_call
from hypaware.text import escape_cell, format_count

_UNFOLDED = 6
"""Lines of a result that are shown without a fold."""
_MAX_LINES = 60
_MAX_DIFF_LINES = 200


def render_markdown(conversation: RecordedConversation, zone: tzinfo, *, full: bool = False) -> Iterator[str]:
    """Yield the document in pieces."""
    session = conversation.session
    yield f"# {_plain(session['title'] or session['session_id'])}\n\n"
    yield f"{' · '.join(map(_plain, list_facts(session, zone)))}\n\n"
    yield from render_blocks(conversation, zone, full=full)
    yield "---\n\n"
    for line in list_totals(session, conversation.threads):
        yield f"{_plain(line)}  \n"
    yield f"Session {to_inline_code(session['session_id'])}\n"
    if command := resume_command(session, find_main(conversation.threads)):
        yield f"\n{to_code(command, 'sh')}\n"


def render_blocks(conversation: RecordedConversation, zone: tzinfo, *, full: bool = False) -> Iterator[str]:
    """Yield the conversation without its title and its totals."""
    renderer = _MarkdownRenderer(zone, conversation.session["cwd"], full)
    for event in outline(conversation):
        for block in renderer.event(event):
            yield f"{block}\n\n"


class _MarkdownRenderer:
    def __init__(self, zone: tzinfo, cwd: str | None, full: bool) -> None:
        self._zone, self._cwd, self._full = zone, cwd, full

    def event(self, event: Event) -> Iterator[str]:
        match event:
            case Speaker():
                at = to_local(event.message["at"], self._zone)
                yield f"{'#' * min(6, 3 + event.depth)} {_plain(event.label)} · {at:%Y-%m-%d %H:%M:%S}"
            case Said():
                yield from self._said(event)
            case Context():
                yield self._fold(f"context ({format_count(event.lines, 'line')})", "\n\n".join(event.texts))
            case Call():
                yield from self._call(event)
            case CallEnd():
                yield from self._call_end(event.call)
            case LateResult():
                yield f"**{_plain(event.part['tool_name'] or 'tool')}**, result"
                yield self._result(event.part)
            case AgentStart():
                yield f"<details><summary>subagent {_html(event.thread.name or '')}</summary>"
            case AgentEnd():
                if usage := describe_usage(event.thread.tokens, event.thread.cost_usd):
                    yield f"*{_plain(usage)}*"
                yield "</details>"
            case TurnEnd():
                if facts := describe_turn(event):
                    yield f"*{_plain(facts)}*"

    def _said(self, event: Said) -> Iterator[str]:
        text = event.part["text"] or ""
        match event.kind:
            case Kind.TEXT:
                yield to_markdown(prompt_of(text) if event.part["is_typed"] else text)
            case Kind.THINKING:
                text = readable_thinking(text)
                yield self._fold(f"thinking ({format_count(len(text.splitlines()), 'line')})", text)
            case Kind.SUMMARY:
                yield self._fold("summary of the compacted conversation", text)
            case Kind.ERROR:
                yield f"**Error**\n\n{to_code(text)}"
            case Kind.ATTACHMENT:
                yield f"*{_plain(event.part['type'])}*" + (f" {to_inline_code(text[:200])}" if text else "")

    def _call(self, event: Call) -> Iterator[str]:
        call = summarize_call(event.part["tool_name"], event.part["tool_args"], self._cwd)
        failed = event.result is not None and has_failed(event.result)
        yield f"**{_plain(call.name)}** {to_inline_code(call.summary)}{' (failed)' if failed else ''}".rstrip()
        if call.changes is not None:
            lines = ["@@" if line.sign == "@" and not line.text else f"{line.sign}{line.text}" for line in call.changes]
            yield to_code(cut_lines(lines, None if self._full else _MAX_DIFF_LINES), "diff")
        if call.steps:
            yield to_code("\n".join(call.steps))

    def _call_end(self, call: Call) -> Iterator[str]:
        if call.result is None:
            return
        if call.is_edit and not has_failed(call.result) and not self._full:
            return
        yield self._result(call.result)

    def _result(self, part: Part) -> str:
        text = result_text(part)
        lines = text.strip("\n").splitlines()
        return (
            to_code(text)
            if 0 < len(lines) <= _UNFOLDED
            else self._fold(f"result ({format_count(len(lines), 'line')})", text)
        )

    def _fold(self, summary: str, text: str) -> str:
        shown = cut_lines(text.strip("\n").splitlines(), None if self._full else _MAX_LINES)
        return f"<details><summary>{_html(summary)}</summary>\n\n{to_code(shown)}\n\n</details>"


def _plain(text: str) -> str:
    """Return one line in which nothing is Markdown or HTML."""
    shown = escape_cell(text)
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|~&!" else char for char in shown)


def _html(text: str) -> str:
    return escape_html(escape_cell(text))
