"""`csv`: RFC 4180, with a header, CRLF, text kept exactly. Null is nothing, an empty text is `""`.

On a terminal, what could act on it is made harmless, and lines end as they do there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.query import cells
from hypaware.terminal import harmless


def lines(schema: pa.Schema, batches: Iterable[pa.RecordBatch], on_terminal: bool = False) -> Iterator[bytes]:
    end = "\n" if on_terminal else "\r\n"
    yield (",".join(_quoted(schema.names, on_terminal).to_pylist()) + end).encode()
    for batch in batches:
        if batch.num_rows:
            columns = [_quoted(cells.texts(column), on_terminal) for column in batch.columns]
            written = pc.binary_join_element_wise(*columns, pa.scalar(",", pa.large_string()))
            yield (end.join(written.to_pylist()) + end).encode()


def _quoted(cells_: list[str | None], on_terminal: bool) -> pa.Array:
    if on_terminal:
        cells_ = [None if text is None else harmless(text) for text in cells_]
    texts = pa.array(cells_, pa.large_string())
    special = pc.match_substring_regex(texts, pattern='[",\r\n]|^$')
    if pc.any(special).as_py():
        mark = pa.scalar('"', pa.large_string())
        doubled = pc.replace_substring(texts, pattern='"', replacement='""')
        joined = pc.binary_join_element_wise(mark, doubled, mark, pa.scalar("", pa.large_string()))
        texts = pc.if_else(special, joined, texts)
    return texts.fill_null("")
