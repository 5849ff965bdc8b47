"""Find an installation of the JavaScript original on this machine: its cache, daemon, gateway and client settings.

The original uses `~/.hyp` as well, or HYP_HOME:

    <root>/hypaware/cache/datasets/       its rows
    <root>/hypaware/run/hypaware.pid      {"pid": …}
    <root>/hypaware/run/status.json       {"sources": [{"details": {"host", "port"}}, …]}
    ~/.config/systemd/user/hypaware.service, ~/Library/LaunchAgents/com.hyperparam.hypaware.plist

In Claude Code's `settings.json` it leaves the object `_hypaware`, in Codex's `config.toml` a block between comments.
Only a few small files are read, and the only connection is to the port on this machine that its daemon names.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypaware.clients import settings_file
from hypaware.clients.settings_file import SettingsRefused
from hypaware.home.locks import PROCESSES

IMPORT_PROVIDER = "import-cache"
"""The provider of the checkpoints that `hyp import-cache` writes."""
CLIENTS = ("claude", "codex")
"""The clients whose settings it changes, of those that this program knows."""
KINDS = ("original_client", "original_daemon", "original_port", "original_cache")
_PROGRAM = "npx hypaware"
_CONNECT_SECONDS = 0.3
_MAX_BYTES = 4 << 20
_CODEX_BLOCK = "# BEGIN hypaware codex "
_SERVICE_COMMAND = b"--foreground"
_SERVICES = (".config/systemd/user/hypaware.service", "Library/LaunchAgents/com.hyperparam.hypaware.plist")

Environment = Mapping[str, str]


@dataclass(frozen=True)
class OriginalBlock:
    """The original's settings in those of a client."""

    client: str
    path: Path
    routes: bool
    """Whether the client sends its requests through the original; otherwise it only reports to it."""

    @property
    def detach(self) -> str:
        # Older versions have no `client detach`; newer ones accept this form too.
        return f"{_PROGRAM} detach {self.client}"


@dataclass(frozen=True)
class OriginalInstall:
    root: Path
    cache: Path | None = None
    pid: int | None = None
    """Its daemon, if it is running."""
    service: Path | None = None
    """The file with which systemd or launchd starts its daemon."""
    listen: str | None = None
    """The address on which its gateway accepts connections."""
    blocks: tuple[OriginalBlock, ...] = ()


@dataclass(frozen=True)
class OriginalFinding:
    kind: str
    message: str
    repair: str
    urgent: bool = False
    """Whether something does not work until the command is run."""


def find_original(home: Path, environment: Environment, clients: Mapping[str, Path]) -> OriginalInstall:
    """Find the installation in `~/.hyp` or in this home.

    Args:
        home: the root of this home.
        environment: the user's variables, including HOME.
        clients: the settings file of each client, by name.
    """
    user = Path(environment["HOME"])
    roots = dict.fromkeys((user / ".hyp", home))
    root = next((each for each in roots if (each / "hypaware").is_dir()), user / ".hyp")
    cache = root / "hypaware" / "cache"
    pid = _running_daemon(root)
    return OriginalInstall(
        root=root,
        cache=cache if _has_entries(cache / "datasets") else None,
        pid=pid,
        service=next((path for each in _SERVICES if _is_service(path := user / each)), None),
        listen=_listening_address(root) if pid else None,
        blocks=tuple(found for name, path in clients.items() if (found := find_block(name, path))),
    )


