"""What was chosen for a set-up, by flags or by answers. What was not chosen stays as the config says."""

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
    """Where rows go besides this machine's lake."""

    kind: ExportKind
    place: str = ""
    """A server's address; a folder, or nothing for the usual one."""
    token_file: str = ""


@dataclass(frozen=True)
class Choices:
    clients: tuple[str, ...] | None = None
    """None: those that are installed, unless the config leaves them out."""
    export: Export | None = None
    retention_days: int | None = None
    imports: bool = True
    """The user's word that history may be imported."""
    daemon: bool = True
    attach: bool = True
    force: bool = False
    """What the config says may be changed."""
    interactive: bool = False

    @property
    def attaches(self) -> bool:
        """Without a daemon nothing would listen."""
        return self.daemon and self.attach


def export_of(kind: str | None, place: str | None, token_file: str | None) -> Export | None:
    """From `--export KIND [PLACE]` and `--token-file`; raises UsageError for what does not go together."""
    if kind is None:
        if place is not None:
            raise UsageError(f"{place!r} is the place of an export: write --export server {place}")
        if token_file is not None:
            raise UsageError("--token-file belongs to --export server URL")
        return None
    if token_file is not None and kind != "server":
        raise UsageError(f"--export {kind} needs no token: --token-file belongs to --export server URL")
    if kind == "server":
        return to_server(place, token_file)
    if kind == "local-parquet":
        return to_folder(place)
    if place is not None:
        raise UsageError(f"--export keep-local goes nowhere, so {place!r} has no meaning")
    return Export("keep-local")


def to_server(url: str | None, token_file: str | None = None) -> Export:
    if not url:
        raise UsageError("--export server needs the server's address: --export server https://host.example")
    try:
        address = SERVER_URL.read(url)
    except ValueError as error:
        reason = f" ({error})" if str(error) else ""
        raise UsageError(
            f"{url!r} is no server{reason}: expected {SERVER_URL.expected}, such as {SERVER_URL.example}"
        ) from None
    return Export("server", address, _whole(token_file) if token_file else "")


def to_folder(folder: str | None) -> Export:
    if folder and "://" in folder:
        raise UsageError(
            f"{folder!r} is no folder of this machine; an object store is declared as a sink",
            repair=f'hyp config set sinks.archive \'{{ kind = "blob", destination = "{folder}" }}\'',
        )
    return Export("local-parquet", _whole(folder) if folder else "")


def _whole(path: str) -> str:
    """As seen from where the user is; the daemon is somewhere else."""
    return str(Path(path).expanduser().absolute())
