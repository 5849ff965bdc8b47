"""The entry of `hyp mcp` in the settings of a client, written and removed by the same steps as an attachment.

Claude Code: the member `mcpServers.hypaware` of `.claude.json`, which holds the servers of the user for all projects.
Codex: the table `[mcp_servers.hypaware]` at the end of `config.toml`, between two comments. Every other byte is kept.
A server of this name that does not run `hyp mcp` belongs to the user and is refused. The record is
`<HYP_HOME>/clients/<client>/mcp/attach.json`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypaware.clients.attach import AttachRecord, ClientSettings, Environment, SettingsEdit
from hypaware.clients.claude.history import config_folder
from hypaware.clients.codex.attach import check_meaning, codex_home, parse_config
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
from hypaware.clients.session_hook import find_program
from hypaware.clients.settings_file import SettingsRefused, Splice, apply_splices

SERVER = "hypaware"
_CLAUDE_KEY, _CODEX_KEY = "mcpServers", "mcp_servers"
_OPEN = "# >>> hypaware mcp: agents can search recorded sessions; `hyp mcp install codex --uninstall` takes this out"
_CLOSE = "# <<< hypaware mcp"
_BLOCK = re.compile(rf"(?:\r?\n)?^{re.escape(_OPEN)}\r?\n.*?^{re.escape(_CLOSE)}(?:\r?\n|\Z)", re.MULTILINE | re.DOTALL)
_FOREIGN = f"it has a server named {SERVER} that does not run `hyp mcp`. Rename or remove it. Nothing was written"
Entry = dict[str, Any]


def mcp_settings(*, include_local_only: bool = False) -> Mapping[str, ClientSettings]:
    """Return the settings of each client that can be registered, by its name."""
    args = ["mcp", *(["--include-local-only"] if include_local_only else [])]
    return {"claude": ClaudeMcpSettings(args), "codex": CodexMcpSettings(args)}


def _make_entry(args: list[str], environment: Environment) -> Entry:
    chosen = environment.get("HYP_HOME")
    env = {"HYP_HOME": str(Path(chosen).expanduser().absolute())} if chosen else {}
    return {"command": find_program(), "args": args, "env": env}


def _is_ours(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    command, args = entry.get("command"), entry.get("args")
    return isinstance(command, str) and Path(command).name == "hyp" and isinstance(args, list) and args[:1] == ["mcp"]


def _command_line(entry: Any) -> str | None:
    """Return the command of our entry as a person would type it."""
    if not _is_ours(entry):
        return None
    env = entry.get("env") if isinstance(entry.get("env"), dict) else {}
    words = [f"{name}={value}" for name, value in env.items()]
    return shlex.join([*words, entry["command"], *map(str, entry["args"])])


class ClaudeMcpSettings:
    name = "claude/mcp"

    def __init__(self, args: list[str]) -> None:
        self._args = args

    def path(self, environment: Environment) -> Path:
        folder = config_folder(environment)
        if (earlier := folder / ".config.json").exists():
            return earlier
        return (folder if environment.get("CLAUDE_CONFIG_DIR") else Path(environment["HOME"])) / ".claude.json"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        entry = {"type": "stdio", **_make_entry(self._args, environment)}
        command = _command_line(entry)
        assert command is not None
        present = self._servers(text).get(SERVER)
        if present == entry:
            return SettingsEdit((), command)
        if present is not None and not _is_ours(present):
            raise SettingsRefused(_FOREIGN)
        edits: list[Splice] = []
        if present is not None:
            edits += self._remove(text, created=False)
        if not text.strip(BOM + " \t\r\n"):
            edits.append(Splice(len(text), "", "{\n}\n"))
        created = _CLAUDE_KEY not in self._settings(text)
        if created:
            changed = apply_splices(text, edits)
            edits.append(add_value(changed, find_root(changed), {}, _CLAUDE_KEY))
        changed = apply_splices(text, edits)
        servers = find_member(changed, find_root(changed), _CLAUDE_KEY)
        assert servers is not None
        edits.append(add_value(changed, servers.start, entry, SERVER))
        return SettingsEdit(tuple(edits), command, ours={"created": [_CLAUDE_KEY] if created else []})

    def detach(self, text: str, record: AttachRecord | None) -> str:
        if not _is_ours(self._servers(text).get(SERVER)):
            return text
        created = record is not None and _CLAUDE_KEY in record.ours.get("created", ())
        text = apply_splices(text, self._remove(text, created=created))
        return "" if record and not record.existed and text.strip() == "{}" else text

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        return _command_line(self._servers(text).get(SERVER))

    def _remove(self, text: str, *, created: bool) -> list[Splice]:
        """Return the edits that remove our entry, and the object around it if we created it and nothing is left."""
        servers = find_member(text, find_root(text), _CLAUDE_KEY)
        assert servers is not None
        edits = [remove_item(text, servers.start, SERVER)]
        if created and len(list_items(text, servers.start)) == 1:
            changed = apply_splices(text, edits)
            edits.append(remove_item(changed, find_root(changed), _CLAUDE_KEY))
        return edits

    def _servers(self, text: str) -> dict[str, Any]:
        servers: dict[str, Any] = self._settings(text).get(_CLAUDE_KEY, {})
        return servers

    def _settings(self, text: str) -> dict[str, Any]:
        if not text.strip(BOM + " \t\r\n"):
            return {}
        try:
            settings = parse_json(text.removeprefix(BOM))
            if not isinstance(settings, dict) or not isinstance(settings.get(_CLAUDE_KEY, {}), dict):
                raise NotPlainJson(f"it is not a JSON object, or its {_CLAUDE_KEY} is not one")
            # Refuses duplicate keys.
            for member in list_items(text, find_root(text)):
                if member.name == _CLAUDE_KEY:
                    list_items(text, member.start)
        except NotPlainJson as reason:
            raise SettingsRefused(f"cannot edit Claude Code's settings: {reason}. Nothing was written") from None
        return settings


class CodexMcpSettings:
    name = "codex/mcp"

    def __init__(self, args: list[str]) -> None:
        self._args = args

    def path(self, environment: Environment) -> Path:
        return codex_home(environment) / "config.toml"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        entry = _make_entry(self._args, environment)
        if not entry["env"]:
            del entry["env"]
        command = _command_line(entry)
        assert command is not None
        present = _codex_servers(text).get(SERVER)
        if present == entry:
            return SettingsEdit((), command)
        if present is not None and not _is_ours(present):
            raise SettingsRefused(_FOREIGN)
        plain = self.detach(text, None)
        edits = [Splice(0, text, plain)] if plain != text else []
        end = "\r\n" if "\r\n" in text else "\n"
        gap = "" if not plain.strip(BOM) else end if plain.endswith("\n") else end * 2
        lines = (_OPEN, f"[{_CODEX_KEY}.{SERVER}]", *(f"{key} = {_to_toml(entry[key])}" for key in entry), _CLOSE)
        block = Splice(len(plain), "", gap + "".join(line + end for line in lines))
        expected = deepcopy(parse_config(plain))
        expected.setdefault(_CODEX_KEY, {})[SERVER] = entry
        check_meaning(apply_splices(plain, [block]), expected)
        return SettingsEdit((*edits, block), command)

    def detach(self, text: str, record: AttachRecord | None) -> str:
        config = parse_config(text)
        servers = _codex_servers(text)
        if not _is_ours(servers.get(SERVER)):
            return text
        expected = deepcopy(config)
        del expected[_CODEX_KEY][SERVER]
        without_block = _BLOCK.sub("", text, count=1)
        for plain in (without_block, _without_table(text)):
            if _same_meaning(parse_config(plain), expected):
                return "" if record and not record.existed and not plain.strip() else plain
        raise SettingsRefused("the server cannot be removed from Codex's config.toml without changing other settings")

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        return _command_line(_codex_servers(text).get(SERVER))


def _codex_servers(text: str) -> dict[str, Any]:
    servers = parse_config(text).get(_CODEX_KEY, {})
    if not isinstance(servers, dict):
        raise SettingsRefused(f"cannot edit Codex's config.toml: {_CODEX_KEY} is not a table. Nothing was written")
    return servers


def _same_meaning(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Compare two configs; having no servers is the same as an empty table of them."""
    return {_CODEX_KEY: {}, **left} == {_CODEX_KEY: {}, **right}


def _without_table(text: str) -> str:
    """Remove our table from a file in which it was moved or rewritten, and the comments around it."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    mark, body = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    try:
        document: Any = tomlkit.parse(body)
        del document[_CODEX_KEY][SERVER]
        body = tomlkit.dumps(document)
    except (TOMLKitError, KeyError, ValueError) as error:
        raise SettingsRefused(f"cannot edit Codex's config.toml: {error}. Nothing was written") from None
    return mark + "".join(line for line in body.splitlines(keepends=True) if line.strip() not in (_OPEN, _CLOSE))


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_to_toml(each)}" for key, each in value.items()) + " }"
    # Strings and lists of strings are written in TOML as in JSON, except that DEL must be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
