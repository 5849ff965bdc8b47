"""Validate the rows of a batch, all or nothing: the first line that cannot be stored rejects the whole batch.

Only one row at a time is an object. A row whose values already have the types of their columns, as our own senders
write it, is stored byte for byte; any other is coerced and serialised. A flush reads the same row either way.

Validation is nearly the whole cost of a batch and occupies one core, so batches with a large content, compressed or
not, are validated in worker processes. The first one starts them; they end with the server, even if it is killed. Small
batches are validated in the server's own process, because handing them over would cost more. A worker writes the rows
to their file in `incoming/` itself, without a sync, or to their object, because handing them back would cost as much as
handing them over. If a worker dies, its batch is validated here; what it began has no entry in the ledger, so it is
removed like that of a killed server.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from hypaware.home import durable_files
from hypaware.home.identity import is_own_gateway
from hypaware.home.storage import ObjectPath, put_file
from hypaware.model import canonical, datasets
from hypaware.model.columns import BIGINT_RANGE, INT_RANGE, ColumnType, is_canonical_timestamp
from hypaware.model.datasets import GATEWAY, Dataset, Row, RowRejected, coerce_row
from hypaware.server.health import log
from hypaware.server.http import HttpProblem, bad_request, too_large
from hypaware.server.limits import ServerLimits
from hypaware.spool import segments

_READ_BYTES = 1 << 20
# A batch of this size takes tens of milliseconds to validate and a few to hand over.
_LARGE_BATCH = 512 << 10
_MAX_PROCESSES = 4
_MAX_FORMS = 1024
_JSON_TYPES = {
    ColumnType.STRING: str,
    ColumnType.INT: int,
    ColumnType.BIGINT: int,
    ColumnType.DOUBLE: float,
    ColumnType.BOOLEAN: bool,
    ColumnType.TIMESTAMP: str,
}


@dataclass(frozen=True)
class BatchClaims:
    """What the headers and the token of a batch claim about its rows."""

    dataset: Dataset
    gateway_id: str
    """The gateway that every row must belong to."""
    encoding: str | None
    content_sha: str | None
    is_stamped: bool = False
    """Whether the rows get this gateway, whatever they name."""


@dataclass(frozen=True)
class ValidatedRows:
    lines: bytes | Path
    """The rows as segment lines, or the file or object to which a worker has written them; a file is not synced."""
    rows: int
    content_sha: str


class ValidatorPool:
    def __init__(self, limits: ServerLimits, processes: int | None = None) -> None:
        """`processes` defaults to the number of cores, at most four; 0 validates everything in this process."""
        self._limits = limits
        self.processes = min(_MAX_PROCESSES, os.cpu_count() or 1) if processes is None else processes
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def validate(self, claims: BatchClaims, body: bytes, incoming: Path) -> ValidatedRows:
        """Validate the batch. `incoming`: the folder for its file or object, if a worker validates it."""
        if not self.processes or not _is_large(body, claims.encoding):
            return validate_batch(claims, body, self._limits)
        fields = (claims.dataset.name, claims.gateway_id, claims.encoding, claims.content_sha, claims.is_stamped)
        try:
            with self._lock:
                if self._pool is None:
                    spawn = multiprocessing.get_context("spawn")
                    self._pool = ProcessPoolExecutor(self.processes, mp_context=spawn, initializer=_init_worker)
                pool = self._pool
            result = pool.submit(_validate_in_worker, fields, body, self._limits, incoming).result()
        except BrokenProcessPool:
            log.warning("a validation worker has died; validating its batch in the server process")
            self.close()
            return validate_batch(claims, body, self._limits)
        if isinstance(result, ValidatedRows):
            return result
        raise HttpProblem(result[0], result[1], **result[2])

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
        if pool:
            pool.shutdown()


def _validate_in_worker(
    fields: tuple[str, str, str | None, str | None, bool], body: bytes, limits: ServerLimits, incoming: Path
) -> ValidatedRows | tuple[int, str, dict[str, Any]]:
    """Validate in a worker, and write the rows. A Problem is returned as its fields, because it cannot be pickled."""
    name, gateway_id, encoding, content_sha, is_stamped = fields
    try:
        claims = BatchClaims(datasets.get(name), gateway_id, encoding, content_sha, is_stamped)
        found = validate_batch(claims, body, limits)
    except HttpProblem as problem:
        return problem.status, problem.kind, problem.detail
    assert isinstance(found.lines, bytes)
    return replace(found, lines=create_batch_file(incoming, found.lines, found.rows)) if found.rows else found


def create_batch_file(incoming: Path, lines: bytes, rows: int) -> Path:
    """Write the rows of a batch to a new file, without a sync, or to a new object. If that fails, there is no file."""
    path = incoming / segments.sealed_file_name(segments.new_segment_name(), rows)
    if isinstance(path, ObjectPath):
        put_file(path, io.BytesIO(lines))
        return path
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        durable_files.write_all(fd, lines)
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return path


def _init_worker() -> None:
    """Set up a worker: ignore Ctrl-C, which the server handles, and exit when the server dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=exit_with_parent, name="exit-with-server", daemon=True).start()


