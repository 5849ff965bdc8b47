"""The blocks of a conversation as HTML: what people said, folded thinking, tool calls with their results, diffs.

Everything recorded is escaped, except Markdown, which `safe_markdown` makes harmless. There are no style attributes and
no scripts, so that the strictest content security policy can hold. One renderer makes both the blocks of a file that
stands alone and those of the page, where messages have ids, long texts are cut with a link to all of them, and blocks
are grouped so that a browser lays out only the groups that are visible.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from html import escape as escape_html
from json import dumps
from typing import Any

from hypaware.index.messages import Message
from hypaware.index.prompts import prompt_of
from hypaware.render.edits import DiffLine
from hypaware.render.facts import describe_turn, describe_usage, to_local
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
    readable_thinking,
)
from hypaware.render.safe_markdown import to_html
from hypaware.render.tool_calls import CallSummary, cut_lines, has_failed, language_of, result_text, summarize_call
from hypaware.render.wrap import escape_block
from hypaware.text import escape_cell, format_count

_MAX_ENTRY = 80
_SHORT = 6
"""Lines of a result that a file shows without a click."""
_MAX_HINT = 60
_SIGNS = {"+": "add", "-": "del", "@": "gap", " ": "same"}
_BAD = ' class="bad"'
_COMMANDS = ("command", "cmd")
# Only formats that cannot contain scripts.
_IMAGE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,([A-Za-z0-9+/]+={0,2})")
_IMAGE_STARTS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "gif": b"GIF8", "webp": b"RIFF"}
_MAX_IMAGE_CHARACTERS = 8 << 20


@dataclass(frozen=True)
class HtmlStyle:
    zone: tzinfo
    cwd: str | None
    full: bool = False
    """Whether nothing is cut."""
    max_lines: int = 400
    max_characters: int = 40_000
    anchor: Callable[[str], str] | None = None
    """Returns the id of the element that shows the message with this id. None: no element has one."""
    part_link: Callable[[str, str], str] | None = None
    """Returns where all of a cut text is, from the id of its part and "text", "args" or "diff"."""
    folds: bool = False
    """Whether subagents and short results are folded too."""
    group: int = 0
    """How many blocks make a group; 0 for no groups."""
    user: str = "You"
    """The name of the person who typed."""


class HtmlBlocks:
    """Renders the events of one conversation, in their order."""

    def __init__(self, style: HtmlStyle, *, turns: int = 0) -> None:
        self._style = style
        self.turns: list[str] = [""] * turns
        """The beginnings of the turns so far, as HTML."""
        self._anchored: set[str] = set()
        self._sizes: list[int] = []

    def start(self) -> str:
        """Return the HTML before the first block, or before the first one of a subagent."""
        self._sizes.append(0)
        return '<div class="group">\n' if self._style.group else ""

    def finish(self) -> str:
        self._sizes.pop()
        return "</div>\n" if self._style.group else ""

    def event(self, event: Event) -> Iterator[str]:
        match event:
            case Speaker():
                yield self._separate() + self._speaker(event)
            case Said():
                yield self._separate() + self._said(event)
            case Context():
                yield self._separate() + self._context(event)
            case Call():
                yield self._separate() + self._call(event)
            case CallEnd():
                yield self._call_end(event.call)
            case LateResult():
                yield self._separate() + self._late_result(event)
            case AgentStart():
                is_open = "" if self._style.folds else " open"
                named = f' data-thread="{self._style.anchor(event.thread.name or "")}"' if self._style.anchor else ""
                usage = describe_usage(event.thread.tokens, event.thread.cost_usd)
                yield (
                    f'<details class="agent"{named}{is_open}><summary>subagent {to_line(event.thread.name or "")}'
                    f'<span class="facts">{to_line(usage)}</span></summary>\n{self.start()}'
                )
            case AgentEnd():
                yield f"{self.finish()}</details>\n"
            case TurnEnd():
                if facts := describe_turn(event):
                    yield f'<p class="facts turn-end">{to_line(facts)}</p>\n'

    def _separate(self) -> str:
        """Count a block. Return what closes a full group and opens the next one."""
        if not self._style.group or not self._sizes:
            return ""
        self._sizes[-1] += 1
        if self._sizes[-1] <= self._style.group:
            return ""
        self._sizes[-1] = 1
        return '</div>\n<div class="group">\n'

    def _place(self, message: Message, part: Part | None = None) -> str:
        """Return the attributes of the element that shows a part. The first one of a message has its anchor."""
        if self._style.anchor is None:
            return ""
        anchor = self._style.anchor(message["message_id"])
        attributes = f' data-part="{anchor}-{_index_of(part)}"' if part else ""
        if anchor in self._anchored:
            return attributes
        self._anchored.add(anchor)
        return f'{attributes} id="{anchor}" data-message="{to_line(message["message_id"])}"'

    def _speaker(self, event: Speaker) -> str:
        shown = to_line(self._style.user if event.name == "you" else event.label)
        place = self._place(event.message)
        target = f"#{self._style.anchor(event.message['message_id'])}" if self._style.anchor else ""
        if event.name == "you":
            self.turns.append(to_line(first_words(event.message)))
            number = len(self.turns)
            if not self._style.anchor:
                place, target = f' id="turn-{number}"', f"#turn-{number}"
            shown = f'{shown} <span class="turn">{number}</span>'
        at = to_local(event.message["at"], self._style.zone)
        time = f'<time datetime="{to_line(event.message["at"])}">{at:%Y-%m-%d %H:%M:%S}</time>'
        tag = "h2" if event.name == "you" else "h3"
        if target:
            time = f'<a class="link" href="{target}">{time}</a>'
        return f'<{tag} class="speaker {event.name}"{place}>{shown} {time}</{tag}>\n'

    def _said(self, event: Said) -> str:
        text, place = event.part["text"] or "", self._place(event.message, event.part)
        match event.kind:
            case Kind.TEXT:
                is_typed = event.part["is_typed"]
                shown = prompt_of(text) if is_typed else text
                more = ""
                if self._style.part_link and len(shown) > self._style.max_characters and not self._style.full:
                    more = self._more(event.part, "text", len(shown) - self._style.max_characters, "more character")
                    shown = shown[: self._style.max_characters]
                return (
                    f'<div class="said{" typed" if is_typed else ""}" dir="auto"{place}>{to_html(shown)}{more}</div>\n'
                )
            case Kind.THINKING:
                text = readable_thinking(text)
                lines = format_count(len(text.splitlines()), "line")
                return self._fold(f"thinking ({lines})", self._text(event.part, text), f' class="thinking"{place}')
            case Kind.SUMMARY:
                return self._fold("summary of the compacted conversation", self._text(event.part, text), place)
            case Kind.ERROR:
                return f'<div class="error"{place}>{self._text(event.part, text, is_bad=True)}</div>\n'
            case Kind.ATTACHMENT:
                if source := find_image(text):
                    return f'<p class="image"{place}><img src="{source}" alt="{to_line(event.part["type"])}"></p>\n'
                kept = "" if text else " (its content was not kept)"
                return f'<p class="dim"{place}>{to_line(event.part["type"])} {to_line(text[:200])}{kept}</p>\n'

    def _context(self, event: Context) -> str:
        if not self._style.anchor:
            texts = self._text(event.entries[0][1], "\n\n".join(event.texts))
        else:
            texts = "".join(
                f"<div{self._place(message, part)}>{self._text(part, part['text'] or '')}</div>"
                for message, part in event.entries
            )
        return self._fold(f"context ({format_count(event.lines, 'line')})", texts, ' class="context"')

    def _call(self, event: Call) -> str:
        call = summarize_call(event.part["tool_name"], event.part["tool_args"], self._style.cwd)
        failed = event.result is not None and has_failed(event.result)
        is_short = event.result is not None and len((event.result["text"] or "").splitlines()) <= _SHORT
        is_open = call.changes is not None or call.steps or event.has_agents or failed
        is_open = is_open or (is_short and not self._style.folds)
        waits = ""
        if event.result is None and self._style.anchor and event.part["tool_call_id"]:
            waits = f' data-waits="{self._style.anchor(event.part["tool_call_id"])}"'
        return (
            f'<details class="call{" failed" if failed else ""}"{" open" if is_open else ""}{waits}'
            f"{self._place(event.message, event.part)}>"
            f"<summary><strong>{to_line(call.name)}</strong>"
            f"{f'<code>{to_line(call.summary)}</code>' if call.summary else ''}"
            f"{self._hint(event, failed)}</summary>\n{self._called(event, call)}"
        )

    def _hint(self, event: Call, failed: bool) -> str:
        """Return what the result says, as far as it fits on the line of the call."""
        if not self._style.folds or (event.is_edit and event.result is not None and not failed):
            return ""
        if event.result is None:
            hint = "" if event.is_answered else "no result yet"
        else:
            lines = result_text(event.result)[: self._style.max_characters].strip().splitlines()
            is_line = len(lines) == 1 and len(lines[0]) <= _MAX_HINT
            hint = "failed" if failed else lines[0] if is_line else format_count(len(lines), "line")
        return f'<span class="hint">{to_line(hint)}</span>'

    def _called(self, event: Call, call: CallSummary) -> str:
        if call.changes is not None:
            return self._diff(event.part, call.changes)
        if call.steps:
            return to_pre("\n".join(call.steps))
        return "" if event.has_agents else self._arguments(event.part)

    def _arguments(self, part: Part) -> str:
        """Return the arguments, unless the summary says all of them: a command as code, others behind a fold."""
        args = part["tool_args"]
        if isinstance(args, str):
            return self._fold("arguments", self._text(part, args, "args")) if "\n" in args.strip() else ""
        if not isinstance(args, dict) or not args:
            return ""
        command = next((args[name] for name in _COMMANDS if isinstance(args.get(name), str)), None)
        shown = ""
        if command is not None and "\n" in command.strip():
            shown = self._text(part, command, "args", language="bash")
        if len(args) <= 1:
            return shown
        return shown + self._fold("arguments", self._text(part, format_json(args), "args", language="json"))

    def _call_end(self, call: Call) -> str:
        if call.result is None:
            return "</details>\n"
        place = self._place(call.result_message or call.message, call.result)
        if call.is_edit and not has_failed(call.result) and not self._style.full:
            return f"{self._fold('result', self._result(call.result, place))}</details>\n" if place else "</details>\n"
        result = self._result(call.result, place, language_of(call.part))
        if self._style.folds and call.has_agents and not has_failed(call.result):
            result = self._fold("result", result)
        return f"{result}</details>\n"

    def _late_result(self, event: LateResult) -> str:
        failed = has_failed(event.part)
        waited = ""
        if self._style.anchor and event.part["tool_result_for"]:
            waited = f' data-for="{self._style.anchor(event.part["tool_result_for"])}"'
        summary = f"<summary>{to_line(event.part['tool_name'] or 'tool')}, result</summary>"
        place = self._place(event.message, event.part)
        return (
            f'<details class="call late{" failed" if failed else ""}"{waited}{" open" if failed else ""}>{summary}'
            f"{self._result(event.part, place)}</details>\n"
        )

    def _result(self, part: Part, place: str, language: str | None = None) -> str:
        failed = has_failed(part)
        shown = self._text(part, result_text(part) or "(no text)", is_bad=failed, language=language)
        return f'<div class="result"{place}>{shown}</div>' if place else shown

    def _diff(self, part: Part, changes: Sequence[DiffLine]) -> str:
        limit = len(changes) if self._style.full else self._style.max_lines
        more = ""
        if len(changes) > limit:
            left = len(changes) - limit
            more = self._more(part, "diff", left, "more line") or f'<p class="dim">{_count_left(left, "more line")}</p>'
        return to_diff(changes[:limit], self._style.max_characters) + more

    def _fold(self, summary: str, content: str, attributes: str = "") -> str:
        return f"<details{attributes}><summary>{to_line(summary)}</summary>{content}</details>\n"

    def _text(
        self, part: Part, text: str, which: str = "text", *, is_bad: bool = False, language: str | None = None
    ) -> str:
        """Return a text unchanged, or cut if it is long."""
        stripped = text.strip("\n")
        if self._style.full:
            return to_pre(stripped, is_bad=is_bad, language=language)
        lines = stripped[: self._style.max_characters].splitlines()
        left = len(stripped) - self._style.max_characters
        if self._style.part_link is None:
            shown = cut_lines(lines, self._style.max_lines)
            return to_pre(shown if left <= 0 else f"{shown}\n{_count_left(left, 'more character')}", is_bad=is_bad)
        shown = "\n".join(lines[: self._style.max_lines])
        pre = to_pre(shown, is_bad=is_bad, language=language)
        if left <= 0 and len(lines) <= self._style.max_lines:
            return pre
        if left > 0:
            return pre + self._more(part, which, len(stripped) - len(shown), "more character")
        return pre + self._more(part, which, len(lines) - self._style.max_lines, "more line")

    def _more(self, part: Part, which: str, count: int, unit: str) -> str:
        if self._style.part_link is None:
            return ""
        address = escape_html(self._style.part_link(part["part_id"], which))
        return f'<a class="more" href="{address}">Show all ({format_count(count, unit)})</a>\n'


def to_diff(changes: Sequence[DiffLine], max_characters: int) -> str:
    lines = [
        f'<span class="{_SIGNS[line.sign]}">{_diff_text(line._replace(text=line.text[:max_characters]))}</span>'
        for line in changes
    ]
    return f'<pre class="diff">{"".join(lines)}</pre>\n'


def _diff_text(line: DiffLine) -> str:
    if line.sign == "@":
        return to_line(line.text) or "…"
    return to_line(f"{line.sign} {line.text}".replace("\t", "    "))


def _count_left(count: int, unit: str) -> str:
    return f"… {format_count(count, unit)}"


def _index_of(part: Part) -> str:
    return to_line(part["part_id"].rpartition("#")[2])


def first_words(message: Message) -> str:
    """Return the beginning of a turn."""
    text = next((part["text"] for part in message["parts"] if part["is_typed"] and part["text"]), None)
    return shorten_prompt(text)


def shorten_prompt(text: str | None) -> str:
    return " ".join(prompt_of(text or "…")[: 4 * _MAX_ENTRY].split())[:_MAX_ENTRY]


def format_json(args: Any) -> str:
    try:
        return dumps(args, ensure_ascii=False, indent=2)
    except RecursionError:
        return "…"


def to_pre(text: str, *, is_bad: bool = False, language: str | None = None) -> str:
    shown = escape_html(escape_block(text))
    if language:
        shown = f'<code class="language-{language}">{shown}</code>'
    return f"<pre{_BAD if is_bad else ''}>{shown}</pre>\n"


def find_image(text: str) -> str | None:
    """Return the text if it is a data URI of an image that can be shown, else None.

    Recorders keep the media type of an image and not its content, so most images cannot be shown.
    """
    if not text.startswith("data:image/") or len(text) > _MAX_IMAGE_CHARACTERS:
        return None
    found = _IMAGE.fullmatch(text)
    if found is None:
        return None
    try:
        beginning = base64.b64decode(found[2][:32], validate=True)
    except binascii.Error:
        return None
    return text if beginning.startswith(_IMAGE_STARTS[found[1]]) else None


def to_line(text: str) -> str:
    return escape_html(escape_cell(text))
