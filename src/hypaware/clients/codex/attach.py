"""Attach Codex: a provider entry in its `config.toml`, in blocks between two comments.

    # >>> hypaware …
    model_provider = "hypaware"
    # <<< hypaware

This block is at the top, because a key after a table header would belong to that table; the provider's table is at
the end. If the user has chosen their own provider, it is kept and only its base_url changes, so that its key, headers
and dialect stay; the previous base_url becomes the gateway's upstream. Every other byte of the file is kept, and an
edit that would change the meaning of anything else is refused.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hypaware.clients import settings_file
from hypaware.clients.attach import (
    CODEX_BASE,
    CODEX_CHATGPT_BASE,
    AttachRecord,
    Environment,
    PreviousUpstream,
    SettingsEdit,
)
from hypaware.clients.settings_file import SettingsRefused, Splice

BOM = "\ufeff"
PROVIDER = "hypaware"
_OPEN = "# >>> hypaware: requests go through the gateway on this machine; `hyp client detach codex` takes this out"
_CLOSE = "# <<< hypaware"
_BUILT_IN = "openai"
_OUR_PATH = "|".join(map(re.escape, (CODEX_BASE, CODEX_CHATGPT_BASE)))
_OUR_URL = re.compile(rf"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+(?:{_OUR_PATH})")


class CodexSettings:
    name = "codex"

    def path(self, environment: Environment) -> Path:
        return codex_home(environment) / "config.toml"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        config = parse_config(text)
        chosen = config.get("model_provider", _BUILT_IN)
        notes = tuple(_notes(config, chosen))
        if chosen not in (_BUILT_IN, PROVIDER):
            return self._through_their_provider(text, config, str(chosen), gateway, notes)
        chatgpt = _is_chatgpt_login(environment)
        prefix = CODEX_CHATGPT_BASE if chatgpt else CODEX_BASE
        base_url = gateway + prefix
        if config.get("model_providers", {}).get(PROVIDER) == _provider_table(base_url) and chosen == PROVIDER:
            return SettingsEdit((), base_url, notes=notes)
        if PROVIDER in config.get("model_providers", {}):
            raise SettingsRefused(
                f"Codex's config.toml already has another provider named {PROVIDER!r}. Nothing was written"
            )
        edits = tuple(_make_splices(text, config, base_url))
        expected = deepcopy(config)
        expected["model_provider"] = PROVIDER
        expected.setdefault("model_providers", {})[PROVIDER] = _provider_table(base_url)
        check_meaning(settings_file.apply_splices(text, edits), expected)
        own = None if chatgpt else config.get("openai_base_url") or environment.get("OPENAI_BASE_URL")
        own = own.rstrip("/") if own else None
        return SettingsEdit(
            splices=edits,
            base_url=base_url,
            ours={"base_urls": [base_url]},
            before={"model_provider": config.get("model_provider")},
            upstream=PreviousUpstream(prefix, own) if own and not _OUR_URL.fullmatch(own) else None,
            notes=notes,
        )

    def _through_their_provider(
        self, text: str, config: Mapping[str, Any], chosen: str, gateway: str, notes: tuple[str, ...]
    ) -> SettingsEdit:
        theirs = config.get("model_providers", {}).get(chosen, {}).get("base_url")
        base_url = gateway + CODEX_BASE
        if not isinstance(theirs, str):
            raise SettingsRefused(
                f"Codex uses the provider {chosen!r}, for which config.toml has no base_url to change. "
                "Nothing was written"
            )
        if theirs == base_url:
            return SettingsEdit((), base_url, notes=notes)
        expected = deepcopy(dict(config))
        expected["model_providers"][chosen]["base_url"] = base_url
        edit = edit_value(text, ("model_providers", chosen, "base_url"), base_url, expected)
        return SettingsEdit(
            splices=(edit,),
            base_url=base_url,
            ours={"base_urls": [base_url]},
            before={"provider": chosen, "base_url": theirs},
            upstream=PreviousUpstream(CODEX_BASE, theirs.rstrip("/")),
            notes=notes,
        )

    def detach(self, text: str, record: AttachRecord | None) -> str:
        config = parse_config(text)
        before: Mapping[str, Any] = record.before if record else {}
        if record and (chosen := before.get("provider")) is not None:
            theirs = config.get("model_providers", {}).get(chosen, {})
            if theirs.get("base_url") not in record.ours.get("base_urls", ()):
                return text
            theirs["base_url"] = str(before["base_url"])
            edit = edit_value(text, ("model_providers", str(chosen), "base_url"), theirs["base_url"], config)
            return settings_file.apply_splices(text, [edit])
        if PROVIDER not in config.get("model_providers", {}) and config.get("model_provider") != PROVIDER:
            return text
        expected = deepcopy(config)
        text = _without_blocks(text, record)
        if expected.get("model_provider") == PROVIDER:
            if (earlier := before.get("model_provider")) is None:
                del expected["model_provider"]
            else:
                expected["model_provider"] = earlier
                if parse_config(text).get("model_provider") == PROVIDER:
                    text = set_value(text, ("model_provider",), earlier)
        providers = expected.get("model_providers", {})
        ours = providers.pop(PROVIDER, {})
        url, our_urls = ours.get("base_url"), record.ours.get("base_urls", ()) if record else ()
        is_our_url = url in our_urls or _OUR_URL.fullmatch(str(url)) is not None
        written = _provider_table(url if is_our_url else None)
        remaining = {key: value for key, value in ours.items() if written.get(key) != value}
        if remaining:
            providers[PROVIDER] = remaining
        if not providers and "model_providers" in expected:
            del expected["model_providers"]
        return _without_the_rest(text, expected)

    def base_url(self, text: str) -> str | None:
        config = parse_config(text)
        chosen = config.get("model_provider", _BUILT_IN)
        found = config.get("model_providers", {}).get(chosen, {}).get("base_url") or config.get("openai_base_url")
        return found if isinstance(found, str) else None


def codex_home(environment: Environment) -> Path:
    return Path(environment.get("CODEX_HOME") or Path(environment["HOME"]) / ".codex")


def _provider_table(base_url: str | None) -> dict[str, Any]:
    return {
        "name": "OpenAI through HypAware",
        "base_url": base_url,
        "requires_openai_auth": True,
        "wire_api": "responses",
        "supports_websockets": False,
    }


def _make_splices(text: str, config: Mapping[str, Any], base_url: str) -> Iterator[Splice]:
    end = "\r\n" if "\r\n" in text else "\n"
    if "model_provider" in config:
        top = edit_value(text, ("model_provider",), PROVIDER, {**config, "model_provider": PROVIDER})
    else:
        block = (_OPEN, f'model_provider = "{PROVIDER}"', _CLOSE)
        top = Splice(len(BOM) if text.startswith(BOM) else 0, "", "".join(line + end for line in block))
    yield top
    text = settings_file.apply_splices(text, [top])
    settings = (f"{key} = {json.dumps(value)}" for key, value in _provider_table(base_url).items())
    lines = (_OPEN, f"[model_providers.{PROVIDER}]", *settings, _CLOSE)
    begin = "" if not text or text.endswith("\n") else end
    yield Splice(len(text), "", begin + "".join(line + end for line in lines))


def _without_blocks(text: str, record: AttachRecord | None) -> str:
    """Remove the blocks that attach inserted, if they are unchanged."""
    for edit in record.splices if record else ():
        if not edit.removed and edit.inserted.strip() and text.count(edit.inserted.strip("\r\n")) == 1:
            start = text.index(edit.inserted.strip("\r\n"))
            end = start + len(edit.inserted.strip("\r\n"))
            end += len(re.match(r"(?:\r?\n)?", text[end:])[0])  # type: ignore[index]
            text = text[:start] + text[end:]
    return text


def _without_the_rest(text: str, expected: dict[str, Any]) -> str:
    """Remove settings that were moved or rewritten, key by key, and then the comments around them."""
    import tomlkit

    config = parse_config(text)
    if config != expected:
        mark, text = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
        document: Any = tomlkit.parse(text)
        if "model_provider" in config and "model_provider" not in expected:
            document.remove("model_provider")
        ours, remaining = (each.get("model_providers", {}).get(PROVIDER, {}) for each in (config, expected))
        for key in ours:
            if key not in remaining:
                document["model_providers"][PROVIDER].remove(key)
        if not remaining and ours:
            document["model_providers"].remove(PROVIDER)
        if "model_providers" in config and "model_providers" not in expected:
            document.remove("model_providers")
        text = mark + tomlkit.dumps(document)
    lines = text.splitlines(keepends=True)
    text = "".join(line for line in lines if line.strip() not in (_OPEN, _CLOSE))
    check_meaning(text, expected)
    return text


def _is_chatgpt_login(environment: Environment) -> bool:
    """Return whether Codex uses a ChatGPT account, whose requests go to another URL than those with an API key."""
    try:
        auth = json.loads((codex_home(environment) / "auth.json").read_bytes())
    except (OSError, ValueError):
        return False
    if not isinstance(auth, dict):
        return False
    if isinstance(mode := auth.get("auth_mode"), str):
        return mode.lower() == "chatgpt"
    return isinstance(auth.get("tokens"), dict) and not auth.get("OPENAI_API_KEY")


def _notes(config: Mapping[str, Any], chosen: Any) -> Iterator[str]:
    profiles = config.get("profiles")
    for name, profile in profiles.items() if isinstance(profiles, dict) else ():
        if isinstance(profile, dict) and profile.get("model_provider", chosen) != chosen:
            yield f"the profile {name!r} has its own provider and is not recorded live"


def parse_config(text: str) -> dict[str, Any]:
    try:
        config = tomllib.loads(text.removeprefix(BOM))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SettingsRefused(f"Codex's config.toml is not valid TOML: {error}. Nothing was written") from None
    providers = config.get("model_providers", {})
    if not isinstance(providers, dict) or not all(isinstance(each, dict) for each in providers.values()):
        raise SettingsRefused(
            "cannot edit Codex's config.toml: model_providers must contain tables. Nothing was written"
        )
    if not isinstance(config.get("model_provider", ""), str):
        raise SettingsRefused("cannot edit Codex's config.toml: model_provider must be text. Nothing was written")
    return config


def edit_value(text: str, path: tuple[str, ...], value: str, expected: Mapping[str, Any]) -> Splice:
    new = set_value(text, path, value)
    check_meaning(new, expected)
    return settings_file.diff_splice(text, new)


def set_value(text: str, path: tuple[str, ...], value: str) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        mark, text = (BOM, text[1:]) if text.startswith(BOM) else ("", text)
        document: Any = tomlkit.parse(text)
        if tomlkit.dumps(document) != text:
            raise SettingsRefused("the formatting of Codex's config.toml cannot be preserved. Nothing was written")
        node = document
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value
        return mark + tomlkit.dumps(document)
    except (TOMLKitError, ValueError, KeyError) as error:
        raise SettingsRefused(f"cannot edit Codex's config.toml: {error}. Nothing was written") from None


def check_meaning(text: str, expected: Mapping[str, Any]) -> None:
    try:
        same = tomllib.loads(text.removeprefix(BOM)) == expected
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        raise SettingsRefused(
            "Codex's config.toml cannot be edited without changing other settings "
            "(for example if model_providers is an inline table). Nothing was written"
        )