def validate_batch(claims: BatchClaims, body: bytes, limits: ServerLimits) -> ValidatedRows:
    content = decompress(body, claims.encoding, limits.max_decompressed_bytes)
    sha = sha256(content).hexdigest()
    if claims.content_sha not in (None, sha):
        raise HttpProblem(400, "content_mismatch")
    rows = list(_BatchRows(claims, content, limits))
    return ValidatedRows(segments.wrap_rows(rows, 0), len(rows), sha)


class _BatchRows:
    """Iterates over the rows of a batch, each as the JSON text that is stored."""

    def __init__(self, claims: BatchClaims, content: bytes, limits: ServerLimits) -> None:
        self._claims = claims
        self._content = content
        self._limits = limits
        self._has_gateway = GATEWAY in claims.dataset.coercers

    def __iter__(self) -> Iterator[bytes]:
        limits, forms = self._limits, _row_forms(self._claims.dataset)
        gateway_id, has_gateway = self._claims.gateway_id, self._has_gateway
        count = 0
        for number, line in enumerate(io.BytesIO(self._content), 1):
            if len(line) > limits.max_line_bytes:
                raise _invalid_row(number, f"the line is longer than {limits.max_line_bytes} bytes")
            if line.isspace():
                continue
            if count == limits.max_rows:
                raise HttpProblem(413, "too_many_rows", limit=limits.max_rows)
            count += 1
            try:
                raw = orjson.loads(line)
                named = raw.get(GATEWAY) if has_gateway and type(raw) is dict else gateway_id
                if self._is_own(named) and forms.is_storable(raw, line, named):
                    yield line.removesuffix(b"\n")
                else:
                    yield orjson.dumps(self._coerce(raw, line))
            except RowRejected as reason:
                raise _invalid_row(number, str(reason)) from None
            except (ValueError, RecursionError) as error:
                raise _invalid_row(number, f"not JSON: {error}") from None

    def _coerce(self, raw: Any, line: bytes) -> Row:
        claims = self._claims
        if self._may_hold_long_number:
            raw = canonical.loads(line)
        if self._has_gateway and claims.is_stamped and isinstance(raw, dict):
            raw[GATEWAY] = claims.gateway_id
        named = raw.get(GATEWAY) if isinstance(raw, dict) else None
        row = coerce_row(claims.dataset, raw, named if self._is_own(named) else claims.gateway_id)
        if self._has_gateway and not self._is_own(row.setdefault(GATEWAY, claims.gateway_id)):
            raise RowRejected(f"column {GATEWAY}: it names another gateway")
        return row

    def _is_own(self, gateway: Any) -> TypeGuard[str]:
        """Return whether rows may name this gateway: a lake that machines share sends the rows of all of them."""
        own = self._claims.gateway_id
        return gateway == own or (type(gateway) is str and is_own_gateway(gateway, own))

    @cached_property
    def _may_hold_long_number(self) -> bool:
        # One look at the whole content costs a third of a look at every line.
        return canonical.may_hold_long_number(self._content)


