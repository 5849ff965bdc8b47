"""Register `hyp mcp` with Codex: the table `[mcp_servers.hypaware]` at the end of `config.toml`, between two comments.

Every other byte is kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypaware.clients.attach import AttachRecord, Environment, SettingsEdit
from hypaware.clients.codex.attach import BOM, check_meaning, codex_home, parse_config
from hypaware.clients.mcp_entry import FOREIGN, SERVER, command_line, is_ours, make_entry
from hypaware.clients.settings_file import SettingsRefused, Splice, apply_splices

_KEY = "mcp_servers"
_OPEN = "# >>> hypaware mcp: agents can search recorded sessions; `hyp mcp install codex --uninstall` takes this out"
_CLOSE = "# <<< hypaware mcp"
_BLOCK = re.compile(rf"(?:\r?\n)?^{re.escape(_OPEN)}\r?\n.*?^{re.escape(_CLOSE)}(?:\r?\n|\Z)", re.MULTILINE | re.DOTALL)


class CodexMcpSettings:
    name = "codex/mcp"

    def __init__(self, args: Sequence[str]) -> None:
        self._args = args

    def path(self, environment: Environment) -> Path:
        return codex_home(environment) / "config.toml"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        entry = make_entry(self._args, environment)
        if not entry["env"]:
            del entry["env"]
        command = command_line(entry)
        assert command is not None
        present = _codex_servers(text).get(SERVER)
        if present == entry:
            return SettingsEdit((), command)
        if present is not None and not is_ours(present):
            raise SettingsRefused(FOREIGN)
        plain = self.detach(text, None)
        edits = [Splice(0, text, plain)] if plain != text else []
        end = "\r\n" if "\r\n" in text else "\n"
        gap = "" if not plain.strip(BOM) else end if plain.endswith("\n") else end * 2
        lines = (_OPEN, f"[{_KEY}.{SERVER}]", *(f"{key} = {_to_toml(entry[key])}" for key in entry), _CLOSE)
        block = Splice(len(plain), "", gap + "".join(line + end for line in lines))
        expected = deepcopy(parse_config(plain))
        expected.setdefault(_KEY, {})[SERVER] = entry
        check_meaning(apply_splices(plain, [block]), expected)
        return SettingsEdit((*edits, block), command)

    def detach(self, text: str, record: AttachRecord | None) -> str:
        config = parse_config(text)
        servers = _codex_servers(text)
        if not is_ours(servers.get(SERVER)):
            return text
        expected = deepcopy(config)
        del expected[_KEY][SERVER]
        without_block = _BLOCK.sub("", text, count=1)
        for plain in (without_block, _without_table(text)):
            if _same_meaning(parse_config(plain), expected):
                return "" if record and not record.existed and not plain.strip() else plain
        raise SettingsRefused("the server cannot be removed from Codex's config.toml without changing other settings")

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        return command_line(_codex_servers(text).get(SERVER))


def _codex_servers(text: str) -> dict[str, Any]:
    servers = parse_config(text).get(_KEY, {})
    if not isinstance(servers, dict):
        raise SettingsRefused(f"cannot edit Codex's config.toml: {_KEY} is not a table. Nothing was written")
    return servers


def _same_meaning(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Compare two configs; having no servers is the same as an empty table of them."""
    return {_KEY: {}, **left} == {_KEY: {}, **right}


def _without_table(text: str) -> str:
    """Remove our table from a file in which it was moved or rewritten, and the comments around it."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    mark, body = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
    try:
        document: Any = tomlkit.parse(body)
        del document[_KEY][SERVER]
        body = tomlkit.dumps(document)
    except (TOMLKitError, KeyError, ValueError) as error:
        raise SettingsRefused(f"cannot edit Codex's config.toml: {error}. Nothing was written") from None
    return mark + "".join(line for line in body.splitlines(keepends=True) if line.strip() not in (_OPEN, _CLOSE))


def _to_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_to_toml(each)}" for key, each in value.items()) + " }"
    # Strings and lists of strings are written in TOML as in JSON, except that DEL must be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
