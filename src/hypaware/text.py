"""Text for people: escapes for the terminal, suggestions for mistyped names, and formatted numbers, sizes and times.

Recorded sessions can contain any bytes that a program printed. Escape sequences could move the cursor, change the
window title or simulate input; direction overrides can make text read differently from its content. Both are printed
as the escapes of JSON and Python, so that nothing is lost and nothing takes effect.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

# C0 without tab and newline, DEL and C1, direction marks, line and paragraph separators, lone surrogates.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_BLOCK = re.compile(f"[{_UNSAFE}]")
_IN_CELL = re.compile(f"[{_UNSAFE}\t\n]")
_SAFE = bytes([0x09, 0x0A, *range(0x20, 0x7F)])
_PLAIN = bytes(range(0x20, 0x7F))
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_TIME_UNITS = ((86_400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))
_LONGEST_REASON = 300
_LONG_TEXT = 10_000
# Below this similarity a name is more likely another word than a mistyped one.
_NEAR = 0.65
_USERINFO = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@")


def escape(text: str) -> str:
    """Escape a block of text. Newlines and tabs are kept."""
    # Long texts are tables in which few characters can need an escape.
    if len(text) > _LONG_TEXT and not _IN_BLOCK.search(_remove(text, _SAFE)):
        return text
    return _IN_BLOCK.sub(_escape_char, text)


def escape_cell(text: str) -> str:
    """Escape a table cell or a value within a line. The result is always one line."""
    return _IN_CELL.sub(_escape_char, text)


def escape_cells(cells: Sequence[str]) -> Sequence[str]:
    """Escape table cells. There can be many, and most need no escape."""
    rest = list_rare("".join(cells))
    return [escape_cell(cell) for cell in cells] if _IN_CELL.search(rest) else cells


def list_rare(text: str) -> str:
    """Return the text without the printable characters of ASCII."""
    return _remove(text, _PLAIN)


def _remove(text: str, characters: bytes) -> str:
    """Return the text without these characters of ASCII."""
    return text.encode("utf-8", "surrogatepass").translate(None, characters).decode("utf-8", "surrogatepass")


def escape_json(document: bytes) -> bytes:
    """Escape JSON in UTF-8 that has no raw newlines in its strings. The JSON value stays the same."""
    # Most documents need no escape, and few of their characters can be one.
    if not _IN_BLOCK.search(document.translate(None, _SAFE).decode("utf-8", "surrogatepass")):
        return document
    text = document.decode("utf-8", "surrogatepass")
    return _IN_BLOCK.sub(lambda match: f"\\u{ord(match.group()):04x}", text).encode()


def _escape_char(match: re.Match[str]) -> str:
    char = match.group()
    if char in _SHORT:
        return _SHORT[char]
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


def did_you_mean(
    name: str, known: Mapping[str, str] | Iterable[str], and_all: bool = False, *, or_all: bool = True
) -> str:
    """Return a hint to append to "there is no ...": the most similar name, or else the list of known names.

    With `and_all`, the list is always included; without `or_all`, it never replaces a missing guess. A mapping gives,
    for each name to display, the part to compare.
    """
    from difflib import get_close_matches

    candidates = known if isinstance(known, Mapping) else {each: each for each in known}
    names: dict[str, str] = {}
    for each, part in candidates.items():
        names.setdefault(part, each)
    guess = "".join(f" Did you mean {names[part]}?" for part in get_close_matches(name, names, n=1, cutoff=_NEAR))
    if not candidates or not (and_all or (or_all and not guess)):
        return guess
    return f"{guess} Known: {', '.join(candidates)}."


def format_count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_size(number: float) -> str:
    """Format a number of bytes: 1,023 bytes, 1.5 MiB, 34 GiB."""
    if number < 1024:
        return format_count(int(number), "byte")
    units = ["KiB", "MiB", "GiB", "TiB"]
    number /= 1024
    while number >= 1023.5 and len(units) > 1:
        number, units = number / 1024, units[1:]
    return f"{number:.1f} {units[0]}" if number < 9.95 else f"{number:,.0f} {units[0]}"


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit that it is at least one and a half of."""
    for length, unit in _TIME_UNITS:
        if seconds >= 1.5 * length:
            return format_count(round(seconds / length), unit)
    return "1 second" if seconds >= 0.5 else "a moment"


def parse_time(text: object) -> datetime | None:
    """Parse an ISO 8601 time, in UTC if it has no offset; return None if it is not a time."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def format_ago(text: object, now: datetime) -> str:
    then = parse_time(text)
    if then is None:
        return "at an unknown time"
    seconds = (now - then).total_seconds()
    return f"{format_duration(seconds)} ago" if seconds >= 0 else f"at {then:%Y-%m-%d %H:%M} (UTC), in the future"


def summarize_error(exception: BaseException) -> str:
    """Return the exception's message in one line, shortened: it may quote a file's contents."""
    text = getattr(exception, "message", None) or str(exception) or type(exception).__name__
    first = str(text).strip().partition("\n")[0]
    return first if len(first) <= _LONGEST_REASON else f"{first[:_LONGEST_REASON]}…"


def strip_url_credentials(url: str) -> str:
    """Return the URL without credentials: `https://user:token@host/x` → `https://host/x`; `git@host:x` has none."""
    return _USERINFO.sub(r"\1", url, count=1) if _USERINFO.match(url) else url
