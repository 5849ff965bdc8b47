"""The seam between the flush protocol and what carries it out: Spark and Iceberg, or a light stand-in in tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from hypaware.errors import Retryable
from hypaware.lake.build import BuildFailure, Built, Task
from hypaware.lake.metadata import DataFile
from hypaware.lake.partitions import BuiltFile
from hypaware.model.datasets import Dataset
from hypaware.state.flushes import Flush


class NotCommitted(Retryable):
    """A commit failed, and the lake was asked: it did not land."""

    kind = "commit_failed"


@dataclass(frozen=True)
class Landed:
    """What the lake holds of a flush: per source the highest sequence and the number of rows."""

    by_source: Mapping[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.by_source.values())

    @property
    def high_water(self) -> dict[str, int]:
        return {source: seq for source, (seq, _) in self.by_source.items()}


@dataclass(frozen=True)
class Change:
    """A change that brings no news: files take the place of others, or of nothing. One atomic commit."""

    why: Literal["compact", "retain", "purge", "rebuild"]
    gone: Sequence[DataFile]
    come: Sequence[BuiltFile] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """Table properties that move with it."""
    summary: Mapping[str, str] = field(default_factory=dict)


class LakeTable(Protocol):
    """One dataset's table, as it is now."""

    @property
    def uuid(self) -> str: ...

    @property
    def floor(self) -> int:
        """The end of the newest range that landed: the table's `hyp.seq-floor`."""

    @property
    def gateway_id(self) -> str | None:
        """Whose table it is (`hyp.gateway-id`): rows of other gateways have keys of their own."""

    @property
    def rebuilt_from(self) -> str | None:
        """The table that this one took the place of (`hyp.rebuilt-from`)."""

    @property
    def field_ids(self) -> Mapping[str, int]: ...

    @property
    def data_root(self) -> Path: ...

    def landed(self, flush: Flush) -> Landed | None:
        """Whether this flush's rows are in the table: by its id, which no other flush has, never by its range alone."""

    def commit(self, flush: Flush, files: Sequence[BuiltFile]) -> None:
        """One atomic change: the files, the flush's id, range and segments in the summary, and the raised floor.

        Raises NotCommitted where it surely did not happen; after any other error nobody knows.
        """

    def change(self, change: Change) -> None:
        """Commits it; the caller has the table's turn (`turns.changing`), and secures it afterwards.

        Raises NotCommitted where it surely did not happen, also if one of the files that should go is not there any
        more; after any other error nobody knows, and whoever comes next looks at the files that are live.
        """

    def expire(self, horizon: float, keep: int = 1) -> int:
        """Removes what `expiry.expirable` names, and may remove the files that only those name: how many snapshots."""

    def key_hashes(self, after: int) -> Iterator[Iterable[tuple[bytes, int]]]:
        """(key hash, sequence) of every row above a sequence, in bounded lots."""


class Lake(Protocol):
    def table(self, dataset: Dataset) -> LakeTable:
        """Creates it, or brings it to the dataset's columns, if need be."""

    def run(self, tasks: Sequence[Task]) -> list[Built | BuildFailure]:
        """Runs the tasks side by side: a result for each, in their order."""
