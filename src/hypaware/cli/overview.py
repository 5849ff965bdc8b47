"""The printed overview of `hyp query overview` and `hyp setup`: the totals, then small tables with bars.

Rendering is a pure function of the job's document and of the terminal's width and encoding. Long tables are truncated;
a last line counts the omitted rows, which `--json` includes.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size

from hypaware.text import escape_cell, format_count

_SEPARATOR = "  "
_BAR, _MIN_BAR = 12, 4
_BLOCKS = " ▏▎▍▌▋▊▉█"
_ROWS = 10
_DAYS = 14
_MIN_NAME = 12
_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
}
_EMPTY = """Nothing is recorded yet.
To import the session history on this machine: hyp backfill"""
_EMPTY_SINCE = """Nothing is recorded since {since}.
To see all days: hyp query overview. To import the session history on this machine: hyp backfill"""
Row = dict[str, Any]


@dataclass(frozen=True)
class OverviewStyle:
    width: int | None = None
    """Columns of the terminal; None means unlimited."""
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO) -> OverviewStyle:
        try:
            f"{_BLOCKS}…".encode(stream.encoding or "ascii")
            unicode = True
        except (UnicodeEncodeError, LookupError):
            unicode = False
        return cls(shutil.get_terminal_size().columns if stream.isatty() else None, unicode)


class OverviewTable(NamedTuple):
    title: str
    name: str
    """The key of a row's name."""
    numbers: dict[str, str]
    """Keys and headings of the numbers; the bar shows the first."""
    rows: Sequence[Row]
    omitted: str = ""


def render_overview(document: dict[str, Any], look: OverviewStyle) -> str:
    if not document["totals"]["parts"]:
        since = document["since"]
        return _EMPTY if since is None else _EMPTY_SINCE.format(since=since)
    counts = [format_count(document["totals"][f"{name}s"], name) for name in ("session", "message")]
    counts.append(format_count(document["totals"]["tool_calls"], "tool call"))
    days = " to ".join(dict.fromkeys((document["first_day"], document["last_day"])))
    tables = [_render(table, look) for table in _tables(document) if table.rows]
    return "\n\n".join([", ".join([*counts, days]), *tables])


def _tables(document: dict[str, Any]) -> list[OverviewTable]:
    counts = {"messages": "messages", "sessions": "sessions", **_TOKENS}
    kinds = {**_TOKENS, "reasoning_tokens": "reasoning"}
    tokens = [{"kind": shown, "tokens": document["totals"][name]} for name, shown in kinds.items()]
    clients = document["clients"] if len(document["clients"]) > 1 else []
    days = document["days"]
    return [
        OverviewTable("Tokens", "kind", {"tokens": ""}, tokens),
        OverviewTable("Days", "day", counts, days[-_DAYS:], _omitted_line(days, _DAYS, "earlier days")),
        _top_rows("Projects", "cwd", counts, document["projects"]),
        _top_rows("Clients", "client", counts, clients),
        _top_rows("Models", "model", {"messages": "messages", **kinds}, document["models"]),
        _top_rows("Tools", "tool", {"calls": "calls", "errors": "errors"}, document["tools"]),
    ]


def _top_rows(title: str, name: str, numbers: dict[str, str], rows: Sequence[Row]) -> OverviewTable:
    return OverviewTable(title, name, numbers, rows[:_ROWS], _omitted_line(rows, _ROWS, f"more {title.lower()}"))


def _omitted_line(rows: Sequence[Row], shown: int, what: str) -> str:
    return f"and {len(rows) - shown:,} {what} (see --json)" if len(rows) > shown else ""


def _render(table: OverviewTable, look: OverviewStyle) -> str:
    columns = [_Column.of(name, head, table.rows) for name, head in table.numbers.items()]
    names = ["(unknown)" if row[table.name] is None else escape_cell(row[table.name]) for row in table.rows]
    side, bar = max(cell_len(name) for name in [table.title, *names]), _BAR
    if look.width is not None:
        columns, side, bar = _fit(columns, side, look.width)
    counts = [row[next(iter(table.numbers))] for row in table.rows]
    above = _line("", [column.above for column in columns], "", side, bar)
    lines = [above] if above else []
    lines.append(_line(table.title, [column.head for column in columns], "", side, bar))
    for index, name in enumerate(names):
        cells = [column.cells[index] for column in columns]
        drawn_bar = _bar(counts[index], max(counts), bar, look.unicode)
        lines.append(_line(_shorten(name, side, look.unicode), cells, drawn_bar, side, bar))
    return "\n".join([*lines, table.omitted] if table.omitted else lines)


@dataclass(frozen=True)
class _Column:
    """A column of numbers, right-aligned under a heading of one or two lines."""

    above: str
    head: str
    cells: list[str]

    @classmethod
    def of(cls, name: str, head: str, rows: Sequence[Row]) -> _Column:
        above, _, below = head.rpartition(" ")
        cells = [format_short(row[name]) if name.endswith("tokens") else f"{row[name]:,}" for row in rows]
        width = max(map(len, (above, below, *cells)))
        return cls(above.rjust(width), below.rjust(width), [cell.rjust(width) for cell in cells])


def _fit(columns: list[_Column], side: int, width: int) -> tuple[list[_Column], int, int]:
    """Fit the table into the width: shorten bars, then names, then drop columns from the right."""
    while True:
        room = width - sum(len(_SEPARATOR) + len(column.head) for column in columns) - len(_SEPARATOR)
        bar = max(_MIN_BAR, min(_BAR, room - side))
        if room - bar >= min(side, _MIN_NAME) or len(columns) == 1:
            return columns, max(1, min(side, room - bar)), bar
        columns = columns[:-1]


def _line(name: str, numbers: Sequence[str], drawn_bar: str, side: int, bar: int) -> str:
    first, *rest = numbers
    return _SEPARATOR.join([set_cell_size(name, side), first, drawn_bar.ljust(bar), *rest]).rstrip()


def _shorten(name: str, room: int, unicode: bool) -> str:
    """Truncate a path at its beginning, any other name at its end."""
    if cell_len(name) <= room:
        return name
    mark = "…" if unicode else ".."
    while cell_len(name) > room - len(mark):
        name = name[1:] if "/" in name else name[:-1]
    return mark + name if "/" in name else name + mark


def format_short(value: int) -> str:
    """Format a number with two or three digits and a unit: 999, 1.2k, 35k, 4.1M."""
    size = float(value)
    for unit in ("", "k", "M", "G", "T"):
        if abs(size) < 999.5:
            return f"{size:.0f}{unit}" if not unit or abs(size) >= 9.95 else f"{size:.1f}{unit}"
        size /= 1000
    return f"{size:,.0f}P"


def _bar(value: int, most: int, width: int, unicode: bool) -> str:
    if value <= 0:
        return ""
    eighths = max(1, round(8 * width * value / most))
    if not unicode:
        return "#" * max(1, eighths // 8)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip()
