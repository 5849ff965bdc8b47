"""The format `table`: aligned columns. Numbers are right-aligned, null is NULL (dim on a terminal).

The first rows determine the column widths, so that any number of rows can be streamed. On a terminal the table fits the
width: the widest columns shrink first, and a truncated cell ends in `…`. If columns would become unreadably narrow,
each row is printed as a block with one line per column. Without a width, nothing is truncated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from hypaware.query import cells
from hypaware.terminal import harmless_cell

_NULL = "NULL"
_SEPARATOR = "  "
_MIN_WIDTH = 6
_PAGE_ROWS = 1000

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class Look:
    width: int | None = None
    color: bool = False


def lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch], look: Look) -> Iterator[bytes]:
    names = [harmless_cell(name) for name in schema.names]
    pages = _pages(batches, look.width)
    first = next(pages, [])
    least = sum(min(_MIN_WIDTH, cell_len(name)) for name in names) + len(_SEPARATOR) * (len(names) - 1)
    if look.width is not None and least > look.width:
        yield from _blocks(names, chain([first], pages), look)
        return
    widths = _fit([_widest(name, first, at) for at, name in enumerate(names)], look.width)
    right = [cells.is_number(field.type) for field in schema]
    yield _line(names, widths, right, look) + _line(["─" * width for width in widths], widths, right, look)
    for page in chain([first], pages):
        yield b"".join(_line(row, widths, right, look) for row in page)


def _pages(batches: Iterable[pa.RecordBatch], width: int | None) -> Iterator[list[Row]]:
    for batch in batches:
        for start in range(0, batch.num_rows, _PAGE_ROWS):
            piece = batch.slice(start, _PAGE_ROWS)
            columns = [[_shown(text, width) for text in cells.texts(column)] for column in piece.columns]
            yield list(zip(*columns, strict=True))


def _shown(text: str | None, width: int | None) -> str | None:
    if text is None:
        return None
    # Escape only the visible part, and one character more to show that the text is truncated.
    return harmless_cell(text if width is None else text[: width + 1])


def _widest(name: str, page: list[Row], at: int) -> int:
    return max(cell_len(name), *(_length(row[at]) for row in page), 1)


def _length(text: str | None) -> int:
    return len(_NULL) if text is None else cell_len(text)


def _fit(natural: list[int], width: int | None) -> list[int]:
    """Shrink the widest columns to a common width, the largest with which all columns fit."""
    if width is None:
        return natural
    room = width - len(_SEPARATOR) * (len(natural) - 1)
    widths = list(natural)
    left = len(natural)
    for wide in sorted(natural):
        share = room // left
        if wide > share:
            # The remainder of the division goes to the first shrunk columns.
            extra = iter([1] * (room % left))
            return [each if each <= share else share + next(extra, 0) for each in widths]
        room, left = room - wide, left - 1
    return widths


def _line(row: Iterable[str | None], widths: list[int], right: list[bool], look: Look) -> bytes:
    shown = [_cell(text, wide, number, look) for text, wide, number in zip(row, widths, right, strict=True)]
    return (_SEPARATOR.join(shown).rstrip() + "\n").encode()


def _cell(text: str | None, width: int, right: bool, look: Look) -> str:
    visible = _truncate(_NULL if text is None else text, width if look.width is not None else None)
    space = " " * (width - cell_len(visible))
    shown = f"\x1b[2m{visible}\x1b[0m" if text is None and look.color else visible
    return space + shown if right else shown + space


def _truncate(text: str, width: int | None) -> str:
    if width is None or cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…"


def _blocks(names: list[str], pages: Iterable[list[Row]], look: Look) -> Iterator[bytes]:
    assert look.width is not None
    number, total = 0, look.width
    widest = min(max(cell_len(name) for name in names), total // 2)
    widths = [widest, max(1, total - widest - len(_SEPARATOR))]
    for page in pages:
        written = []
        for row in page:
            number += 1
            written.append(set_cell_size(f"── row {number} " + "─" * total, total).encode() + b"\n")
            written += [_line(pair, widths, [False, False], look) for pair in zip(names, row, strict=True)]
        yield b"".join(written)