def list_findings(
    original: OriginalInstall,
    environment: Environment,
    *,
    is_imported: bool,
    listen: str,
    find_free_address: Callable[[str], str],
) -> Iterator[OriginalFinding]:
    """Yield what the user has to know, each with one command, in the order in which to run them.

    Args:
        is_imported: whether a cache of the original was imported into this home.
        listen: the address of this home's gateway.
        find_free_address: returns another address that this home's gateway can use.
    """
    chosen = environment.get("HYP_HOME")
    is_elsewhere = bool(chosen) and Path(chosen or "").expanduser().absolute() != original.root
    prefix = f"HYP_HOME={shlex.quote(str(original.root))} " if is_elsewhere else ""
    for block in original.blocks:
        what = "sends its requests through" if block.routes else "reports to"
        message = f"{block.client} {what} the JavaScript HypAware ({block.path})"
        broken = block.routes and original.pid is None
        if broken:
            message += f", which is not running: {block.client} may not work"
        yield OriginalFinding("original_client", message, prefix + block.detach, urgent=broken)
    if original.pid or original.service:
        running = f"is running as process {original.pid}" if original.pid else "is not running"
        started = f" and is started by {original.service}" if original.service else ""
        message = f"the daemon of the JavaScript HypAware {running}{started}; it records the same sessions"
        verb = "uninstall" if original.service else "stop"
        yield OriginalFinding("original_daemon", message, f"{prefix}{_PROGRAM} daemon {verb}")
    if original.listen and _port(original.listen) == _port(listen):
        message = (
            f"the JavaScript HypAware listens on {original.listen}, the address of this home's gateway; stop it, or "
            "use another address here"
        )
        command = f"hyp config set gateway.listen {find_free_address(listen)}"
        yield OriginalFinding("original_port", message, command, urgent=True)
    if original.cache and not is_imported:
        running = "; stop its daemon first" if original.pid else ""
        message = f"{original.cache} holds rows of the JavaScript HypAware that are not imported{running}"
        yield OriginalFinding("original_cache", message, f"hyp import-cache {shlex.quote(str(original.cache))}")


def find_block(client: str, path: Path) -> OriginalBlock | None:
    """Return the original's settings in this file; None if it has none or cannot be read."""
    try:
        text = settings_file.read_settings(path).text
    except SettingsRefused:
        return None
    return find_block_in_text(client, path, text)


def find_block_in_text(client: str, path: Path, text: str) -> OriginalBlock | None:
    if client == "codex":
        has_block = any(line.startswith(_CODEX_BLOCK) for line in text.splitlines())
        return OriginalBlock(client, path, routes=True) if has_block else None
    if client != "claude" or '"_hypaware"' not in text:
        return None
    with suppress(ValueError, RecursionError):
        settings = json.loads(text.removeprefix("\ufeff"))
        marker = settings.get("_hypaware") if isinstance(settings, dict) else None
        if isinstance(marker, dict):
            return OriginalBlock(client, path, routes=marker.get("mode") != "otel")
    return None


def _running_daemon(root: Path) -> int | None:
    pid = _read_json(root / "hypaware" / "run" / "hypaware.pid").get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0:
        return None
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return None
    if not (PROCESSES / "self").exists():
        return pid
    # Another process may have got the pid since.
    command = _read_head(PROCESSES / str(pid) / "cmdline").split(b"\0")
    return pid if any(b"hyp" in word for word in command) and b"daemon" in command else None


def _listening_address(root: Path) -> str | None:
    """Return the gateway's address in the daemon's status file, if something accepts connections there."""
    sources = _read_json(root / "hypaware" / "run" / "status.json").get("sources")
    for each in sources if isinstance(sources, list) else ():
        details = each.get("details") if isinstance(each, dict) else None
        if not isinstance(details, dict) or not isinstance(port := details.get("port"), int) or not 0 < port < 65536:
            continue
        host = details.get("host")
        # It only ever listens on this machine; never connect to another one because a file says so.
        address = host if host in ("127.0.0.1", "::1", "localhost") else "127.0.0.1"
        with suppress(OSError):
            socket.create_connection((address, port), timeout=_CONNECT_SECONDS).close()
            return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    return None


def _is_service(path: Path) -> bool:
    """Return whether a service file is the original's: on Linux, ours may have the same name."""
    return _SERVICE_COMMAND in _read_head(path)


def _port(listen: str) -> str:
    return listen.rpartition(":")[2]


def _has_entries(folder: Path) -> bool:
    with suppress(OSError), os.scandir(folder) as entries:
        return any(entries)
    return False


def _read_json(path: Path) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(_read_head(path))
        if isinstance(found, dict):
            return found
    return {}


def _read_head(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_MAX_BYTES)
    return b""
