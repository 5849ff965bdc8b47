"""What a recorded client provides: a provider that imports its history, and settings that attach it to the gateway.

A client registers by an entry point in the group `hypaware.clients`, which names its `Client`: a declaration that costs
little to import. What it says as values, every command may read. Its parts do the work; a declaration names them by
their place, and they are imported when they are used.

`Provider.find` runs in the driver and inspects only names and sizes. `Provider.read` runs in Spark's tasks, on one
pinned source, and yields items and events. Materializers, which register in the group `hypaware.materializers`, turn
items into rows as a producer would send them, one materializer per kind of item. `read` and `materialize` must depend
only on their arguments, so that a retried task gives the same rows.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload, runtime_checkable

from hypaware.clients.client_requests import ClientTraffic, RequestReader

if TYPE_CHECKING:
    from hypaware.clients.attach import ClientSettings
    from hypaware.clients.reader import SourceReader
    from hypaware.clients.recorded_session import RecordedSession, Transcript
    from hypaware.model.datasets import Row

T = TypeVar("T")
Environment = Mapping[str, str]
"""The environment variables that a provider requests, with the values of `hyp backfill`'s caller; includes HOME."""


@dataclass(frozen=True)
class Provenance:
    client_name: str
    source_path: str
    native_id: str
    """The client's own id of the session or thread."""


@dataclass(frozen=True)
class ImportItem:
    """Something to import; `kind` names the materializer that turns it into rows."""

    dataset: str
    kind: str
    value: Any
    provenance: Provenance


@dataclass(frozen=True)
class ProviderEvent:
    """A fact about the import that is not a row; reported in telemetry as `backfill.event.<name>`."""

    name: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
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

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]: ...

    def first_time(self, head: bytes) -> str | None:
        """Return the earliest time in the first bytes of a source, as ISO 8601; it determines the import order."""

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]: ...


@runtime_checkable
class WatchableProvider(Provider, Protocol):
    """A provider whose sources the daemon can watch for changes; it surveys those of others every few seconds."""

    def folders(self, environment: Environment) -> tuple[Path, ...]:
        """Return the folders that hold its sources, whether they exist or not."""


@runtime_checkable
class SessionProvider(Provider, Protocol):
    """A provider that can tell the session of a source from its beginning, so that sessions can be counted."""

    def session_of(self, path: Path, head: bytes) -> str | None:
        """Return the `session_id` of the source's rows; None if its first bytes do not show it."""


@runtime_checkable
class OptionalProvider(Provider, Protocol):
    """A provider that an import of all clients leaves out if it has no history, unless the config names the client."""

    @property
    def only_if_found(self) -> bool: ...


@dataclass(frozen=True)
class ExpiryRule:
    """How long a client keeps the file of a session after it was last written."""

    days: int
    setting: str
    """The client's setting that determines it, for people."""


@runtime_checkable
class ExpiringProvider(Provider, Protocol):
    """A provider whose client may delete old sessions automatically."""

    def expiry(self, environment: Environment) -> ExpiryRule | None:
        """Return the rule; None if the client keeps its sessions."""

    def list_sessions(self, environment: Environment) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the file of each session, by names and times alone. What cannot be inspected is left out."""

    def list_parts(self, path: str) -> list[str]:
        """Return the other sources that are deleted together with the file of a session."""


@runtime_checkable
class RelocatingProvider(Provider, Protocol):
    """A provider whose client moves or compresses the files of sessions that it keeps."""

    def is_kept_elsewhere(self, path: str) -> bool:
        """Return whether the client still has the source that is no longer at this path."""


@dataclass(frozen=True)
class ResumeCommand:
    """How a session is continued in its client: a command, followed by an id."""

    words: tuple[str, ...]
    by_thread: bool = False
    """The id is that of the thread, if the session has one."""
    in_folder: bool = False
    """The client finds the session only from its folder."""


class TranscriptWriter(Protocol):
    """Writes recorded sessions in the format of a client. It only builds the files; nothing is written here."""

    def accepts(self, session_id: str) -> bool:
        """Return whether the client can have a session with this id."""

    def find(self, session_id: str, environment: Environment) -> Path | None:
        """Return the transcript of a session if the client has it."""

    def restore(self, session: RecordedSession, environment: Environment) -> Transcript:
        """Return the transcript of a session of this client, with the ids that were recorded."""

    def carry_over(self, session: RecordedSession, session_id: str, environment: Environment) -> Transcript:
        """Return the conversation of a session of another client, as a new session with this id."""


class ClientPart(Generic[T]):
    """A member of a declaration: an object, or `module:name` of one, which is imported when it is first read."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, client: None, owner: type) -> None: ...

    @overload
    def __get__(self, client: object, owner: type) -> T | None: ...

    def __get__(self, client: object | None, owner: type) -> T | None:
        if client is None:
            return None
        value = vars(client)[self._name]
        if isinstance(value, str):
            value = vars(client)[self._name] = resolve_name(value)
        part: T | None = value
        return part

    def __set__(self, client: object, value: T | str | None) -> None:
        vars(client)[self._name] = value


McpRegistration = Callable[[Sequence[str]], "ClientSettings"]
"""Returns the settings that make a client start `hyp` with these arguments as a server of MCP."""


@dataclass(frozen=True)
class Client:
    name: str
    """The name of its program, the `client_name` of its rows, and its section `[clients.<name>]` of the config."""
    about: str
    backfill: ClientPart[Provider] = ClientPart()
    """Imports its history, if it keeps any."""
    resume: ResumeCommand | None = None
    """Continues one of its sessions, if it can."""
    settings: ClientPart[ClientSettings] = ClientPart()
    """Attaches it to the gateway, if it can be attached."""
    traffic: ClientTraffic | None = None
    """How the gateway knows its requests and where it sends them, if it can be attached."""
    requests: ClientPart[RequestReader] = ClientPart()
    """Reads what it states in a request beyond the dialect, if it states anything."""
    mcp: ClientPart[McpRegistration] = ClientPart()
    """Registers `hyp mcp` with it, if it can use servers of MCP."""
    transcripts: ClientPart[TranscriptWriter] = ClientPart()
    """Writes recorded sessions as its transcripts, if it can resume those."""
    service_names: tuple[str, ...] = ()
    """The `service.name` of its own telemetry, if it sends any over OTLP."""


Materialize = Callable[[Any, Provenance, Counter[str]], Iterator["Row"]]
"""(an item's value, its provenance, a counter of parts that make no row, by reason) → rows of the dataset."""
CountTokens = Callable[["Row"], Mapping[str, int]]
"""Returns what one row adds to the summary, for example tokens by kind."""


class InvalidItem(ValueError):
    """The materializer does not accept the value of an item: a bug of the provider, not a problem of the data."""


@dataclass(frozen=True)
class Materializer:
    name: str
    """The kind of items that it accepts, for example `ai_gateway.projected_exchange`."""
    dataset: str
    """The dataset of its rows."""
    materialize: Materialize
    tally: CountTokens | None = None
    rows_are_coerced: bool = False
    """Its rows are already coerced, JSON columns as canonical text, and are not coerced again, which saves a fifth of
    the time of an import. Set it only if a test compares `complete_row` with `coerce_row`."""
