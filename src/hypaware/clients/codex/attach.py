"""Attach Codex: the key `openai_base_url` in its `config.toml`, in a block between two comments.

    # >>> hypaware …
    openai_base_url = "http://127.0.0.1:18521/codex/v1"
    # <<< hypaware

This block is at the top, because a key after a table header would belong to that table. The key redirects the built-in
provider, with an API key and with a ChatGPT login. The provider keeps its name: Codex resumes a session only under the
provider under which it began. A value of the user changes in place. If they have chosen a provider of their own, only
its base_url changes, so that its key, headers and dialect stay. The previous URL becomes the gateway's upstream. Every
other byte of the file is kept, and an edit that would change the meaning of anything else is refused.

Earlier versions added a provider named `hypaware`. Attach and detach remove it. Codex can only fork its sessions.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypaware.clients import settings_file
from hypaware.clients.attach import (
    AttachRecord,
    Environment,
    PreviousUpstream,
    SettingsEdit,
    find_proxy_exception,
)
from hypaware.clients.settings_file import SettingsRefused, Splice

CODEX_BASE = "/codex/v1"
# Not /codex/backend-api/codex: behind such a URL, Codex would call the backend that chatgpt.com names for the account.
CODEX_CHATGPT_BASE = "/codex/chatgpt/codex"
BOM = "\ufeff"
KEY = "openai_base_url"
PROVIDER = "hypaware"
_OPEN = "# >>> hypaware: requests go through the gateway on this machine; `hyp client detach codex` takes this out"
_CLOSE = "# <<< hypaware"
_BUILT_IN = "openai"
_SHOWN = 5
_MAX_META_BYTES = 1 << 20
_EARLIER_BASE = "/codex/backend-api/codex"
_OUR_PATH = "|".join(map(re.escape, (CODEX_BASE, CODEX_CHATGPT_BASE, _EARLIER_BASE)))
_OUR_URL = re.compile(rf"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+(?:{_OUR_PATH})")


class CodexSettings:
    name = "codex"

    def path(self, environment: Environment) -> Path:
        return codex_home(environment) / "config.toml"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        config = parse_config(text)
        if _has_our_provider(config, ()):
            plain = self.detach(text, None)
            edit = self.attach(plain, gateway, environment)
            return replace(edit, splices=(settings_file.diff_splice(text, plain), *edit.splices))
        chosen = config.get("model_provider", _BUILT_IN)
        notes = tuple(_notes(config, chosen))
        if exception := find_proxy_exception(
            environment, ("http_proxy", "all_proxy"), urlsplit(gateway).hostname or ""
        ):
            raise SettingsRefused(
                "Codex would send its requests for the gateway to the proxy of your environment. "
                f"Set {'='.join(exception)} and attach again. Nothing was written"
            )
        if chosen != _BUILT_IN:
            return self._through_their_provider(text, config, str(chosen), gateway, notes)
        prefix = CODEX_CHATGPT_BASE if _is_chatgpt_login(environment) else CODEX_BASE
        base_url, own = gateway + prefix, config.get(KEY)
        if own == base_url:
            return SettingsEdit((), base_url, notes=notes)
        expected = {**config, KEY: base_url}
        if own is None:
            lines = (_OPEN, f'{KEY} = "{base_url}"', _CLOSE)
            end = "\r\n" if "\r\n" in text else "\n"
            edit_top = Splice(len(BOM) if text.startswith(BOM) else 0, "", "".join(line + end for line in lines))
            check_meaning(settings_file.apply_splices(text, [edit_top]), expected)
        else:
            edit_top = edit_value(text, (KEY,), base_url, expected)
        return SettingsEdit(
            splices=(edit_top,),
            base_url=base_url,
            ours={"base_urls": [base_url]},
            # The provider's name is for a file that still contains the settings of an earlier version.
            before={KEY: own, "model_provider": config.get("model_provider")},
            upstreams=(PreviousUpstream(prefix, own.rstrip("/")),) if own and not _OUR_URL.fullmatch(own) else (),
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
            upstreams=(PreviousUpstream(CODEX_BASE, theirs.rstrip("/")),),
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
        our_urls = record.ours.get("base_urls", ()) if record else ()
        expected = deepcopy(config)
        restored: dict[str, Any] = {}
        if _is_our_url(config.get(KEY), our_urls):
            restored[KEY] = before.get(KEY)
        if _has_our_provider(config, our_urls):
            if config.get("model_provider") == PROVIDER:
                restored["model_provider"] = before.get("model_provider")
            providers = expected.get("model_providers", {})
            theirs = providers.pop(PROVIDER, {})
            written = _provider_table(theirs.get("base_url"))
            if remaining := {key: value for key, value in theirs.items() if written.get(key) != value}:
                providers[PROVIDER] = remaining
            if not providers:
                expected.pop("model_providers", None)
        for key, value in restored.items():
            del expected[key]
            if value is not None:
                expected[key] = value
        if expected == config:
            return text
        text = _without_blocks(text, record)
        for key, value in restored.items():
            if value is not None and parse_config(text).get(key) != value:
                text = set_value(text, (key,), value)
        return _without_the_rest(text, expected)

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        """Name the sessions that began under our provider: Codex resumes them only if it is configured."""
        if not _has_our_provider(parse_config(text), ()):
            return ()
        ids = [found for path in _list_rollouts(environment) if (found := _session_of_our_provider(path))]
        if not ids:
            return ()
        more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
        return (
            f"Codex does not resume sessions that began under the provider {PROVIDER!r} of an earlier version; fork "
            f"one to continue it, with `codex fork ID`: {', '.join(ids[:_SHOWN])}{more}",
        )

    def base_url(self, text: str) -> str | None:
        config = parse_config(text)
        chosen = config.get("model_provider", _BUILT_IN)
        found = config.get("model_providers", {}).get(chosen, {}).get("base_url") or config.get(KEY)
        return found if isinstance(found, str) else None


SETTINGS = CodexSettings()


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


def _is_our_url(url: Any, our_urls: Collection[str]) -> bool:
    return isinstance(url, str) and (url in our_urls or _OUR_URL.fullmatch(url) is not None)


def _has_our_provider(config: Mapping[str, Any], our_urls: Collection[str]) -> bool:
    """Return whether an earlier version has attached Codex. A provider of this name may also belong to the user."""
    table = config.get("model_providers", {}).get(PROVIDER)
    if table is None:
        return config.get("model_provider") == PROVIDER
    return _is_our_url(table.get("base_url"), our_urls)


def _list_rollouts(environment: Environment) -> list[Path]:
    """Return the rollouts, newest first: their names begin with their time."""
    found = (codex_home(environment) / "sessions").rglob("rollout-*.jsonl")
    return sorted(found, key=lambda path: path.name, reverse=True)


def _session_of_our_provider(rollout: Path) -> str | None:
    try:
        with rollout.open("rb") as file:
            meta = json.loads(file.readline(_MAX_META_BYTES))["payload"]
        return str(meta["id"]) if meta["model_provider"] == PROVIDER else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
        for key in (KEY, "model_provider"):
            if key in config and key not in expected:
                document.remove(key)
        ours, remaining = (each.get("model_providers", {}).get(PROVIDER, {}) for each in (config, expected))
        for key in ours:
            if key not in remaining:
                del document["model_providers"][PROVIDER][key]
        if not remaining and ours:
            del document["model_providers"][PROVIDER]
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
    for key in ("model_provider", KEY):
        if not isinstance(config.get(key, ""), str):
            raise SettingsRefused(f"cannot edit Codex's config.toml: {key} must be text. Nothing was written")
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
