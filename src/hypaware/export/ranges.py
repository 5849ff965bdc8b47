"""The identity of a chunk: its stream and its range."""

from __future__ import annotations

from hashlib import sha256

import orjson

from hypaware.export.sink import Chunk
from hypaware.state.stream_key import StreamKey


def chunk_of(stream: StreamKey, gateway_id: str, incarnation: str, after: int, last: int) -> Chunk:
    """Return the chunk of a range with its id.

    The id depends neither on a position within a round nor on bytes or paths: new rows, compaction, a purge or a
    relocated home change all of these and would turn the same rows into a new chunk.
    """
    parts = [gateway_id, incarnation, stream.sink, stream.dataset, stream.source, after, last]
    return Chunk(sha256(orjson.dumps(parts)).hexdigest()[:32], stream, gateway_id, incarnation, after, last)
