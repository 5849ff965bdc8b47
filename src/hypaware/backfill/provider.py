"""The interface between the import and a client: providers find sources and read them.

`find` runs in the driver and inspects only names and sizes. `read` runs in Spark's tasks, on one pinned source, and
yields items and events. It must depend only on the pinned bytes, so that a retried task gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from hypaware.backfill.reading import Reading

Environment = Mapping[str, str]
"""The environment variables that a provider requests, with the values of `hyp backfill`'s caller; includes HOME."""


@dataclass(frozen=True)
class Provenance:
    client_name: str
    source_path: str
    native_id: str
    """The client's own id of the session or thread."""


@dataclass(frozen=True)
class Item:
    """Something to import; `kind` names the materializer that turns it into rows."""

    dataset: str
    kind: str
    value: Any
    provenance: Provenance


@dataclass(frozen=True)
class Event:
    """A fact about the import that is not a row; reported in telemetry as `backfill.event.<name>`."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """A file with history. Sources are imported in the order of (first time, modification time, path)."""

    path: Path
    max_rows: int | None = None
    """The maximum number of rows; None if there are at most as many rows as bytes, which holds for text."""


@runtime_checkable
class Provider(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str:
        """One line for `hyp backfill list`."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """All datasets of its items."""

    @property
    def environment(self) -> tuple[str, ...]:
        """Environment variables that locate the history, for example CODEX_HOME."""

    def find(self, environment: Environment) -> Iterator[Found | Event]: ...

    def first_time(self, head: bytes) -> str | None:
        """Return the earliest time in the first bytes of a source, as ISO 8601; it determines the import order."""

    def read(self, reading: Reading, environment: Environment) -> Iterator[Item | Event]: ...
