"""The format `markdown`: a GitHub table.

Every cell is one line of literal text: markup, links, HTML and control characters are escaped. A line break is `<br>`,
null is *null*.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pyarrow as pa

from hypaware.query import cells
from hypaware.terminal import harmless_cell

_MARKUP = re.compile(r"[\\`*\[\]|~]")
_LINE_BREAK = re.compile(r"\r\n|\n")


def lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    alignment = ["---:" if cells.is_number(field.type) else "---" for field in schema]
    yield _row([_shown(name) for name in schema.names]) + _row(alignment)
    for batch in batches:
        if batch.num_rows:
            columns = [[_shown(text) for text in cells.texts(column)] for column in batch.columns]
            yield b"".join(_row(list(row)) for row in zip(*columns, strict=True))


def _row(texts: list[str]) -> bytes:
    return f"| {' | '.join(texts)} |\n".encode()


def _shown(text: str | None) -> str:
    if text is None:
        return "*null*"
    return "<br>".join(_escaped(line) for line in _LINE_BREAK.split(text))


def _escaped(line: str) -> str:
    escaped = _MARKUP.sub(r"\\\g<0>", harmless_cell(line))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace("://", ":&#47;/")
