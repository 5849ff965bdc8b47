"""The envelope: the format of a line in a segment, and the only check of its validity.

A line is `{"n":<ordinal>,"v":1,"row":{…}}`. The ordinal is the line's position in its segment, from 0. A row's sequence
is its segment's base plus its ordinal, so reading a line again gives the same row. Flush and all other readers of the
spool use this module, so they agree on which lines are valid.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from hypaware.model import canonical
from hypaware.model.coerce import RowRejected, coerce_row
from hypaware.model.datasets import Dataset, Row

VERSION = 1


def write_lines(rows: Iterable[Row], first_ordinal: int) -> bytes:
    """Encode coerced rows as lines."""
    return b"".join(
        b'{"n":%d,"v":%d,"row":%b}\n' % (ordinal, VERSION, orjson.dumps(row))
        for ordinal, row in enumerate(rows, first_ordinal)
    )


def read_line(dataset: Dataset, line: bytes, ordinal: int) -> Row:
    """Return the coerced row of a line. Raise RowRejected with the reason if the line is invalid."""
    if not line.endswith(b"\n"):
        raise RowRejected("the line is truncated")
    try:
        envelope = canonical.parse(line)
    except (ValueError, RecursionError) as error:
        raise RowRejected(f"the line is not JSON: {error}") from None
    if not isinstance(envelope, dict) or envelope.get("v") != VERSION:
        raise RowRejected(f"the line is not an envelope of version {VERSION}")
    if envelope.get("n") != ordinal:
        raise RowRejected(f"the envelope has ordinal {envelope.get('n')!r}, expected {ordinal}")
    row = envelope.get("row")
    if not isinstance(row, dict):
        raise RowRejected("the envelope has no row")
    # Keep the gateway id from when the row was recorded, even if the home has a new one.
    return coerce_row(dataset, row, str(row.get("gateway_id")))
