"""`hyp overview`: the totals, then small tables with bars, on one screen.

Rendering is a pure function of the document and of the terminal's size and encoding. Long tables are truncated; a last
line counts the omitted rows, which `--json` includes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TextIO

from hypaware.cli import output
from hypaware.cli.columns import cell_width, format_cost, format_short, pad_cell
from hypaware.cli.index_reader import note_no_match, open_for_reading
from hypaware.cli.usage import describe_prices
from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.text import escape_cell, format_count

if TYPE_CHECKING:
    from hypaware.index.filters import Filters

_SEPARATOR = "  "
_BAR, _MIN_BAR = 12, 4
_BLOCKS = " ▏▎▍▌▋▊▉█"
_ROWS, _MIN_ROWS = 10, 3
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
_NOT_INDEXED = "Nothing that is indexed yet matches. Run it again in a moment."
_NO_MATCH = """Nothing that is recorded matches.
To see all days: hyp overview. To import the session history on this machine: hyp backfill"""
Row = dict[str, Any]


def show_overview(filters: Filters, days: int | None, limit: int | None = None) -> None:
    from hypaware.index.overview import summarize_overview
    from hypaware.index.prices import load_prices

    if days is not None:
        if filters.since is not None:
            raise UsageError("--days and --since both set the first day; pass one of them")
        filters = filters._replace(since=_first_moment(days, filters))
        if filters.until is not None and filters.since is not None and filters.until < filters.since:
            raise UsageError(f"--until is before the last {format_count(days, 'day')}")
    history_reader = _HistoryReader(Home.from_environment())
    with open_for_reading() as index:
        found = summarize_overview(index, filters, load_prices(index.home))
        shown = render_overview(found, OverviewStyle.of(sys.stdout)._replace(rows=limit))
        if not found["totals"]["parts"]:
            if index.progress is not None:
                shown = _NOT_INDEXED
            elif not filters.is_empty:
                shown = _NO_MATCH
        history = history_reader.wait()
        lines = [line for name, (_, line) in history.items() if line and filters.client in (None, name)]
        documents = {name: each for name, (each, _) in history.items()}
        if limit:
            tables = {key: rows[:limit] for key, rows in found.items() if isinstance(rows, list)}
            found |= {**tables, "days": found["days"][-limit:]}
        output.emit_result({**found, "history": documents}, "\n".join([shown, *lines]))
        if shown == _NO_MATCH:
            note_no_match(index, filters)


class _HistoryReader:
    """Reads what the clients are about to delete, in a process of its own: that is mostly imports, which a thread would
    run on the same core. Make it before anything is opened; if other threads run, `wait` reads instead."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._process = None
        if threading.active_count() == 1:
            source, target = os.pipe()
            self._process = os.fork(), source
            if not self._process[0]:
                self._send(target)
            os.close(target)

    def wait(self) -> dict[str, tuple[Row, str | None]]:
        """Return by client its document, and a line about it if there is something to say."""
        if self._process is not None:
            number, source = self._process
            with open(source, "rb") as pipe:
                sent = pipe.read()
            if not os.waitpid(number, 0)[1]:
                found: dict[str, tuple[Row, str | None]] = json.loads(sent)
                return found
        return self._read()  # raises the error, too

    def _send(self, target: int) -> NoReturn:
        code = 1
        try:
            with open(target, "wb") as pipe:
                pipe.write(json.dumps(self._read()).encode())
            code = 0
        finally:
            os._exit(code)  # without the handlers and the buffers of the command

    def _read(self) -> dict[str, tuple[Row, str | None]]:
        from hypaware.status.session_expiry import describe_history, read_history

        return {name: (each, describe_history(each, name)) for name, each in read_history(self._home).items()}


def _first_moment(days: int, filters: Filters) -> int:
    from datetime import datetime, time, timedelta

    from hypaware.index.filters import to_moment

    first = datetime.now(filters.timezone).date() - timedelta(days=days - 1)
    return to_moment(datetime.combine(first, time.min, filters.timezone))


class OverviewStyle(NamedTuple):
    width: int | None = None
    """Columns of the terminal; None means unlimited."""
    height: int | None = None
    unicode: bool = True
    rows: int | None = None
    """Rows of each table, 0 for all; None means that the tables fit the height."""

    @classmethod
    def of(cls, stream: TextIO) -> OverviewStyle:
        width, height = shutil.get_terminal_size() if stream.isatty() else (None, None)
        return cls(width, height, output.can_print(f"{_BLOCKS}…", stream))


