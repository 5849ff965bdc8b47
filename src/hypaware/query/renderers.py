"""Render query results as `table`, `json`, `jsonl`, `csv` or `markdown`.

In all formats timestamps are ISO 8601 in UTC with six decimals, so that text sorts, and a Z (without it if the type has
no zone); dates are ISO 8601, bytes base64, decimals numbers with all digits. Structs and maps become objects, arrays
arrays. Whole columns are converted at once, with Arrow's own loops where it has one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from rich.cells import cell_len, set_cell_size

from hypaware.text import escape, escape_cell, escape_json

_MARKUP = re.compile(r"[\\`*\[\]|~]")
_LINE_BREAK = re.compile(r"\r\n|\n")
_NULL = "NULL"
_SEPARATOR = "  "
_MIN_WIDTH = 6
_WORD = re.compile(r"(?<![!-~])[!-~]{1,36}(?![!-~])")
"""A word that is shown in full. A longer one is rarely read."""
_PAGE_ROWS = 1000
Row = tuple[str | None, ...]


@dataclass(frozen=True)
class TableStyle:
    width: int | None = None
    color: bool = False


def render_json(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Render one array of objects. Text is preserved exactly; control characters are written as JSON escapes.

    NaN and infinities are null. If columns share a name, the later ones get a number (`a`, `a_2`).
    """
    separator = b"["
    for objects in _json_objects(schema, batches):
        yield escape_json(separator + b"\n" + b",\n".join(objects))
        separator = b","
    yield b"[]\n" if separator == b"[" else b"\n]\n"


def render_jsonl(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Render one object per line, as `render_json` does."""
    for objects in _json_objects(schema, batches):
        yield escape_json(b"\n".join(objects) + b"\n")


def _json_objects(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[list[bytes]]:
    names = unique_names(schema.names)
    for batch in batches:
        if batch.num_rows:
            columns = [json_values(column) for column in batch.columns]
            yield [orjson.dumps(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)]


def unique_names(names: Iterable[str]) -> list[str]:
    """Make names unique by numbering the repeated ones."""
    unique: list[str] = []
    taken = set(names := list(names))
    for name in names:
        shown, number = name, 2
        while shown in unique:
            while (shown := f"{name}_{number}") in taken:
                number += 1
            number += 1
        unique.append(shown)
    return unique


def render_csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], on_terminal: bool = False) -> Iterator[bytes]:
    """Render RFC 4180 with a header and CRLF. Null is an empty field, an empty string is `""`.

    Text is written unchanged, except on a terminal: there, control characters are escaped and lines end with LF.
    """
    end = "\n" if on_terminal else "\r\n"
    yield (",".join(_quote_csv(schema.names, on_terminal).to_pylist()) + end).encode()
    for batch in batches:
        if batch.num_rows:
            columns = [_quote_csv(text_values(column), on_terminal) for column in batch.columns]
            written = pc.binary_join_element_wise(*columns, pa.scalar(",", pa.large_string()))
            yield (end.join(written.to_pylist()) + end).encode()


def _quote_csv(fields: list[str | None], on_terminal: bool) -> pa.Array:
    if on_terminal:
        fields = [None if text is None else escape(text) for text in fields]
    texts = pa.array(fields, pa.large_string())
    special = pc.match_substring_regex(texts, pattern='[",\r\n]|^$')
    if pc.any(special).as_py():
        mark = pa.scalar('"', pa.large_string())
        doubled = pc.replace_substring(texts, pattern='"', replacement='""')
        joined = pc.binary_join_element_wise(mark, doubled, mark, pa.scalar("", pa.large_string()))
        texts = pc.if_else(special, joined, texts)
    return texts.fill_null("")


def render_markdown(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Render a GitHub table. Every cell is one line of literal text; a line break is `<br>`, null is *null*.

    Markup, links, HTML and control characters are escaped.
    """
    alignment = ["---:" if is_number(field.type) else "---" for field in schema]
    yield _markdown_row([_markdown_cell(name) for name in schema.names]) + _markdown_row(alignment)
    for batch in batches:
        if batch.num_rows:
            columns = [[_markdown_cell(text) for text in text_values(column)] for column in batch.columns]
            yield b"".join(_markdown_row(list(row)) for row in zip(*columns, strict=True))


def _markdown_row(texts: list[str]) -> bytes:
    return f"| {' | '.join(texts)} |\n".encode()


def _markdown_cell(text: str | None) -> str:
    if text is None:
        return "*null*"
    lines = []
    for line in _LINE_BREAK.split(text):
        escaped = _MARKUP.sub(r"\\\g<0>", escape_cell(line))
        lines.append(escaped.replace("&", "&amp;").replace("<", "&lt;").replace("://", ":&#47;/"))
    return "<br>".join(lines)


def render_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], style: TableStyle) -> Iterator[bytes]:
    """Render aligned columns. Numbers are right-aligned, null is NULL (dim on a terminal).

    The first rows determine the column widths, so that any number of rows can be streamed. On a terminal the table fits
    the width: the widest columns of text shrink first, and a truncated cell ends in `…` after a whole word. Names of
    columns, numbers, times and words such as an id are never truncated. If that leaves no room, each row is a block
    with one line per column. Without a width, nothing is truncated.
    """
    names = [escape_cell(name) for name in schema.names]
    pages = _pages(batches, style.width)
    first = next(pages, [])
    natural = [_column_width(name, first, at) for at, name in enumerate(names)]
    least = list(natural)
    for at, field in enumerate(schema):
        if not is_number(field.type) and not pa.types.is_temporal(field.type):
            words = (len(word) for row in first for word in _WORD.findall(row[at] or ""))
            least[at] = min(natural[at], max(cell_len(names[at]), _MIN_WIDTH, *words))
    if style.width is not None and sum(least) + len(_SEPARATOR) * (len(names) - 1) > style.width:
        yield from _row_blocks(names, chain([first], pages), style)
        return
    widths = _fit_widths(natural, least, style.width)
    right = [is_number(field.type) for field in schema]
    rule = ["─" * width for width in widths]
    yield _table_line(names, widths, right, style) + _table_line(rule, widths, right, style)
    for page in chain([first], pages):
        yield b"".join(_table_line(row, widths, right, style) for row in page)


