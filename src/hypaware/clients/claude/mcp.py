"""Register `hyp mcp` with Claude Code: the member `mcpServers.hypaware` of `.claude.json`.

That file holds the servers of the user for all projects. Every other byte is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypaware.clients.attach import AttachRecord, Environment, SettingsEdit
from hypaware.clients.claude.history import config_folder
from hypaware.clients.json_text import (
    BOM,
    NotPlainJson,
    add_value,
    find_member,
    find_root,
    list_items,
    parse_json,
    remove_item,
)
from hypaware.clients.mcp_entry import FOREIGN, SERVER, command_line, is_ours, make_entry
from hypaware.clients.settings_file import SettingsRefused, Splice, apply_splices

_KEY = "mcpServers"


class ClaudeMcpSettings:
    name = "claude/mcp"

    def __init__(self, args: Sequence[str]) -> None:
        self._args = args

    def path(self, environment: Environment) -> Path:
        folder = config_folder(environment)
        if (earlier := folder / ".config.json").exists():
            return earlier
        return (folder if environment.get("CLAUDE_CONFIG_DIR") else Path(environment["HOME"])) / ".claude.json"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        entry = {"type": "stdio", **make_entry(self._args, environment)}
        command = command_line(entry)
        assert command is not None
        present = self._servers(text).get(SERVER)
        if present == entry:
            return SettingsEdit((), command)
        if present is not None and not is_ours(present):
            raise SettingsRefused(FOREIGN)
        edits: list[Splice] = []
        if present is not None:
            edits += self._remove(text, created=False)
        if not text.strip(BOM + " \t\r\n"):
            edits.append(Splice(len(text), "", "{\n}\n"))
        created = _KEY not in self._settings(text)
        if created:
            changed = apply_splices(text, edits)
            edits.append(add_value(changed, find_root(changed), {}, _KEY))
        changed = apply_splices(text, edits)
        servers = find_member(changed, find_root(changed), _KEY)
        assert servers is not None
        edits.append(add_value(changed, servers.start, entry, SERVER))
        return SettingsEdit(tuple(edits), command, ours={"created": [_KEY] if created else []})

    def detach(self, text: str, record: AttachRecord | None) -> str:
        if not is_ours(self._servers(text).get(SERVER)):
            return text
        created = record is not None and _KEY in record.ours.get("created", ())
        text = apply_splices(text, self._remove(text, created=created))
        return "" if record and not record.existed and text.strip() == "{}" else text

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        return command_line(self._servers(text).get(SERVER))

    def _remove(self, text: str, *, created: bool) -> list[Splice]:
        """Return the edits that remove our entry, and the object around it if we created it and nothing is left."""
        servers = find_member(text, find_root(text), _KEY)
        assert servers is not None
        edits = [remove_item(text, servers.start, SERVER)]
        if created and len(list_items(text, servers.start)) == 1:
            changed = apply_splices(text, edits)
            edits.append(remove_item(changed, find_root(changed), _KEY))
        return edits

    def _servers(self, text: str) -> dict[str, Any]:
        servers: dict[str, Any] = self._settings(text).get(_KEY, {})
        return servers

    def _settings(self, text: str) -> dict[str, Any]:
        if not text.strip(BOM + " \t\r\n"):
            return {}
        try:
            settings = parse_json(text.removeprefix(BOM))
            if not isinstance(settings, dict) or not isinstance(settings.get(_KEY, {}), dict):
                raise NotPlainJson(f"it is not a JSON object, or its {_KEY} is not one")
            # Refuses duplicate keys.
            for member in list_items(text, find_root(text)):
                if member.name == _KEY:
                    list_items(text, member.start)
        except NotPlainJson as reason:
            raise SettingsRefused(f"cannot edit Claude Code's settings: {reason}. Nothing was written") from None
        return settings
