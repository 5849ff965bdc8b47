"""The complete rows of a session, for those who need columns that the index does not hold.

The index says which data files and segments hold them. Only those are read, and of them only the rows asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from hypaware.errors import Retryable
from hypaware.index.parts import hash_message_id
from hypaware.index.schema import DATASET, OFF_CONVERSATION, SPOOLED
from hypaware.index.spool_rows import list_spool, open_listed
from hypaware.model import datasets
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import SEQ, Row, RowRejected
from hypaware.spool import segments

if TYPE_CHECKING:
    from hypaware.index.store import Index

_ATTEMPTS = 5
_BATCH_ROWS = 4_096
_SEGMENT_BITS = 32
_SEQS_PER_QUERY = 500
_Wanted = dict[str, set[int]]
"""The path of a data file, or the name of a segment → sequences, or numbers of lines."""


class _RowsMoved(Exception):
    """A file was compacted or committed while the rows were read."""


def read_session_rows(index: Index, session: int) -> list[Row]:
    """Return the rows of the conversation of a session (`sessions.id`) in the order in which they were said.

    JSON columns are text, columns without a value are missing. Raise Retryable if the rows move faster than they can
    be read, as `hyp maintain` moves them.
    """
    (session_id, machine), *_ = index.connection.execute(
        "SELECT s.session_id, n.name FROM sessions s JOIN names n ON n.id = s.machine WHERE s.id = ?", (session,)
    )
    for _ in range(_ATTEMPTS):
        try:
            return _read(index, session)
        except (_RowsMoved, FileNotFoundError):
            index.refresh()
            query = "SELECT s.id FROM sessions s JOIN names n ON n.id = s.machine WHERE s.session_id = ? AND n.name = ?"
            ((session,),) = index.connection.execute(query, (session_id, machine))
    raise Retryable(f"the rows of session {session_id} are being rewritten; try again", kind="rows_moved")


def find_sessions_of_messages(index: Index, message_ids: Collection[str]) -> list[int]:
    """Return the sessions (`sessions.id`) that hold one of these messages."""
    hashes = sorted(map(hash_message_id, message_ids))
    found: set[int] = set()
    for start in range(0, len(hashes), _SEQS_PER_QUERY):
        marks = ",".join(map(str, hashes[start : start + _SEQS_PER_QUERY]))
        query = f"SELECT DISTINCT session FROM parts WHERE message IN ({marks})"
        found.update(row[0] for row in index.connection.execute(query))
    return sorted(found)


def _read(index: Index, session: int) -> list[Row]:
    query = f"""SELECT p.seq, f.path FROM parts p LEFT JOIN files f ON f.id = p.file
                WHERE p.session = ? AND p.flags & {OFF_CONVERSATION} = 0"""
    files: _Wanted = {}
    spooled: dict[int, set[int]] = {}
    for seq, path in index.connection.execute(query, (session,)):
        if seq >= SPOOLED:
            place = seq - SPOOLED
            spooled.setdefault(place >> _SEGMENT_BITS, set()).add(place & ((1 << _SEGMENT_BITS) - 1))
        elif path is None:
            raise _RowsMoved
        else:
            files.setdefault(path, set()).add(seq)
    names = dict(index.connection.execute("SELECT id, name FROM segments").fetchall())
    rows = [each for path, seqs in files.items() for each in _read_file(index, path, seqs)]
    segments_wanted = {names.get(number, ""): lines for number, lines in spooled.items()}
    rows += _read_segments(index, segments_wanted)
    rows.sort(key=lambda each: (each[1]["message_created_at"], each[1]["message_index"], each[0]))
    return [row for _, row in rows]


def _read_file(index: Index, path: str, seqs: set[int]) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    public = {column.name for column in datasets.get(DATASET).columns}
    wanted = pa.array(sorted(seqs), pa.int64())
    count = 0
    with pq.ParquetFile(index.home.warehouse / path, memory_map=False, pre_buffer=False) as file:
        names = [SEQ, *(name for name in file.schema_arrow.names if name in public)]
        for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            for row in batch.filter(pc.is_in(batch.column(SEQ), value_set=wanted)).to_pylist():
                count += 1
                yield row.pop(SEQ), {name: _to_text(value) for name, value in row.items() if value is not None}
    if count != len(seqs):
        raise _RowsMoved


def _to_text(value: Any) -> Any:
    return format_timestamp(value) if isinstance(value, datetime) else value


def _read_segments(index: Index, wanted: _Wanted) -> Iterator[tuple[int, Row]]:
    dataset = datasets.get(DATASET)
    files = {file.name: file for file in list_spool(index.home)}
    for name, lines in wanted.items():
        if name not in files:
            raise _RowsMoved
        count = 0
        with open_listed(files[name]) as file:
            for number, line in enumerate(islice(file, max(lines) + 1)):
                if number in lines:
                    try:
                        yield SPOOLED + number, segments.decode_line(dataset, line, number)
                    except RowRejected:
                        raise _RowsMoved from None
                    count += 1
        if count != len(lines):
            raise _RowsMoved
