"""Copies of purged rows outside the tables: in the spool, in rejects, in dead letters, and at destinations.

Spooled rows are flushed, so that tombstones keep them out. Batches that a server has stored but not registered
(`incoming/`) are moved on by the server within moments. A batch left by a dead server keeps its name and its number of
lines, because a ledger may know it: its matching lines are blanked. An object that no ledger of a shared lake has is
dropped: it was never acknowledged, and its sender repeats the batch.

A dead letter keeps its chunk and its id; a replay sends the remaining rows. One without rows is dropped. The
destination's error message may quote a row, so it is removed too.
"""

from __future__ import annotations

import base64
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from hypaware import faults
from hypaware.export.dead_letter_rows import pack_rows, unpack_rows
from hypaware.export.stream_locks import lock_stream
from hypaware.home import Home, durable_files
from hypaware.home.locks import is_locked
from hypaware.home.storage import open_whole
from hypaware.iceberg import metadata
from hypaware.lake import prepare, tombstones
from hypaware.lake.flush import Flusher
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.table import commit_lock
from hypaware.maintain.purge.context import PurgeContext, PurgeReport, RemovedRows
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, RowRejected, hash_row_key
from hypaware.spool import reader, segments
from hypaware.spool.received import open_received
from hypaware.state import dead_letters, mirror, streams, titles
from hypaware.state.dead_letters import DeadLetter
from hypaware.state.store import Connection, StateStore
from hypaware.state.streams import Stream

_before_rewrite = faults.crash_point("maintain.purge.before-lines", "a spool file still holds lines of purged rows")
_after_rewrite = faults.crash_point("maintain.purge.after-lines", "a spool file is rewritten without the lines")
_after_letters = faults.crash_point("maintain.purge.after-letters", "a dead letter no longer holds purged rows")
_SERVER_TIMEOUT = 5.0
_POLL = 0.05
_REPLAY_TIMEOUT = 60.0
_PURGED_REASON = "removed by a purge"
LineMatcher = Callable[[bytes], bool]
"""Whether a spooled line holds a matching row."""


def bury_spooled(context: PurgeContext, tombstone_ids: Sequence[int]) -> None:
    """Set tombstones for parts of a session that are only in the spool, so that copies under another name stay out.

    Parts that the lake has under another session belong to that session and get none.
    """
    for dataset in datasets.list_all():
        if context.selector.kind != "session" or context.selector.column(dataset) is None:
            continue
        for tombstone_id, selector in zip(tombstone_ids, context.selector.single_selectors, strict=False):
            spooled = reader.read_spooled_rows(context.home, dataset.name)
            rows = chain(spooled, received_rows(context.home, context.store, dataset))
            keys = {hash_row_key(dataset, row, context.own_gateway) for row in rows if selector.matches(dataset, row)}
            hashes = {key for key in keys if key is not None}
            if hashes and context.home.keys.is_file():
                with closing(KeyIndex(context.home.keys)) as index:
                    hashes -= index.find(hashes).keys()
            if hashes:
                tombstones.add_parts(context.home, tombstone_id, hashes)


def flush_spool(context: PurgeContext, report: PurgeReport) -> None:
    """Flush all datasets whose table is intact. Afterwards every acknowledged row is in the lake or kept out of it."""
    flusher = Flusher(
        context.home, context.store, context.lake, context.config.flush, context.progress, context.check_cancelled
    )
    present = {entry.name for entry in metadata.list_tables(context.home)}
    if received := open_received(context.home, context.store):
        present.update(received.list_datasets())
    for dataset in datasets.list_all():
        if dataset.name in context.damaged:
            continue
        if dataset.name in present or reader.summarize_spool(context.home, dataset.name).segments:
            with commit_lock(dataset.name, context.check_cancelled):
                result = flusher.flush(dataset, context.wait)
            report.spool_rows += result.rows.purged
            report.spool_held += [f"{dataset.name}/{name}" for name in result.still_active]


def remove_rejects(context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows) -> None:
    """Remove matching rejects, and blank matching lines in batches that a dead server left."""
    for dataset in datasets.list_all():
        matches = line_matcher(
            context.for_dataset(dataset) or context.selector, dataset, removed_rows, context.own_gateway
        )
        for path in rejected_files(context.home, dataset):
            report.rejects += rewrite_lines(path, matches)
        if received := open_received(context.home, context.store):
            received.drop_orphans(dataset.name, lambda path: any(map(matches, _lines(path))))  # noqa: B023
        incoming = _files_in(context.home, dataset, "incoming")
        if incoming and _server_is_gone(context.home, incoming):
            for path in incoming:
                report.spool_rows += rewrite_lines(path, matches, is_incoming=True)


