"""Edit Codex's config.toml as text: change one value, keep every other byte, and check the meaning after each edit."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from hypaware.clients import splice
from hypaware.clients.settings_file import Refused
from hypaware.clients.splice import Splice

BOM = "\ufeff"


def with_value(text: str, path: tuple[str, ...], value: str, expected: Mapping[str, Any]) -> Splice:
    new = edited(text, path, value)
    check(new, expected)
    return splice.between(text, new)


def edited(text: str, path: tuple[str, ...], value: str) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        mark, text = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
        document: Any = tomlkit.parse(text)
        if tomlkit.dumps(document) != text:
            raise Refused("the formatting of Codex's config.toml cannot be preserved. Nothing was written")
        node = document
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value
        return mark + tomlkit.dumps(document)
    except (TOMLKitError, ValueError, KeyError) as error:
        raise Refused(f"cannot edit Codex's config.toml: {error}. Nothing was written") from None


def check(text: str, expected: Mapping[str, Any]) -> None:
    try:
        same = tomllib.loads(text.removeprefix(BOM)) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise Refused(
            "Codex's config.toml cannot be edited without changing other settings "
            "(for example if model_providers is an inline table). Nothing was written"
        )


def parsed(text: str) -> dict[str, Any]:
    try:
        config = tomllib.loads(text.removeprefix(BOM))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise Refused(f"Codex's config.toml is not valid TOML: {error}. Nothing was written") from None
    providers = config.get("model_providers", {})
    if not isinstance(providers, dict) or not all(isinstance(each, dict) for each in providers.values()):
        raise Refused("cannot edit Codex's config.toml: model_providers must contain tables. Nothing was written")
    if not isinstance(config.get("model_provider", ""), str):
        raise Refused("cannot edit Codex's config.toml: model_provider must be text. Nothing was written")
    return config
