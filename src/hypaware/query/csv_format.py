"""The format `csv`: RFC 4180 with a header and CRLF. Null is an empty field, an empty string is `""`.

Text is written unchanged, except on a terminal: there, control characters are escaped and lines end with LF.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.query import cells
from hypaware.terminal import harmless


def lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch], on_terminal: bool = False) -> Iterator[bytes]:
    end = "\n" if on_terminal else "\r\n"
    yield (",".join(_quote(schema.names, on_terminal).to_pylist()) + end).encode()
    for batch in batches:
        if batch.num_rows:
            columns = [_quote(cells.texts(column), on_terminal) for column in batch.columns]
            written = pc.binary_join_element_wise(*columns, pa.scalar(",", pa.large_string()))
            yield (end.join(written.to_pylist()) + end).encode()


def _quote(fields: list[str | None], on_terminal: bool) -> pa.Array:
    if on_terminal:
        fields = [None if text is None else harmless(text) for text in fields]
    texts = pa.array(fields, pa.large_string())
    special = pc.match_substring_regex(texts, pattern='[",\r\n]|^$')
    if pc.any(special).as_py():
        mark = pa.scalar('"', pa.large_string())
        doubled = pc.replace_substring(texts, pattern='"', replacement='""')
        joined = pc.binary_join_element_wise(mark, doubled, mark, pa.scalar("", pa.large_string()))
        texts = pc.if_else(special, joined, texts)
    return texts.fill_null("")
