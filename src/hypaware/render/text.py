"""A conversation as text for a terminal or a pipe, line by line.

Everything recorded is escaped before it is printed, so it cannot control the terminal. On a terminal, lines are broken
at its width. Results and diffs are cut to a few lines, thinking and what the client added to one; `TextStyle.full` and
`TextStyle.thinking` show all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, tzinfo
from typing import Any, NamedTuple

from hypaware.index.conversation import RecordedConversation, Thread
from hypaware.index.messages import Message
from hypaware.index.prompts import prompt_of
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
from hypaware.render.tool_calls import has_failed, result_text, summarize_call
from hypaware.render.wrap import cut_line, escape_block, wrap_text
from hypaware.text import escape_cell, format_count

_RESULT_LINES, _ERROR_LINES, _DIFF_LINES, _STEP_LINES = 4, 10, 40, 20
_BOLD, _DIM, _ITALIC, _RED, _GREEN, _YELLOW, _CYAN, _MAGENTA = "1", "2", "3", "31", "32", "33", "36", "35"
_INDENT = "  "
_MAX_FOLDED = 400
_MAX_NAME = 100
_ANSWERED = " (result above)"
_DIFF_COLORS = {"+": _GREEN, "-": _RED, "@": _CYAN, " ": _DIM}


class TextStyle(NamedTuple):
    width: int | None = None
    """Columns of the terminal; None breaks no lines."""
    color: bool = False
    unicode: bool = True
    zone: tzinfo = UTC
    full: bool = False
    thinking: bool = False


class _Marks(NamedTuple):
    you: str = "›"
    agent: str = "●"
    thinking: str = "∴"
    result: str = "└"
    failed: str = "✗"
    border: str = "│"
    rule: str = "─"
    more: str = "…"


_ASCII_MARKS = _Marks(">", "*", "~", "`-", "x", "|", "-", "...")


def render_text(conversation: RecordedConversation, style: TextStyle) -> Iterator[str]:
    """Yield the lines of the whole conversation, each with its newline."""
    renderer = TextRenderer(style, conversation.session["cwd"])
    yield from renderer.header(conversation.session)
    for event in outline(conversation):
        yield from renderer.event(event)
    yield from renderer.footer(conversation.session, conversation.threads)


class TextRenderer:
    def __init__(self, style: TextStyle, cwd: str | None = None) -> None:
        self.style, self.cwd = style, cwd
        self._marks = _Marks() if style.unicode else _ASCII_MARKS
        self._day: date | None = None
        self._after_heading = True
        self._last_call: str | None = None

    # The whole conversation

    def header(self, session: dict[str, Any]) -> Iterator[str]:
        title = session["title"] or session["session_id"]
        yield from self._lines([self._paint(line, _BOLD) for line in self._wrap(escape_cell(title), 0)], 0, "")
        facts = list_facts(session, self.style.zone)
        for line in (self._join(facts), self._join([session["session_id"]])):
            yield from self._lines([self._paint(each, _DIM) for each in self._wrap(line, 0)], 0, "")

    def footer(self, session: dict[str, Any], threads: Sequence[Thread]) -> Iterator[str]:
        rule = self._marks.rule * min(self.style.width or 72, 72)
        yield f"\n{self._paint(rule, _DIM)}\n"
        for line in list_totals(session, threads):
            yield f"{escape_cell(line)}\n"
        if command := resume_command(session, find_main(threads)):
            yield f"resume: {self._paint(escape_cell(command), _BOLD)}\n"

    def session_line(self, session: dict[str, Any]) -> Iterator[str]:
        """Yield a line that names the session of what follows."""
        facts = self._join([session["project"], session["client"], session["session_id"], session["title"]])
        line = cut_line(escape_cell(facts), self.style.width, self._marks.more)
        yield f"\n{self._paint(line, _BOLD, _YELLOW)}\n"

    # Events

    def event(self, event: Event) -> Iterator[str]:
        follows_call, self._last_call = self._last_call, None
        match event:
            case Speaker():
                yield from self._speaker(event)
            case Said():
                yield from self._said(event)
            case Context():
                yield from self._context(event)
            case Call():
                yield from self._call(event)
                self._last_call = event.part["tool_call_id"]
            case CallEnd():
                yield from self._call_end(event.call)
            case LateResult():
                if follows_call is None or event.part["tool_result_for"] != follows_call:
                    yield from self._space(event.depth)
                    name = escape_cell(event.part["tool_name"] or "tool")
                    yield from self._lines([self._paint(name, _BOLD)], event.depth)
                yield from self._result(event.part, event.depth)
                self._after_heading = False
            case AgentStart():
                yield from self._agent_start(event)
            case AgentEnd():
                yield from self._agent_end(event)
            case TurnEnd():
                yield from self._turn_end(event)

    def _speaker(self, event: Speaker) -> Iterator[str]:
        mark, color = (self._marks.agent, _MAGENTA) if event.name == "agent" else (self._marks.you, _CYAN)
        shown = cut_line(escape_cell(event.label), _MAX_NAME, self._marks.more)
        heading = self._paint(f"{mark} {shown}", _BOLD, color)
        yield from self._lines(["", f"{heading}  {self._paint(self._time(event.message), _DIM)}"], event.depth, "")
        self._after_heading = True

    def _said(self, event: Said) -> Iterator[str]:
        text = event.part["text"] or ""
        match event.kind:
            case Kind.TEXT:
                yield from self._space(event.depth)
                shown = prompt_of(text) if event.part["is_typed"] else text
                yield from self._lines(self._wrap(shown.strip("\n"), event.depth), event.depth)
            case Kind.THINKING:
                text = readable_thinking(text)
                yield from self._space(event.depth)
                yield from self._foldable(
                    text, event.depth, self._marks.thinking, self.style.thinking or self.style.full
                )
            case Kind.SUMMARY:
                yield from self._space(event.depth)
                yield from self._foldable(text, event.depth, "compacted:", self.style.full)
            case Kind.ERROR:
                yield from self._space(event.depth)
                lines = self._wrap(f"{self._marks.failed} {text}", event.depth)
                yield from self._lines([self._paint(line, _RED) for line in lines], event.depth)
            case Kind.ATTACHMENT:
                yield from self._foldable(text, event.depth, f"{event.part['type']}:", self.style.full)
        self._after_heading = False

    def _context(self, event: Context) -> Iterator[str]:
        if self.style.full or len(event.texts) == 1:
            for text in event.texts:
                yield from self._foldable(text, event.depth, "context:", self.style.full)
        else:
            shown = f"context: {format_count(len(event.texts), 'note')}, {format_count(event.lines, 'line')}"
            yield from self._lines([self._paint(shown, _DIM, _ITALIC)], event.depth)
        self._after_heading = False

    def _foldable(self, text: str, depth: int, mark: str, is_open: bool) -> Iterator[str]:
        """Yield the text in full, or in one line with its length."""
        lines = text.strip().splitlines() or ["(no text)"]
        if is_open:
            shown = self._wrap(f"{mark} {text.strip()}", depth)
        else:
            first = next((line for line in lines if line.strip()), "").strip()
            more = f" ({format_count(len(lines), 'line')})" if len(lines) > 1 else ""
            room = None if self.style.width is None else self._room(depth) - len(more)
            line = escape_cell(f"{mark} {first[:_MAX_FOLDED]}")
            shown = [cut_line(line, room, self._marks.more) + more]
        yield from self._lines([self._paint(line, _DIM, _ITALIC) for line in shown], depth)

    def _call(self, event: Call) -> Iterator[str]:
        yield from self._space(event.depth)
        summary = summarize_call(event.part["tool_name"], event.part["tool_args"], self.cwd)
        failed = event.result is not None and has_failed(event.result)
        name = cut_line(escape_cell(summary.name), _MAX_NAME, self._marks.more)
        mark = f"{self._marks.failed} " if failed else ""
        room = (
            None
            if self.style.width is None
            else max(8, self._room(event.depth) - len(name) - len(mark) - 1 - len(_ANSWERED) * event.is_answered)
        )
        told = cut_line(escape_cell(summary.summary), room, self._marks.more)
        line = f"{self._paint(f'{mark}{name}', _BOLD, *([_RED] if failed else []))} {told}".rstrip()
        if event.is_answered:
            line += self._paint(_ANSWERED, _DIM)
        yield from self._lines([line], event.depth)
        if self.style.full and summary.changes is None and not summary.steps:
            yield from self._arguments(event.part["tool_args"], event.depth)
        if summary.changes is not None:
            yield from self._diff(summary.changes, event.depth)
        yield from self._limited(summary.steps, _STEP_LINES, event.depth)
        self._after_heading = False

    def _call_end(self, call: Call) -> Iterator[str]:
        if call.result is None:
            return
        if call.is_edit and not has_failed(call.result) and not self.style.full:
            return
        yield from self._result(call.result, call.depth)

    def _result(self, part: Part, depth: int) -> Iterator[str]:
        failed = has_failed(part)
        lines = result_text(part).strip("\n").splitlines() or ["(no text)"]
        limit = len(lines) if self.style.full else _ERROR_LINES if failed else _RESULT_LINES
        shown: list[str] = []
        for line in lines[:limit]:
            shown += self._wrap(line, depth, 2) if self.style.full else [self._cut(line, depth, 2)]
        if len(lines) > limit:
            shown.append(f"{self._marks.more} {format_count(len(lines) - limit, 'more line')}")
        prefixes = [f"{self._marks.result} ", *["  "] * (len(shown) - 1)]
        color = _RED if failed else _DIM
        yield from self._lines([self._paint(f"{a}{b}", color) for a, b in zip(prefixes, shown, strict=True)], depth)

    def _diff(self, lines: Sequence[DiffLine], depth: int) -> Iterator[str]:
        limit = len(lines) if self.style.full else _DIFF_LINES
        shown = []
        for line in lines[:limit]:
            text = line.text if line.sign != "@" or line.text else self._marks.more
            sign = " " if line.sign == "@" else line.sign
            for part in self._wrap(text, depth, 4) if self.style.full else [self._cut(text, depth, 4)]:
                shown.append(self._paint(f"{_INDENT}{sign} {part}", _DIFF_COLORS[line.sign]))
        if len(lines) > limit:
            more = format_count(len(lines) - limit, "more line")
            shown.append(self._paint(f"{_INDENT}{self._marks.more} {more}", _DIM))
        yield from self._lines(shown, depth)

    def _arguments(self, args: Any, depth: int) -> Iterator[str]:
        from json import dumps

        if isinstance(args, dict):
            pairs = [
                (name, value if isinstance(value, str) else dumps(value, ensure_ascii=False))
                for name, value in args.items()
            ]
            text = "\n".join(f"{name}: {value}" for name, value in pairs)
        else:
            text = args if isinstance(args, str) else "" if args is None else dumps(args, ensure_ascii=False)
        shown = [self._paint(f"{_INDENT}{line}", _DIM) for line in self._wrap(text, depth, 2)] if text else []
        yield from self._lines(shown, depth)

    def _limited(self, lines: Sequence[str], limit: int, depth: int) -> Iterator[str]:
        limit = len(lines) if self.style.full else limit
        shown = [f"{_INDENT}{self._cut(line, depth, 2)}" for line in lines[:limit]]
        if len(lines) > limit:
            shown.append(f"{_INDENT}{self._marks.more} {format_count(len(lines) - limit, 'more line')}")
        yield from self._lines(shown, depth)

    def _agent_start(self, event: AgentStart) -> Iterator[str]:
        yield from self._lines(
            ["", self._paint(f"subagent {escape_cell(event.thread.name or '')}".rstrip(), _YELLOW)], event.depth, ""
        )

    def _agent_end(self, event: AgentEnd) -> Iterator[str]:
        if line := describe_usage(event.thread.tokens, event.thread.cost_usd):
            yield from self._lines([self._paint(f"{self._marks.rule} subagent: {line}", _DIM)], event.depth, "")

    def _turn_end(self, event: TurnEnd) -> Iterator[str]:
        if line := describe_turn(event):
            yield from self._lines(["", self._paint(f"{self._marks.rule} {line}", _DIM)], 0)

    # Lines

    def _space(self, depth: int) -> Iterator[str]:
        if not self._after_heading:
            yield from self._lines([""], depth, "")

    def _lines(self, lines: Iterable[str], depth: int, indent: str = _INDENT) -> Iterator[str]:
        border = self._paint(f"{self._marks.border} ", _DIM) * depth
        outer = _INDENT if depth else ""
        for line in lines:
            yield f"{outer}{border}{indent if line else ''}{line}".rstrip() + "\n"

    def _room(self, depth: int) -> int:
        assert self.style.width is not None
        return max(20, self.style.width - 2 * depth - 2 * bool(depth) - len(_INDENT))

    def _wrap(self, text: str, depth: int, less: int = 0) -> list[str]:
        width = None if self.style.width is None else self._room(depth) - less
        return wrap_text(escape_block(text), width)

    def _cut(self, text: str, depth: int, less: int = 0) -> str:
        width = _MAX_FOLDED if self.style.width is None else self._room(depth) - less
        return cut_line(escape_cell(text[: 4 * width].replace("\t", "    ")), width, self._marks.more)

    def _time(self, message: Message) -> str:
        moment = to_local(message["at"], self.style.zone)
        is_new_day, self._day = moment.date() != self._day, moment.date()
        return f"{moment:%Y-%m-%d %H:%M:%S}" if is_new_day else f"{moment:%H:%M:%S}"

    def _join(self, facts: Iterable[str | None]) -> str:
        return " · ".join(fact for fact in facts if fact) if self.style.unicode else " | ".join(filter(None, facts))

    def _paint(self, text: str, *codes: str) -> str:
        return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if self.style.color and text else text
