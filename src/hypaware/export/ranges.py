"""The identity of a chunk: its range, and whose.

Not its ordinal in a round, its bytes or a path: new arrivals, compaction, a purge or a moved home change all of these,
and would make the same rows a new chunk.
"""

from __future__ import annotations

from hashlib import sha256

import orjson

from hypaware.export.sink import Chunk
from hypaware.state.stream_key import StreamKey


def chunk_of(stream: StreamKey, gateway_id: str, incarnation: str, after: int, last: int) -> Chunk:
    named = [gateway_id, incarnation, stream.sink, stream.dataset, stream.source, after, last]
    return Chunk(sha256(orjson.dumps(named)).hexdigest()[:32], stream, gateway_id, incarnation, after, last)
