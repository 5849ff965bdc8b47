"""The entry of `hyp mcp` in the settings of a client, written and removed by the same steps as an attachment.

The client's package edits its settings (`Client.mcp`). Here is what the entries have in common. A server of this name
that does not run `hyp mcp` belongs to the user and is refused. The record is
`<HYP_HOME>/clients/<client>/mcp/attach.json`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypaware import plugins
from hypaware.clients.attach import ClientSettings, Environment
from hypaware.clients.client import Client
from hypaware.clients.session_hook import find_program

SERVER = "hypaware"
FOREIGN = f"it has a server named {SERVER} that does not run `hyp mcp`. Rename or remove it. Nothing was written"
Entry = dict[str, Any]


def mcp_settings(*, include_local_only: bool = False) -> Mapping[str, ClientSettings]:
    """Return the settings of each client that can be registered, by its name."""
    args = ["mcp", *(["--include-local-only"] if include_local_only else [])]
    found = {}
    for client in plugins.load_declarations(plugins.CLIENTS, Client):
        # A broken part (`hyp plugin list` shows it) must not keep other clients from being registered.
        with suppress(Exception):
            if client.mcp is not None:
                found[client.name] = client.mcp(args)
    return found


def make_entry(args: Sequence[str], environment: Environment) -> Entry:
    chosen = environment.get("HYP_HOME")
    env = {"HYP_HOME": str(Path(chosen).expanduser().absolute())} if chosen else {}
    return {"command": find_program(), "args": list(args), "env": env}


def is_ours(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    command, args = entry.get("command"), entry.get("args")
    return isinstance(command, str) and Path(command).name == "hyp" and isinstance(args, list) and args[:1] == ["mcp"]


def command_line(entry: Any) -> str | None:
    """Return the command of our entry as a person would type it."""
    if not is_ours(entry):
        return None
    env = entry.get("env") if isinstance(entry.get("env"), dict) else {}
    words = [f"{name}={value}" for name, value in env.items()]
    return shlex.join([*words, entry["command"], *map(str, entry["args"])])