def remove_titles(context: PurgeContext) -> None:
    """Remove the titles of purged sessions from the state, which is rewritten afterwards."""
    kind, values = context.selector.kind, context.selector.values
    with context.store.transaction() as connection:
        titles.remove_titles(
            connection,
            session_ids=values if kind == "session" else context.sessions if kind == "cwd" else (),
            clients=values if kind == "source" else (),
            before=values[0] if kind == "before" else None,
        )


def line_matcher(
    selector: PurgeSelector, dataset: Dataset, removed_rows: RemovedRows, own_gateway: str | None
) -> LineMatcher:
    def matches(line: bytes) -> bool:
        if not (raw := prepare.extract_row(line)):
            # The line cannot be parsed; a session's id is long enough to be searched for.
            return selector.kind == "session" and any(value.encode() in line for value in selector.values)
        row = prepare.coerce_leniently(dataset, raw)
        if selector.column(dataset) is not None and selector.matches(dataset, row):
            return True
        key = hash_row_key(dataset, row, own_gateway)
        return key is not None and key in removed_rows.hashes

    return matches


def count_rejects(home: Home, dataset: Dataset, selector: PurgeSelector) -> int:
    matches = line_matcher(selector, dataset, RemovedRows(), None)
    return sum(matches(line) for path in rejected_files(home, dataset) for line in original_lines(path))


