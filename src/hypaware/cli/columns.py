"""Tables of the reading commands: columns that fit the terminal, and values in few characters.

On a terminal, a table is never wider than the terminal: columns are dropped by their rank, and one column takes the
rest of the width. Elsewhere all columns are printed in full.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from hypaware.cli import output
from hypaware.text import escape_cells, list_rare

_GAP = "  "
_MIN_FLEXIBLE = 24
# Below each limit, a number is divided and formatted like this.
_SHORT_FORMS = {
    round(limit * divisor): (divisor, f"%.{digits}f{unit}")
    for unit, divisor in (("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12))
    for limit, digits in ((9.95, 1), (999.5, 0))
}
_SHORT_LIMITS = list(_SHORT_FORMS)
# Letters of European languages and common signs; each takes one column.
_NARROW = re.compile(
    "[ -~\u00a1-\u00ac\u00ae-\u02ff\u0370-\u0373\u0386-\u03ff\u0400-\u0482\u048a-\u052f\u2010-\u2027\u2190-\u2193]*"
)


class TextColumn(NamedTuple):
    head: str
    cells: Sequence[str]
    rank: int = 0
    """Columns with a higher rank are dropped first; those of rank 0 never."""
    right: bool = False
    flexible: bool = False
    """Takes the rest of the width; its cells are cut."""


class _Measured(NamedTuple):
    column: TextColumn
    cells: Sequence[str]
    """Escaped."""
    is_narrow: bool
    """Whether each character takes one column."""
    width: int


def terminal_width() -> int | None:
    """Return the columns of the terminal; None if the output is not one."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def render_columns(columns: Sequence[TextColumn], width: int | None) -> Iterator[str]:
    """Yield the lines of a table. The cells must be one line each; control characters are escaped here."""
    shown = [_measure(each) for each in columns]
    rooms = [each.width for each in shown] if width is None else _fit(shown, width)
    # One template for all lines: a list can have a line for every session.
    template: list[str] = []
    cells: list[Iterable[str]] = []
    for (column, escaped, is_narrow, needed), room in zip(shown, rooms, strict=True):
        if is_narrow and needed <= room:
            template.append(f"%{room}s" if column.right else f"%-{room}s")
            cells.append(chain((column.head,), escaped))
        else:
            template.append("%s")
            cells.append([_pad(cell, room, column.right) for cell in (column.head, *escaped)])
    lines = map(str.rstrip, map(_GAP.join(template).__mod__, zip(*cells, strict=True)))
    return lines if width is None else (cut(line, width) for line in lines)


def _measure(column: TextColumn) -> _Measured:
    # Most columns are plain ASCII as a whole.
    cells, rare = column.cells, list_rare("".join(column.cells))
    if not rare or _NARROW.fullmatch(rare):
        return _Measured(column, cells, True, max(len(column.head), max(map(len, cells), default=0)))
    cells = escape_cells(cells)
    if _NARROW.fullmatch(list_rare("".join(cells))):
        return _Measured(column, cells, True, max(len(column.head), max(map(len, cells))))
    return _Measured(column, cells, False, max(cell_width(cell) for cell in (column.head, *cells)))


def _fit(shown: list[_Measured], width: int) -> list[int]:
    """Remove columns until the others fit. Return how wide each of them is."""
    while True:
        fixed = sum(each.width for each in shown if not each.column.flexible) + len(_GAP) * (len(shown) - 1)
        flexible = next((each for each in shown if each.column.flexible), None)
        least = 0 if flexible is None else min(flexible.width, _MIN_FLEXIBLE)
        droppable = [each for each in shown if each.column.rank]
        if fixed + least <= width or not droppable:
            break
        shown.remove(max(droppable, key=lambda each: each.column.rank))
    return [max(1, min(each.width, width - fixed)) if each.column.flexible else each.width for each in shown]


def cell_width(text: str) -> int:
    """Return how many columns of a terminal the text takes, which has no control characters."""
    if text.isascii() or _NARROW.fullmatch(text):
        return len(text)
    # Not at the top: the help of a command must not wait for rich.
    from rich.cells import cell_len

    return cell_len(text)


def pad_cell(text: str, width: int) -> str:
    """Return the text in exactly `width` columns, padded or cut."""
    if text.isascii() or _NARROW.fullmatch(text):
        return text[:width].ljust(width)
    from rich.cells import set_cell_size

    return set_cell_size(text, width)


def _pad(cell: str, width: int, right: bool) -> str:
    cell = cut(cell, width)
    return " " * (width - cell_width(cell)) + cell if right else pad_cell(cell, width)


def cut(text: str, width: int) -> str:
    """Return the text, with an ellipsis instead of what does not fit."""
    if cell_width(text) <= width:
        return text
    mark = "…" if output.can_print("…") else "."
    return pad_cell(text, max(0, width - 1)).rstrip() + mark if width else ""


def format_short(value: int) -> str:
    """Format a number with two or three digits and a unit: 999, 1.2k, 35k, 4.1M."""
    if -1000 < value < 1000:
        return str(value)
    at = bisect_right(_SHORT_LIMITS, abs(value))
    if at == len(_SHORT_LIMITS):
        return f"{value / 10**15:,.0f}P"
    divisor, template = _SHORT_FORMS[_SHORT_LIMITS[at]]
    return template % (value / divisor)


def format_cost(cost: float | None, unpriced: Sequence[str] = ()) -> str:
    """Format dollars: `$1.20`; `$1.20+` if the cost of some models is unknown, `?` if it is of all, `-` for nothing."""
    if cost is None:
        return "?" if unpriced else "-"
    text = "<$0.01" if 0 < cost < 0.005 else f"${cost:,.2f}" if cost < 9999.5 else f"${cost:,.0f}"
    return f"{text}+" if unpriced else text


def format_span(seconds: float) -> str:
    """Format a duration in at most six characters: 42s, 12m, 3h05, 4d."""
    if seconds < 59.5:
        return f"{seconds:.0f}s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes}m"
    return f"{minutes // 60}h{minutes % 60:02}" if minutes < 48 * 60 else f"{round(minutes / 1440)}d"
