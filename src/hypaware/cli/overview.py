"""How `hyp query overview` looks: a line with the totals, then small tables with a bar in each row.

A pure function of the job's document and of what the terminal can show. Long tables end where a glance ends; what is
left out is counted, and `--json` has all of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size

from hypaware.terminal import harmless_cell

_BETWEEN = "  "
_BAR, _SHORTEST_BAR = 12, 4
_BLOCKS = " ▏▎▍▌▋▊▉█"
_ROWS = 10
_DAYS = 14
_NARROWEST_NAME = 12
_TOKENS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
}
_REASONING = {"reasoning_tokens": "reasoning"}
_NOTHING_YET = """Nothing is recorded yet.
`hyp backfill` imports the history that agents have left on this machine."""
_NOTHING_SINCE = """Nothing is recorded since {since}.
`hyp query overview` shows all days; `hyp backfill` imports the history that agents have left on this machine."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Look:
    width: int | None = None
    """Of the terminal; None where nobody's window limits it."""
    unicode: bool = True

    @classmethod
    def of(cls, stream: TextIO) -> Look:
        try:
            f"{_BLOCKS}…".encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            drawn = False
        else:
            drawn = True
        return cls(shutil.get_terminal_size().columns if stream.isatty() else None, drawn)


class Table(NamedTuple):
    title: str
    name: str
    """The key that rows are named by; the bar shows the first of the numbers."""
    numbers: dict[str, str]
    rows: Sequence[Row]
    left_out: str = ""


def draw(document: dict[str, Any], look: Look) -> str:
    if not document["totals"]["parts"]:
        since = document["since"]
        return _NOTHING_YET if since is None else _NOTHING_SINCE.format(since=since)
    return "\n\n".join([_head(document), *(_drawn(table, look) for table in _tables(document) if table.rows)])


def _head(document: dict[str, Any]) -> str:
    totals = document["totals"]
    counted = [(name.replace("_", " "), totals[name]) for name in ("sessions", "messages", "tool_calls")]
    days = " to ".join(dict.fromkeys((document["first_day"], document["last_day"])))
    return ", ".join([*(f"{number:,} {name if number != 1 else name[:-1]}" for name, number in counted), days])


def _tables(document: dict[str, Any]) -> list[Table]:
    talk = {"messages": "messages", "sessions": "sessions", **_TOKENS}
    kinds = {**_TOKENS, **_REASONING}
    tokens = [{"kind": shown, "tokens": document["totals"][name]} for name, shown in kinds.items()]
    clients = document["clients"] if len(document["clients"]) > 1 else []
    days = document["days"]
    return [
        Table("Tokens", "kind", {"tokens": ""}, tokens),
        Table("Days", "day", talk, days[-_DAYS:], _more(days, _DAYS, "earlier days")),
        _first("Projects", "cwd", talk, document["projects"]),
        _first("Clients", "client", talk, clients),
        _first("Models", "model", {"messages": "messages", **kinds}, document["models"]),
        _first("Tools", "tool", {"calls": "calls", "errors": "errors"}, document["tools"]),
    ]


def _first(title: str, name: str, numbers: dict[str, str], rows: Sequence[Row]) -> Table:
    return Table(title, name, numbers, rows[:_ROWS], _more(rows, _ROWS, f"more {title.lower()}"))


def _more(rows: Sequence[Row], shown: int, what: str) -> str:
    return f"and {len(rows) - shown:,} {what} (--json has them)" if len(rows) > shown else ""


def _drawn(table: Table, look: Look) -> str:
    columns = [_Column.of(name, head, table.rows) for name, head in table.numbers.items()]
    names = ["(unknown)" if row[table.name] is None else harmless_cell(row[table.name]) for row in table.rows]
    side, bar = max(cell_len(name) for name in [table.title, *names]), _BAR
    if look.width is not None:
        columns, side, bar = _fitting(columns, side, look.width)
    counts = [row[next(iter(table.numbers))] for row in table.rows]
    above = _line("", [column.above for column in columns], "", side, bar)
    lines = [above] if above else []
    lines.append(_line(table.title, [column.head for column in columns], "", side, bar))
    for at, name in enumerate(names):
        drawn = _bar(counts[at], max(counts), bar, look.unicode)
        lines.append(_line(_cut(name, side, look.unicode), [column.cells[at] for column in columns], drawn, side, bar))
    return "\n".join([*lines, table.left_out] if table.left_out else lines)


@dataclass(frozen=True)
class _Column:
    """Numbers under a head of one or two lines, all of the same width."""

    above: str
    head: str
    cells: list[str]

    @classmethod
    def of(cls, name: str, head: str, rows: Sequence[Row]) -> _Column:
        above, _, below = head.rpartition(" ")
        cells = [short(row[name]) if name.endswith("tokens") else f"{row[name]:,}" for row in rows]
        width = max(map(len, (above, below, *cells)))
        return cls(above.rjust(width), below.rjust(width), [cell.rjust(width) for cell in cells])

    @property
    def width(self) -> int:
        return len(self.head)


def _fitting(columns: list[_Column], side: int, width: int) -> tuple[list[_Column], int, int]:
    """Bars give way first, then names; then columns are left out, the last ones first."""
    while True:
        room = width - sum(len(_BETWEEN) + column.width for column in columns) - len(_BETWEEN)
        bar = max(_SHORTEST_BAR, min(_BAR, room - side))
        if room - bar >= min(side, _NARROWEST_NAME) or len(columns) == 1:
            return columns, max(1, min(side, room - bar)), bar
        columns = columns[:-1]


def _line(name: str, numbers: Sequence[str], drawn: str, side: int, bar: int) -> str:
    first, *rest = numbers
    return _BETWEEN.join([set_cell_size(name, side), first, drawn.ljust(bar), *rest]).rstrip()


def _cut(name: str, room: int, unicode: bool) -> str:
    """A path loses its beginning, which says less than its end; any other name loses its end."""
    if cell_len(name) <= room:
        return name
    mark = "…" if unicode else ".."
    while cell_len(name) > room - len(mark):
        name = name[1:] if "/" in name else name[:-1]
    return mark + name if "/" in name else name + mark


def short(value: int) -> str:
    """Three digits or so, and how large they are: 999, 1.2k, 35k, 4.1M."""
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