def unflushed_rows(home: Home, unreadable: dict[Path, OSError], dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the rows of all segments, including batches that a server has not registered yet.

    Segments that cannot be read are added to `unreadable`.
    """
    yield from reader.read_spooled_rows(home, dataset.name, unreadable=unreadable)
    for path in _files_in(home, dataset, "incoming"):
        yield from segment_rows(dataset, path)


def received_rows(home: Home, store: StateStore, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Yield the rows that receivers of a shared lake have accepted and no flush has committed."""
    if received := open_received(home, store):
        for segment in received.list_segments(dataset.name):
            with suppress(FileNotFoundError):  # committed since it was listed
                yield from segment_rows(dataset, segment.path)


def rejected_files(home: Home, dataset: Dataset) -> list[Path]:
    return _files_in(home, dataset, "rejected")


def _files_in(home: Home, dataset: Dataset, name: str) -> list[Path]:
    return sorted((segments.spool_folder(home, dataset.name).path / name).glob(f"*{segments.SUFFIX}"))


def original_lines(path: Path) -> Iterator[bytes]:
    """Yield the original line of each reject in a file."""
    for line in _lines(path):
        yield _original_line(line)


def _lines(path: Path) -> Iterator[bytes]:
    with open_whole(path) as file:
        yield from file


def segment_rows(dataset: Dataset, path: Path) -> Iterator[Row]:
    """Yield the rows of a segment that a flush would accept."""
    for ordinal, line in enumerate(_lines(path)):
        with suppress(RowRejected):
            yield segments.decode_line(dataset, line, ordinal)


def _server_is_gone(home: Home, incoming: list[Path]) -> bool:
    """Return whether no server runs. A live server moves its batches on."""
    deadline = time.monotonic() + _SERVER_TIMEOUT
    while is_locked(home.run / "server.lock"):
        if not any(path.exists() for path in incoming) or time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def rewrite_lines(path: Path, matches: LineMatcher, *, is_incoming: bool = False) -> int:
    """Drop the matching lines of rejects, blank those of a batch; return their number. An empty file is removed."""
    changed, lines = 0, []
    with open(path, "rb") as file:
        for line in file:
            new_line = line
            if is_incoming and matches(line):
                envelope: dict[str, Any] = orjson.loads(line)
                new_line = orjson.dumps({"n": envelope.get("n"), "v": envelope.get("v"), "purged": True}) + b"\n"
            elif not is_incoming and matches(_original_line(line)):
                new_line = b""
            changed += new_line != line
            lines.append(new_line)
    if changed:
        _before_rewrite()
        body = b"".join(lines)
        if body:
            durable_files.write_atomic(path, body)
        else:
            durable_files.remove_durably(path)
        _after_rewrite()
    return changed


def _original_line(line: bytes) -> bytes:
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line
    match document:
        case {"line": str(text)}:
            return text.encode("utf-8", "surrogatepass")
        case {"line_base64": str(encoded)}:
            return base64.b64decode(encoded)
    return line


def remove_from_dead_letters(context: PurgeContext, report: PurgeReport, removed_rows: RemovedRows) -> None:
    """Remove the rows from all dead letters, and the errors of streams that quote them."""
    for letter in _letters(context.store):
        if not _count_matching_rows(context.store, context.selector, letter):
            continue
        # Not while a replay of the same dead letter runs.
        with lock_stream(context.home, letter.key, _REPLAY_TIMEOUT):
            rows = _remove_rows(context, letter)
        report.letter_rows += rows
        report.letters += rows > 0
    with context.store.reading() as connection:
        quoting_streams = [
            stream.key
            for stream in streams.list_streams(connection)
            if stream.last_error and any(each in stream.last_error for each in removed_rows.ids)
        ]
    if quoting_streams:
        with context.store.transaction() as connection:
            for key in quoting_streams:
                streams.replace_error(connection, key, _PURGED_REASON)


def _letters(store: StateStore) -> list[DeadLetter]:
    with store.reading() as connection:
        return dead_letters.list_letters(connection)


def _count_matching_rows(store: StateStore, selector: PurgeSelector, letter: DeadLetter) -> int:
    with store.reading() as connection:
        body = dead_letters.load_payload(connection, letter.id)
    if body is None:
        return 0
    return int(pc.sum(_mask(selector, letter, unpack_rows(body))).as_py() or 0)


def _mask(selector: PurgeSelector, letter: DeadLetter, rows: pa.Table) -> Any:
    if selector.kind == "source":
        return pa.array([letter.key.source in selector.values] * rows.num_rows, pa.bool_())
    is_installed = letter.key.dataset in datasets.list_names()
    column = selector.column(datasets.get(letter.key.dataset)) if is_installed else None
    if column is None or column not in rows.column_names:
        return pa.array([False] * rows.num_rows, pa.bool_())
    return selector.mask_rows(datasets.get(letter.key.dataset), rows)


def _remove_rows(context: PurgeContext, letter: DeadLetter) -> int:
    with context.store.transaction() as connection:
        body = dead_letters.load_payload(connection, letter.id)
        if body is None:
            return 0
        rows = unpack_rows(body)
        kept = rows.filter(pc.invert(_mask(context.selector, letter, rows)))
        if kept.num_rows == rows.num_rows:
            return 0
        if kept.num_rows:
            dead_letters.add_letter(
                connection, replace(letter, rows=kept.num_rows, reason=_PURGED_REASON), pack_rows(kept)
            )
        else:
            dead_letters.drop_letter(connection, letter.id)
            streams.advance_delivery_step(connection)
    mirror.write_mirror(context.home.mirror, context.store)
    _after_letters()
    return int(rows.num_rows - kept.num_rows)


def count_dead_letters(store: StateStore, selector: PurgeSelector) -> tuple[int, int]:
    """Return (dead letters that hold such rows, number of rows)."""
    found = [_count_matching_rows(store, selector, letter) for letter in _letters(store)]
    return sum(rows > 0 for rows in found), sum(found)


def list_copies(store: StateStore, seqs: Mapping[tuple[str, str], array[int]]) -> list[dict[str, Any]]:
    """Return the copies at destinations of the rows with these sequences, by dataset and source.

    Exact only while no delivery of their streams is running.
    """
    with store.reading() as connection:
        copies = [
            _copies_of_stream(connection, stream, seqs[stream.key.dataset, stream.key.source])
            for stream in streams.list_streams(connection)
            if (stream.key.dataset, stream.key.source) in seqs
        ]
    return [each for each in copies if each["rows"] or each["rows_under_way"] or each["unknown"]]


def _copies_of_stream(connection: Connection, stream: Stream, seqs: Iterable[int]) -> dict[str, Any]:
    intent = streams.load_intent(connection, stream.key)
    sent = [chunk for chunk in intent.chunks if not chunk.unsent] if intent else []
    watermark = stream.watermark or 0
    delivered = sum(seq <= watermark for seq in seqs)
    for letter in dead_letters.list_stream_letters(connection, stream.key):
        delivered -= _count_within(seqs, letter.after, min(letter.last, watermark))
    under_way = sum(_count_within(seqs, max(chunk.after, watermark), chunk.last) for chunk in sent)
    return {
        "sink": stream.key.sink,
        "destination": stream.address,
        "dataset": stream.key.dataset,
        "source": stream.key.source,
        "rows": delivered,
        "rows_under_way": under_way,
        "unknown": stream.watermark is None and stream.history == streams.HISTORY_LOST,
    }


def _count_within(seqs: Iterable[int], after: int, last: int) -> int:
    return sum(after < seq <= last for seq in seqs)