class OverviewTable(NamedTuple):
    title: str
    name: str
    """The key of a row's name."""
    numbers: dict[str, str]
    """Keys and headings of the numbers; the bar shows the first."""
    rows: Sequence[Row]
    omitted: str = ""


def render_overview(document: dict[str, Any], look: OverviewStyle) -> str:
    totals = document["totals"]
    if not totals["parts"]:
        return _EMPTY
    counts = [format_count(totals[f"{name}s"], name) for name in ("session", "message")]
    counts.append(format_count(totals["tool_calls"], "tool call"))
    days = " to ".join(dict.fromkeys((document["first_day"], document["last_day"])))
    kinds = {**_TOKENS, "reasoning_tokens": "reasoning"}
    tokens = [f"{format_short(totals[name])} {shown}" for name, shown in kinds.items() if totals[name]]
    lines = [", ".join([*counts, days])]
    if tokens:
        lines.append(f"Tokens: {', '.join(tokens)}")
        cost = format_cost(totals["cost_usd"], totals["unpriced_models"])
        lines.append(
            f"Cost: {cost} ({escape_cell(describe_prices(document['prices_as_of'], totals['unpriced_models']))})"
        )
    if look.width is not None and max(map(len, lines)) > look.width:
        from textwrap import wrap

        lines = [part for line in lines for part in wrap(line, look.width, subsequent_indent=_SEPARATOR)]
    rows, days_shown = (_ROWS, _DAYS) if look.rows is None else (look.rows or sys.maxsize,) * 2
    while True:
        tables = [_render(table, look) for table in _tables(document, rows, days_shown) if table.rows]
        text = "\n\n".join(["\n".join(lines), *tables])
        fits = look.height is None or text.count("\n") + 2 <= look.height
        if fits or rows <= _MIN_ROWS or look.rows is not None:
            return text
        rows, days_shown = rows - 1, rows


def _tables(document: dict[str, Any], rows: int, shown_days: int) -> list[OverviewTable]:
    counts = {"messages": "messages", "sessions": "sessions", "cost_usd": "cost", **_TOKENS}
    clients = document["clients"] if len(document["clients"]) > 1 else []
    days = document["days"]
    return [
        OverviewTable("Days", "day", counts, days[-shown_days:], _omitted_line(days, shown_days, "earlier days")),
        _top_rows("Projects", "cwd", counts, document["projects"], rows),
        _top_rows("Clients", "client", counts, clients, rows),
        _top_rows("Models", "model", {**counts, "reasoning_tokens": "reasoning"}, document["models"], rows),
        _top_rows("Tools", "tool", {"calls": "calls", "errors": "errors"}, document["tools"], rows),
    ]


def _top_rows(title: str, name: str, numbers: dict[str, str], rows: Sequence[Row], most: int) -> OverviewTable:
    return OverviewTable(title, name, numbers, rows[:most], _omitted_line(rows, most, f"more {title.lower()}"))


def _omitted_line(rows: Sequence[Row], shown: int, what: str) -> str:
    return f"and {len(rows) - shown:,} {what} (see --json)" if len(rows) > shown else ""


def _render(table: OverviewTable, look: OverviewStyle) -> str:
    columns = [_Column.of(name, head, table.rows) for name, head in table.numbers.items()]
    names = ["(unknown)" if row[table.name] is None else escape_cell(row[table.name]) for row in table.rows]
    side, bar = max(cell_width(name) for name in [table.title, *names]), _BAR
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


class _Column(NamedTuple):
    """A column of numbers, right-aligned under a heading of one or two lines."""

    above: str
    head: str
    cells: list[str]

    @classmethod
    def of(cls, name: str, head: str, rows: Sequence[Row]) -> _Column:
        above, _, below = head.rpartition(" ")
        if name == "cost_usd":
            cells = [format_cost(row[name], row["unpriced_models"]) for row in rows]
        else:
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
    return _SEPARATOR.join([pad_cell(name, side), first, drawn_bar.ljust(bar), *rest]).rstrip()


def _shorten(name: str, room: int, unicode: bool) -> str:
    """Truncate a path at its beginning, any other name at its end."""
    if cell_width(name) <= room:
        return name
    mark = "…" if unicode else ".."
    while cell_width(name) > room - len(mark):
        name = name[1:] if "/" in name else name[:-1]
    return mark + name if "/" in name else name + mark


def _bar(value: int, most: int, width: int, unicode: bool) -> str:
    if value <= 0:
        return ""
    eighths = max(1, round(8 * width * value / most))
    if not unicode:
        return "#" * max(1, eighths // 8)
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).rstrip()
