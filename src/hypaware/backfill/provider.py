"""The seam between the import and whoever knows where history lies: providers find sources and read them.

`find` runs in the driver and only looks (names, sizes). `read` runs in Spark's tasks, on one pinned source, and
yields items and events. It must be a function of the pinned bytes: a task that is tried again gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hypaware.backfill.reading import Reading

Environment = Mapping[str, str]
"""The variables that a provider asked for, as the caller of `hyp backfill` had them; HOME is always there."""


@dataclass(frozen=True)
class Provenance:
    client_name: str
    source_path: str
    native_id: str
    """The client's own id of the session or thread."""


@dataclass(frozen=True)
class Item:
    """Something to import; `kind` names the materializer that makes rows of it."""

    dataset: str
    kind: str
    value: Any
    provenance: Provenance


@dataclass(frozen=True)
class Event:
    """Something worth telling that is no row: shown in telemetry as `backfill.event.<name>`."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A source of history: a file. Its rows are numbered in the order of (first time, file's time, path)."""

    path: Path
    max_rows: int | None = None
    """How many rows it can hold at most; None: no more than it has bytes, which is so for text."""


@runtime_checkable
class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line for `hyp backfill list`."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """All datasets that its items may be for."""

    @property
    def environment(self) -> tuple[str, ...]:
        """Variables that decide where history lies, for example CODEX_HOME."""

    def find(self, environment: Environment) -> Iterator[Found | Event]: ...

    def first_time(self, head: bytes) -> str | None:
        """The earliest time that the first bytes of a source show, as ISO 8601; it decides the order of sources."""

    def read(self, reading: Reading, environment: Environment) -> Iterator[Item | Event]: ...
