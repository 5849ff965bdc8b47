"""Server-sent events out of bytes, as the HTML standard says it: lines end in CR, LF or both, a blank line ends an
event, `data` lines join by line feeds, a line that begins with a colon is a comment, a byte order mark is skipped.

One difference: what comes after the last blank line counts as an event too, since a stream that was cut there has
said it. So cutting the bytes anywhere gives the whole events before the cut, and at most one begun one after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_BEGINNINGS = ("event:", "data:", "id:", "retry:", ":")


@dataclass(frozen=True)
class RawEvent:
    type: str
    """`message` if the event does not name one."""
    data: str


def events(text: str) -> Iterator[RawEvent]:
    kind, data = "", list[str]()
    for line in _lines(text.removeprefix("\ufeff")):
        if not line:
            if data:
                yield RawEvent(kind or "message", "\n".join(data))
            kind, data = "", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name == "event":
            kind = value
    if data:
        yield RawEvent(kind or "message", "\n".join(data))


def looks_like_events(text: str) -> bool:
    """For an answer that does not say what it is."""
    return text.removeprefix("\ufeff").lstrip("\r\n").startswith(_BEGINNINGS)


def _lines(text: str) -> list[str]:
    """Not `splitlines`, which also splits at characters that may stand within JSON."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    # After the last end of line there is no line, and so no blank one; and a name that was cut may be any name.
    if ":" not in lines[-1]:
        lines.pop()
    return lines