def _pages(batches: Iterable[pa.RecordBatch], width: int | None) -> Iterator[list[Row]]:
    for batch in batches:
        for start in range(0, batch.num_rows, _PAGE_ROWS):
            piece = batch.slice(start, _PAGE_ROWS)
            # Escape only the visible part, and one character more to show that the text is truncated.
            end = None if width is None else width + 1
            columns = [
                [None if text is None else escape_cell(text[:end]) for text in text_values(column)]
                for column in piece.columns
            ]
            yield list(zip(*columns, strict=True))


def _column_width(name: str, page: list[Row], at: int) -> int:
    texts = (row[at] for row in page)
    return max(cell_len(name), *(len(_NULL) if text is None else cell_len(text) for text in texts), 1)


def _fit_widths(natural: list[int], least: list[int], width: int | None) -> list[int]:
    """Shrink the widest columns, one character at a time, until all columns fit."""
    widths = list(natural)
    excess = 0 if width is None else sum(natural) + len(_SEPARATOR) * (len(natural) - 1) - width
    for _ in range(excess):
        room = [wide if wide > low else 0 for wide, low in zip(widths, least, strict=True)]
        # Of several, the last: the first columns are read first.
        widest = max(range(len(room)), key=lambda at: (room[at], at))
        widths[widest] -= 1
    return widths


def _table_line(row: Iterable[str | None], widths: list[int], right: list[bool], style: TableStyle) -> bytes:
    shown = []
    for text, width, is_right in zip(row, widths, right, strict=True):
        visible = _NULL if text is None else text
        if style.width is not None and cell_len(visible) > width and not is_right:
            visible = _truncate(visible, width)
        space = " " * max(0, width - cell_len(visible))
        if text is None and style.color:
            visible = f"\x1b[2m{visible}\x1b[0m"
        shown.append(space + visible if is_right else visible + space)
    return (_SEPARATOR.join(shown).rstrip() + "\n").encode()


