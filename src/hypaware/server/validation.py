"""Validate the rows of a batch, all or nothing: the first line that cannot be stored rejects the whole batch.

One pass parses, coerces and serialises each line as it will be stored, so that only one row at a time is an object.

Validation is nearly the whole cost of a batch and occupies one core, so large batches are validated in worker
processes. The first large batch starts them; they end with the server, even if it is killed. Small batches are
validated in the server's own process, because handing them over would cost more. If a worker dies, its batch is
validated here.
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
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from hypaware.model import canonical, datasets
from hypaware.model.datasets import GATEWAY, Dataset, Row, RowRejected, coerce_row
from hypaware.server.health import log
from hypaware.server.http import HttpProblem, bad_request, too_large
from hypaware.server.limits import ServerLimits
from hypaware.spool import segments

_READ_BYTES = 1 << 20
_MAX_GATEWAY = 200
# A batch of this size takes tens of milliseconds to validate and a few to hand over.
_LARGE_BATCH = 512 << 10
_MAX_PROCESSES = 4


@dataclass(frozen=True)
class BatchClaims:
    """What the headers and the token of a batch claim about its rows."""

    dataset: Dataset
    gateway_id: str | None
    """The gateway that every row must belong to; None if only the rows name it: then all must name the same one."""
    encoding: str | None
    content_sha: str | None


@dataclass(frozen=True)
class ValidatedRows:
    lines: bytes
    """The rows as segment lines."""
    rows: int
    content_sha: str
    gateway_id: str | None
    """The gateway of the rows; None if there are no rows and the caller named no gateway."""


class ValidatorPool:
    def __init__(self, limits: ServerLimits, processes: int | None = None) -> None:
        """`processes` defaults to the number of cores, at most four; 0 validates everything in this process."""
        self._limits = limits
        self._processes = min(_MAX_PROCESSES, os.cpu_count() or 1) if processes is None else processes
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.Lock()

    def validate(self, claims: BatchClaims, body: bytes) -> ValidatedRows:
        if len(body) < _LARGE_BATCH or self._processes < 2:
            return validate_batch(claims, body, self._limits)
        fields = (claims.dataset.name, claims.gateway_id, claims.encoding, claims.content_sha)
        try:
            with self._lock:
                if self._pool is None:
                    spawn = multiprocessing.get_context("spawn")
                    self._pool = ProcessPoolExecutor(self._processes, mp_context=spawn, initializer=_init_worker)
                pool = self._pool
            result = pool.submit(_validate_in_worker, fields, body, self._limits).result()
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
    fields: tuple[str, str | None, str | None, str | None], body: bytes, limits: ServerLimits
) -> ValidatedRows | tuple[int, str, dict[str, Any]]:
    """Validate in a worker. A Problem is returned as its fields, because it cannot be pickled."""
    name, *rest = fields
    try:
        return validate_batch(BatchClaims(datasets.get(name), *rest), body, limits)
    except HttpProblem as problem:
        return problem.status, problem.kind, problem.detail


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
    rows = _RowValidator(claims, content, limits)
    lines = segments.encode_lines(rows, 0)
    return ValidatedRows(lines, rows.count, sha, rows.gateway_id)


class _RowValidator:
    """Iterates over the coerced rows. `count` and `gateway_id` are final after the iteration."""

    def __init__(self, claims: BatchClaims, content: bytes, limits: ServerLimits) -> None:
        self._claims = claims
        self._content = content
        self._limits = limits
        self.count = 0
        self.gateway_id = claims.gateway_id

    def __iter__(self) -> Iterator[Row]:
        dataset, limits, parse = self._claims.dataset, self._limits, canonical.loads
        has_gateway = GATEWAY in dataset.coercers
        for number, line in enumerate(io.BytesIO(self._content), 1):
            if len(line) > limits.max_line_bytes:
                raise _invalid_row(number, f"the line is longer than {limits.max_line_bytes} bytes")
            if line.isspace():
                continue
            if self.count == limits.max_rows:
                raise HttpProblem(413, "too_many_rows", limit=limits.max_rows)
            try:
                raw = parse(line)
                row = coerce_row(dataset, raw, self.gateway_id or self._first_gateway(raw))
                if has_gateway and row.setdefault(GATEWAY, self.gateway_id) != self.gateway_id:
                    raise RowRejected(f"column {GATEWAY}: it names another gateway")
            except RowRejected as reason:
                raise _invalid_row(number, str(reason)) from None
            except (ValueError, RecursionError) as error:
                raise _invalid_row(number, f"not JSON: {error}") from None
            self.count += 1
            yield row

    def _first_gateway(self, raw: object) -> str:
        """Return the gateway that the first row names, for a client that enrolled without a gateway id."""
        named = raw.get(GATEWAY) if isinstance(raw, dict) else None
        if not isinstance(named, str) or not named or len(named) > _MAX_GATEWAY or not named.isprintable():
            raise RowRejected(f"column {GATEWAY}: the row or the enrolment must name the gateway")
        self.gateway_id = named
        return named


def _invalid_row(line: int, reason: str) -> HttpProblem:
    return HttpProblem(422, "invalid_row", line=line, reason=reason)


def decompress(body: bytes, encoding: str | None, limit: int) -> bytes:
    """Decompress the body. Stop at `limit` bytes, so that a decompression bomb does not fill the memory."""
    if encoding is None:
        return body
    if not body:
        return b""
    # On first use: it is large, and most of it is not needed here.
    import pyarrow as pa

    pieces: list[bytes] = []
    size = 0
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            while piece := stream.read(_READ_BYTES):
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise too_large(limit)
    except OSError as error:
        raise bad_request("bad_encoding", f"the body is not {encoding}: {error}") from None
    return b"".join(pieces)
