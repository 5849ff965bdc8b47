"""`Spool`, the API of producers. `append` returns when the rows are durable.

Each process has its own active segments, so producers need no lock between them. A segment is sealed when it is large
enough, or shortly after its first row, so that a flush in another process never waits long for it.

@ref spool#active
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware import telemetry
from hypaware.errors import HypError, Retryable
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.spool import segments
from hypaware.spool.active import ActiveSegment, SegmentClosed
from hypaware.state.home_opener import read_identity

_spools: weakref.WeakSet[Spool] = weakref.WeakSet()
_SegmentKind = tuple[str, bool]
"""A dataset, and whether its rows are deferrable."""


@dataclass(frozen=True)
class SealRule:
    max_rows: int = 50_000
    max_bytes: int = 32 << 20
    linger: float = 1.0
    """Seconds from the first row of a segment to its seal."""


class Spool:
    def __init__(self, home: Home | str | os.PathLike[str], rule: SealRule | None = None) -> None:
        self.home = home if isinstance(home, Home) else Home(Path(home).expanduser().absolute())
        self.gateway_id = read_identity(self.home).gateway_id
        self._rule = rule or SealRule()
        self.sealed_by_size = 0
        self._segments: dict[_SegmentKind, ActiveSegment] = {}
        self._sealer: threading.Thread | None = None
        self._closed = False
        self._guard = threading.RLock()
        self._lingering = threading.Condition(self._guard)
        _spools.add(self)

    def append(self, dataset: str, rows: Iterable[Any], *, deferrable: bool = False) -> int:
        """Coerce and store all of the rows, or none. Return their number; they are durable.

        A flush may hold back `deferrable` rows for some minutes, until a better source has the same parts.
        """
        definition = datasets.get(dataset)
        coerced = []
        for index, row in enumerate(rows):
            try:
                coerced.append(coerce_row(definition, row, self.gateway_id))
            except RowRejected as reason:
                raise HypError(f"{dataset}: row {index}: {reason}", kind="row_rejected") from None
        return self.append_coerced(dataset, coerced, deferrable=deferrable)

    def append_coerced(self, dataset: str, rows: Sequence[Row], *, deferrable: bool = False) -> int:
        if not rows:
            return 0
        with telemetry.span("spool.append", component="spool", operation="append", hyp_dataset=dataset) as span:
            try:
                segment = self._append((dataset, deferrable), rows)
            except OSError as error:
                raise Retryable(
                    f"could not write {len(rows)} rows to the spool of {dataset} ({error}); none was stored",
                    kind="spool_write_failed",
                ) from error
            span.set(row_count=len(rows))
        if segment.rows >= self._rule.max_rows or segment.bytes >= self._rule.max_bytes:
            self.sealed_by_size += self._seal((dataset, deferrable), segment)
        return len(rows)

    def seal(self) -> int:
        """Seal every active segment of this process. Return the number of segments with rows."""
        with self._guard:
            active = list(self._segments.items())
        return sum(self._seal(kind, segment) for kind, segment in active)

    def close(self) -> None:
        with self._lingering:
            self._closed = True
            self._lingering.notify()
        self.seal()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, kind: _SegmentKind, rows: Sequence[Row]) -> ActiveSegment:
        while True:
            segment = self._active(kind)
            try:
                segment.append(rows)
                return segment
            except SegmentClosed:
                continue  # the sealer closed it first
            except BaseException:
                segment.abandon()
                raise

    def _active(self, kind: _SegmentKind) -> ActiveSegment:
        with self._guard:
            if self._closed:
                raise HypError("the spool is closed", kind="spool_closed")
            segment = self._segments.get(kind)
            if segment is None or not segment.is_usable:
                dataset, deferrable = kind
                folder = segments.spool_folder(self.home, dataset)
                folder.create()
                segment = self._segments[kind] = ActiveSegment(folder, deferrable=deferrable)
                if self._sealer is None and self._rule.linger < float("inf"):
                    self._sealer = threading.Thread(target=self._seal_lingering, name="spool-sealer", daemon=True)
                    self._sealer.start()
            return segment

    def _seal(self, kind: _SegmentKind, segment: ActiveSegment) -> bool:
        """Seal a segment. A failed seal leaves a durable, unlocked file, which the next flush repairs."""
        with self._guard:
            if self._segments.get(kind) is segment:
                del self._segments[kind]
        try:
            return segment.seal() is not None
        except OSError:
            return False

    def _seal_lingering(self) -> None:
        """Seal segments when their time is up. Ends with the last one, so that it does not keep the spool alive."""
        while True:
            with self._lingering:
                while not (due := self._due()):
                    if self._closed or not self._segments:
                        self._sealer = None
                        return
                    oldest = min(segment.opened_at for segment in self._segments.values())
                    self._lingering.wait(oldest + self._rule.linger - time.monotonic())
            for kind, segment in due:
                self._seal(kind, segment)

    def _due(self) -> list[tuple[_SegmentKind, ActiveSegment]]:
        now = time.monotonic()
        return [
            (kind, segment) for kind, segment in self._segments.items() if segment.opened_at + self._rule.linger <= now
        ]

    def _after_fork(self) -> None:
        """Reset in a forked child, which must not share its parent's files, locks or threads."""
        self._segments = {}
        self._sealer = None
        self._guard = threading.RLock()
        self._lingering = threading.Condition(self._guard)


def _close_all() -> None:
    for spool in list(_spools):
        spool.close()


def _reset_spools_in_child() -> None:
    for spool in list(_spools):
        spool._after_fork()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_reset_spools_in_child)
