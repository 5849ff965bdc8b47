"""The user's choices for a setup, from options or answers. Anything not chosen stays as configured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hypaware.config.values import SERVER_URL
from hypaware.errors import UsageError

ExportKind = Literal["keep-local", "local-parquet", "server"]
EXPORTS: tuple[ExportKind, ...] = get_args(ExportKind)


@dataclass(frozen=True)
class Export:
    """Where to deliver rows besides the local lake."""

    kind: ExportKind
    place: str = ""
    """The address of a server, or a folder; "" means the default folder."""
    token_file: str = ""


@dataclass(frozen=True)
class Choices:
    clients: tuple[str, ...] | None = None
    """None means all installed clients that the config does not disable."""
    export: Export | None = None
    retention_days: int | None = None
    imports: bool = True
    """Whether the user allows the import of history."""
    daemon: bool = True
    attach: bool = True
    force: bool = False
    """Whether existing settings of the config may be changed."""
    interactive: bool = False

    @property
    def attaches(self) -> bool:
        """Return whether to attach clients: without a daemon there is no gateway."""
        return self.daemon and self.attach


def export_of(kind: str | None, place: str | None, token_file: str | None) -> Export | None:
    """Build an Export from `--export KIND [PLACE]` and `--token-file`. Raise UsageError if they do not fit."""
    if kind is None:
        if place is not None:
            raise UsageError(f"unexpected argument {place!r}; did you mean --export server {place}?")
        if token_file is not None:
            raise UsageError("--token-file requires --export server URL")
        return None
    if token_file is not None and kind != "server":
        raise UsageError(f"--export {kind} takes no token; --token-file requires --export server URL")
    if kind == "server":
        return to_server(place, token_file)
    if kind == "local-parquet":
        return to_folder(place)
    if place is not None:
        raise UsageError(f"--export keep-local takes no destination: {place!r}")
    return Export("keep-local")


def to_server(url: str | None, token_file: str | None = None) -> Export:
    if not url:
        raise UsageError("--export server requires an address: --export server https://host.example")
    try:
        address = SERVER_URL.read(url)
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(
            f"{url!r} is not a server address{reason}: expected {SERVER_URL.expected}, such as {SERVER_URL.example}"
        ) from None
    return Export("server", address, _absolute(token_file) if token_file else "")


def to_folder(folder: str | None) -> Export:
    if folder and "://" in folder:
        raise UsageError(
            f"{folder!r} is not a local folder; configure an object store as a sink instead",
            repair=f'hyp config set sinks.archive \'{{ kind = "blob", destination = "{folder}" }}\'',
        )
    return Export("local-parquet", _absolute(folder) if folder else "")


def _absolute(path: str) -> str:
    """Resolve the path here, because the daemon has another working directory."""
    return str(Path(path).expanduser().absolute())