def _truncate(text: str, width: int) -> str:
    """Shorten the text to this width, after a whole word if there is one."""
    cut = set_cell_size(text, width - 1)
    if not text[len(cut) :].startswith(" "):
        cut = cut.rpartition(" ")[0].rstrip() or cut
    return cut.rstrip() + "…"


def _row_blocks(names: list[str], pages: Iterable[list[Row]], style: TableStyle) -> Iterator[bytes]:
    assert style.width is not None
    number, total = 0, style.width
    widest = min(max(cell_len(name) for name in names), total // 2)
    widths = [widest, max(1, total - widest - len(_SEPARATOR))]
    for page in pages:
        written = []
        for row in page:
            number += 1
            written.append(set_cell_size(f"── row {number} " + "─" * total, total).encode() + b"\n")
            written += [_table_line(pair, widths, [False, False], style) for pair in zip(names, row, strict=True)]
        yield b"".join(written)


def json_values(column: pa.Array) -> list[Any]:
    """Return each value in a form that `orjson` can write."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _to_list(_format_times(column))
    if pa.types.is_decimal(kind):
        return _convert(column, lambda number: orjson.Fragment(format(number, "f")))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _convert(column, lambda data: base64.b64encode(data).decode())
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return _to_list(column.cast(pa.string()))
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        fields = [json_values(column.field(index)) for index in range(kind.num_fields)]
        is_valid = column.is_valid().to_pylist()
        rows = zip(*fields, strict=True) if fields else (() for _ in is_valid)
        pairs = zip(is_valid, rows, strict=True)
        return [dict(zip(names, row, strict=True)) if valid else None for valid, row in pairs]
    if pa.types.is_map(kind):
        keys, items = json_values(column.keys), json_values(column.items)
        return _slice_values(
            column, lambda start, end: dict(zip(map(_map_key, keys[start:end]), items[start:end], strict=True))
        )
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        elements = json_values(column.values)
        return _slice_values(column, lambda start, end: elements[start:end])
    if pa.types.is_duration(kind):
        return _convert(column, str)
    return _to_list(column)


def text_values(column: pa.Array) -> list[str | None]:
    """Return each value as readable text, null as None."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _to_list(column)
    if pa.types.is_decimal(kind):
        return _convert(column, lambda number: format(number, "f"))
    if pa.types.is_floating(kind):
        return _convert(column, lambda number: repr(number).replace("nan", "NaN").replace("inf", "Infinity"))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return _to_list(column.cast(pa.string()))
    return [value if value is None or isinstance(value, str) else _json(value) for value in json_values(column)]


def is_number(kind: pa.DataType) -> bool:
    return any(is_kind(kind) for is_kind in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _format_times(column: pa.Array) -> pa.Array:
    # Remove the zone first: Arrow would look it up in the time zone files of the machine.
    plain = column.cast(pa.int64()).cast(pa.timestamp(column.type.unit)).cast(pa.timestamp("us"), safe=False)
    return pc.strftime(plain, format="%Y-%m-%dT%H:%M:%S" + ("" if column.type.tz is None else "Z"))


def _slice_values(column: pa.Array, cut: Callable[[int, int], Any]) -> list[Any]:
    offsets = column.offsets.to_pylist()
    is_valid = column.is_valid().to_pylist()
    return [cut(offsets[index], offsets[index + 1]) if valid else None for index, valid in enumerate(is_valid)]


def _to_list(column: pa.Array) -> list[Any]:
    listed: list[Any] = column.to_pylist()
    return listed


def _convert(column: pa.Array, convert: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else convert(value) for value in column.to_pylist()]


def _map_key(value: Any) -> str:
    if isinstance(value, orjson.Fragment):
        return str(value.contents)
    return value if isinstance(value, str) else _json(value)
