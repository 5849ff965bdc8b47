"""The inputs of a setup (the user's choices, the machine), its steps, and the listener that follows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from hypaware.clients.attach import ClientSettings
from hypaware.config.values import SERVER_URL
from hypaware.engine.jobs import OnEvent, ignore_events
from hypaware.errors import HypError, UsageError
from hypaware.home import Home
from hypaware.setup.discovery import FoundClient

ExportKind = Literal["keep-local", "local-parquet", "server"]
StepStatus = Literal["done", "would", "unchanged", "skipped", "failed"]
EXPORTS: tuple[ExportKind, ...] = get_args(ExportKind)


@dataclass(frozen=True)
class ExportChoice:
    """A destination of rows in addition to the local lake."""

    kind: ExportKind
    place: str = ""
    """The address of a server, or a folder; "" means the default folder."""
    token_file: str = ""


@dataclass(frozen=True)
class SetupChoices:
    """What the user chose, by options or by answers. Anything not chosen stays as configured."""

    clients: tuple[str, ...] | None = None
    """None means all installed clients that the config does not disable."""
    export: ExportChoice | None = None
    retention_days: int | None = None
    imports: bool = True
    """Whether the user allows the import of history."""
    daemon: bool = True
    attach: bool = False
    """Whether clients are sent through the gateway. A client that is attached stays attached."""
    force: bool = False
    """Whether existing settings of the config may be changed."""
    interactive: bool = False


def parse_export(kind: str | None, place: str | None, token_file: str | None) -> ExportChoice | None:
    """Build an ExportChoice from `--export KIND [PLACE]` and `--token-file`. Raise UsageError if they do not fit."""
    if kind is None:
        if place is not None:
            raise UsageError(f"unexpected argument {place!r}; did you mean --export server {place}?")
        if token_file is not None:
            raise UsageError("--token-file requires --export server URL")
        return None
    if token_file is not None and kind != "server":
        raise UsageError(f"--export {kind} takes no token; --token-file requires --export server URL")
    if kind == "server":
        return server_export(place, token_file)
    if kind == "local-parquet":
        return folder_export(place)
    if place is not None:
        raise UsageError(f"--export keep-local takes no destination: {place!r}")
    return ExportChoice("keep-local")


def server_export(url: str | None, token_file: str | None = None) -> ExportChoice:
    if not url:
        raise UsageError("--export server requires an address: --export server https://host.example")
    try:
        address = SERVER_URL.read(url)
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(
            f"{url!r} is not a server address{reason}: expected {SERVER_URL.expected}, such as {SERVER_URL.example}"
        ) from None
    return ExportChoice("server", address, _absolute(token_file) if token_file else "")


def folder_export(folder: str | None) -> ExportChoice:
    if folder and "://" in folder:
        raise UsageError(
            f"{folder!r} is not a local folder; configure an object store as a sink instead",
            repair=f'hyp config set sinks.archive \'{{ kind = "blob", destination = "{folder}" }}\'',
        )
    return ExportChoice("local-parquet", _absolute(folder) if folder else "")


def _absolute(path: str) -> str:
    """Resolve the path here, because the daemon has another working directory."""
    return str(Path(path).expanduser().absolute())


@dataclass(frozen=True)
class SetupPlan:
    home: Home
    cache: Path
    """The folder of the engine's jars."""
    choices: SetupChoices
    found: Sequence[FoundClient]
    variables: Mapping[str, str]
    """The user's environment, including HOME."""
    now: datetime
    """The start time. The import ends here; later messages are recorded by the daemon."""

    def settings(self, clients: Sequence[str]) -> list[ClientSettings]:
        """Return the settings of those clients that can be attached."""
        return [
            each.client.settings for each in self.found if each.name in clients and each.client.settings is not None
        ]


@dataclass(frozen=True)
class SetupStep:
    name: str
    status: StepStatus
    message: str
    """One line: the result, or the reason why the step was skipped."""
    commands: tuple[str, ...] = ()
    """Commands that do the step later."""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: HypError | None = None

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "step": self.name,
            "status": self.status,
            "said": self.message,
            "notes": list(self.notes),
            **self.facts,
        }
        if self.commands:
            document["later"] = list(self.commands)
        if self.error:
            document["error"] = self.error.as_json()
        return document


ReportProgress = Callable[..., None]
"""Takes a message, the amount done, the total, and more facts by name."""


@dataclass(frozen=True)
class SetupListener:
    step: Callable[[SetupStep], None] = lambda _: None
    progress: ReportProgress = lambda *_, **__: None
    event: OnEvent = ignore_events