_ValueChecks = tuple[bool, list[str], list[tuple[str, int, int]]]
"""Whether the types fit the columns; the names of timestamps; integers with their least and their greatest value."""


class RowForms:
    """Recognises rows that can be stored as they were sent, because a flush makes the same row of them.

    The form of a row is the names of its columns and the types of their values. The rows of a sender have few forms, so
    whether values of these types fit their columns is decided once per form. A row that is not recognised is not
    invalid: `coerce_row` decides. A property test compares both.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._columns = {column.name: column.type for column in dataset.columns}
        self._forms: dict[tuple[Any, ...], _ValueChecks] = {}

    def is_storable(self, raw: Any, line: bytes, gateway_id: str) -> bool:
        """`raw` is the parsed line. Text that orjson has parsed holds no lone surrogates, and numbers are finite."""
        if type(raw) is not dict:
            return False
        form = (*raw, *map(type, raw.values()))
        if (checks := self._forms.get(form)) is None:
            checks = self._forms[form] = self._judge(raw)
        fits, times, integers = checks
        if not fits:
            return False
        for name in times:
            if not is_canonical_timestamp(raw[name]):
                return False
        for name, least, greatest in integers:
            if not least <= raw[name] <= greatest:
                return False
        for name, value in self._dataset.derive(raw, gateway_id).items():
            if raw.get(name) != value:
                return False
        # With so few brackets no value is nested too deeply. Some programs take a carriage return for a line end.
        return line.count(b"{") + line.count(b"[") <= canonical.MAX_DEPTH and b"\r" not in line

    def _judge(self, raw: Row) -> _ValueChecks:
        present = {name: type(value) for name, value in raw.items() if value is not None}
        names = {kind: [name for name in present if self._columns.get(name) is kind] for kind in ColumnType}
        fits = raw.keys() <= self._columns.keys() and present.keys() >= set(self._dataset.required)
        for kind, wanted in _JSON_TYPES.items():
            fits = fits and all(present[name] is wanted for name in names[kind])
        ranges = {ColumnType.INT: INT_RANGE, ColumnType.BIGINT: BIGINT_RANGE}
        integers = [(name, each[0], each[-1]) for kind, each in ranges.items() for name in names[kind]]
        if len(self._forms) >= _MAX_FORMS:
            # Only a sender of made-up rows has so many.
            self._forms.clear()
        return fits, names[ColumnType.TIMESTAMP], integers


_row_forms = cache(RowForms)


def _invalid_row(line: int, reason: str) -> HttpProblem:
    return HttpProblem(422, "invalid_row", line=line, reason=reason)


def decompress(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Decompress the body. Stop at `limit` bytes, so that a decompression bomb does not fill the memory."""
    if encoding is None:
        return body
    pieces: list[bytes] = []
    size = 0
    for piece in _decompressed_pieces(body, encoding):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise too_large(limit)
    return b"".join(pieces)


def _is_large(body: bytes, encoding: str | None) -> bool:
    """Judge by the rows: a few kilobytes can decompress to the largest batch."""
    if encoding is None or len(body) >= _LARGE_BATCH:
        return len(body) >= _LARGE_BATCH
    size = 0
    return any((size := size + len(piece)) >= _LARGE_BATCH for piece in _decompressed_pieces(body, encoding))


def _decompressed_pieces(body: bytes, encoding: str) -> Iterator[bytes]:
    if not body:
        return
    # On first use: it is large, and most of it is not needed here.
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            while piece := stream.read(_READ_BYTES):
                yield piece
    except OSError as error:
        raise bad_request("bad_encoding", f"the body is not {encoding}: {error}") from None
