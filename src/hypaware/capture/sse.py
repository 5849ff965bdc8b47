"""Parser for server-sent events, as the HTML standard defines them: lines end in CR, LF or both, a blank line ends an
event, `data` lines are joined by line feeds, a line that starts with a colon is a comment, a byte order mark is
skipped.

One difference: text after the last blank line also counts as an event, because a stream that was cut there has sent it.
Cutting the bytes anywhere therefore yields the complete events before the cut and at most one partial event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BEGINNINGS = ("event:", "data:", "id:", "retry:", ":")


@dataclass(frozen=True)
class RawEvent:
    type: str
    """`message` if the event names no type."""
    data: str


def events(text: str) -> Iterator[RawEvent]:
    event_type, data = "", list[str]()
    for line in _lines(text.removeprefix("\ufeff")):
        if not line:
            if data:
                yield RawEvent(event_type or "message", "\n".join(data))
            event_type, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            event_type = value
    if data:
        yield RawEvent(event_type or "message", "\n".join(data))


def looks_like_events(text: str) -> bool:
    """Return whether a response without a content type looks like an event stream."""
    return text.removeprefix("\ufeff").lstrip("\r\n").startswith(_BEGINNINGS)


def _lines(text: str) -> list[str]:
    """Split at line ends only; `splitlines` also splits at characters that occur within JSON."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    # The text after the last line end is no line if it is empty, and it may be a truncated field name.
    if ":" not in lines[-1]:
        lines.pop()
    return lines
