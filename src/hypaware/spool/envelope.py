"""The line of a segment, and the one rule by which a line is valid.

`{"n":<ordinal>,"v":1,"row":{…}}`: the ordinal is the line's place in its segment, from 0. A row's sequence is its
segment's base plus its ordinal, so a line read twice is the same row twice. Flush and every other reader of the
spool judge a line here and nowhere else: what one of them takes, all of them take.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from hypaware.model import canonical
from hypaware.model.coerce import RowRejected, coerce_row
from hypaware.model.datasets import Dataset, Row

VERSION = 1


def write_lines(rows: Iterable[Row], first_ordinal: int) -> bytes:
    """Lines for coerced rows."""
    return b"".join(
        b'{"n":%d,"v":%d,"row":%b}\n' % (ordinal, VERSION, orjson.dumps(row))
        for ordinal, row in enumerate(rows, first_ordinal)
    )


def read_line(dataset: Dataset, line: bytes, ordinal: int) -> Row:
    """The coerced row of a segment's line, or RowRejected with the reason why nobody may take it."""
    if not line.endswith(b"\n"):
        raise RowRejected("the line was cut off")
    try:
        envelope = canonical.parse(line)
    except (ValueError, RecursionError) as error:
        raise RowRejected(f"the line is not JSON: {error}") from None
    if not isinstance(envelope, dict) or envelope.get("v") != VERSION:
        raise RowRejected(f"the line is not an envelope of version {VERSION}")
    if envelope.get("n") != ordinal:
        raise RowRejected(f"the envelope says ordinal {envelope.get('n')!r} and stands at {ordinal}")
    row = envelope.get("row")
    if not isinstance(row, dict):
        raise RowRejected("the envelope holds no row")
    # The gateway was settled when the row was taken in; a home that has since been given another id keeps its rows.
    return coerce_row(dataset, row, str(row.get("gateway_id")))
