"""Attach OpenCode: `provider.<id>.options.baseURL` in its global config, for each provider.

The config is `opencode.jsonc`, `opencode.json` or `config.json` in `~/.config/opencode`, the first that exists, as the
client chooses the one that it writes to. The file that OPENCODE_CONFIG names takes precedence over it.

Each provider has an address of its own, so each gets a prefix of its own at the gateway, `/opencode/<id>`, and the
attach record holds where that leads. The path of the old address follows the prefix, because it tells the dialect:

    https://api.anthropic.com/v1   →   http://127.0.0.1:18521/opencode/anthropic/v1

Attached are the providers whose address is in the file, and of those whose address the client has built in, the two
in `_KNOWN`, if the client is logged in to them with a key, or the environment or the file names them. A login with an
account (OAuth) chooses its address itself, so such a provider is left alone.

The text is edited in place, without touching any other byte. It must be plain JSON, without comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hypaware.clients.attach import (
    AttachRecord,
    Environment,
    PreviousUpstream,
    SettingsEdit,
    find_proxy_exception,
)
from hypaware.clients.json_text import BOM, JsonEdits, NotPlainJson, find_root, list_items, parse_json
from hypaware.clients.settings_file import SettingsRefused, Splice

BASE = "/opencode"
_NAMES = ("opencode.jsonc", "opencode.json", "config.json")
_KNOWN = {"anthropic": "https://api.anthropic.com/v1", "openai": "https://api.openai.com/v1"}
_KEYS = {"ANTHROPIC_API_KEY": "anthropic", "OPENAI_API_KEY": "openai"}
_OUR_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+" + re.escape(BASE) + r"/[^/]+(?:/.*)?")


class OpenCodeSettings:
    name = "opencode"

    def path(self, environment: Environment) -> Path:
        if chosen := environment.get("OPENCODE_CONFIG"):
            return Path(chosen)
        folder = Path(environment.get("XDG_CONFIG_HOME") or Path(environment["HOME"]) / ".config") / "opencode"
        return next((folder / name for name in _NAMES if (folder / name).exists()), folder / _NAMES[0])

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        providers = _read_providers(text)
        if exception := find_proxy_exception(environment, ("http_proxy",), urlsplit(gateway).hostname or ""):
            raise SettingsRefused(
                "OpenCode would send its requests for the gateway to the proxy of your environment. "
                f"Set {'='.join(exception)} and attach again. Nothing was written"
            )
        logins = _read_logins(environment)
        edits = JsonEdits(text if text.strip(BOM + " \t\r\n") else text + "{\n}\n")
        first = () if edits.text == text else (Splice(len(text), "", "{\n}\n"),)
        wanted, upstreams, before = list[str](), list[PreviousUpstream](), dict[str, Any]()
        for name, address in _list_addresses(providers, logins, environment):
            parts, prefix = urlsplit(address), f"{BASE}/{quote(name, safe='')}"
            url = gateway + prefix + parts.path.rstrip("/")
            if _OUR_URL.fullmatch(address):
                url = gateway + parts.path
            else:
                upstreams.append(PreviousUpstream(prefix, f"{parts.scheme}://{parts.netloc}", name))
            if url != address:
                edits.set(url, "provider", name, "options", "baseURL")
            wanted.append(url)
            before[name] = providers.get(name)
        if not wanted:
            raise SettingsRefused(
                "OpenCode has no provider whose address can be changed. Log in with `opencode auth login`, or add "
                "the provider with its baseURL, and attach again. Nothing was written"
            )
        return SettingsEdit(
            splices=(*first, *edits.done),
            base_url=gateway + BASE,
            ours={"base_urls": wanted, "created": [json.dumps(path) for path in edits.created]},
            before={"providers": before},
            upstreams=tuple(upstreams),
            notes=tuple(_notes(providers, logins)),
        )

    def detach(self, text: str, record: AttachRecord | None) -> str:
        if not text.strip(BOM + " \t\r\n"):
            return text
        ours: Mapping[str, Any] = record.ours if record else {}
        before: Mapping[str, Any] = record.before.get("providers", {}) if record else {}
        edits = JsonEdits(text)
        for name, address in _read_providers(text).items():
            if isinstance(address, str) and (address in ours.get("base_urls", ()) or _OUR_URL.fullmatch(address)):
                edits.restore(before.get(name), "provider", name, "options", "baseURL")
        created = (tuple(json.loads(path)) for path in ours.get("created", ()))
        around = {path[:length] for path in edits.emptied for length in range(1, len(path) + 1)}
        edits.remove_empty(created if record else around)
        if record and not record.existed and edits.text.strip() == "{}":
            return ""
        return edits.text

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        """Return the address that all attached providers share, or else that of the first provider."""
        found = [address for address in _read_providers(text).values() if isinstance(address, str)]
        ours = next((address for address in found if _OUR_URL.fullmatch(address)), None)
        if ours is not None:
            parts = urlsplit(ours)
            return f"{parts.scheme}://{parts.netloc}{BASE}"
        return next(iter(found), None)


SETTINGS = OpenCodeSettings()


def _read_providers(text: str) -> dict[str, Any]:
    """Return the address of each provider, None if it has none. Raise SettingsRefused for a form that edits cannot
    handle."""
    if not text.strip(BOM + " \t\r\n"):
        return {}
    try:
        settings = parse_json(text.removeprefix(BOM))
        if not isinstance(settings, dict):
            raise NotPlainJson("it is not a JSON object")
        providers = settings.get("provider", {})
        if not isinstance(providers, dict) or not all(
            isinstance(each, dict) and isinstance(each.get("options", {}), dict) for each in providers.values()
        ):
            raise NotPlainJson("provider, or the options of one, is not an object")
        # Refuses duplicate keys.
        edits = JsonEdits(text)
        list_items(text, find_root(text))
        for path in (("provider",), *(("provider", name, *more) for name in providers for more in ((), ("options",)))):
            if (start := edits.find(*path)) is not None:
                list_items(text, start)
    except NotPlainJson as reason:
        raise SettingsRefused(f"cannot edit OpenCode's config: {reason}. Nothing was written") from None
    return {name: each.get("options", {}).get("baseURL") for name, each in providers.items()}


def _read_logins(environment: Environment) -> dict[str, str]:
    """Return the kind of login of each provider. The keys in the same file are not looked at."""
    folder = Path(environment.get("XDG_DATA_HOME") or Path(environment["HOME"]) / ".local" / "share") / "opencode"
    try:
        found = json.loads((folder / "auth.json").read_bytes())
        return {name: str(each.get("type")) for name, each in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _list_addresses(
    providers: Mapping[str, Any], logins: Mapping[str, str], environment: Environment
) -> Iterator[tuple[str, str]]:
    """Yield each provider that is attached with its address."""
    for name, address in providers.items():
        if _is_address(address):
            yield name, address
    named = {*providers, *logins, *(name for key, name in _KEYS.items() if environment.get(key))}
    for name, address in _KNOWN.items():
        if name in named and providers.get(name) is None and logins.get(name) != "oauth":
            yield name, address


def _is_address(address: Any) -> bool:
    """Return whether this is an address, and not text with variables that the client replaces."""
    if not isinstance(address, str) or "{" in address:
        return False
    parts = urlsplit(address)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)


def _notes(providers: Mapping[str, Any], logins: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*providers, *logins}):
        address = providers.get(name)
        if address is None and logins.get(name) == "oauth":
            yield f"you are logged in to {name} with an account, which chooses its own address: it is not recorded live"
        elif address is None and name not in _KNOWN:
            yield f"only OpenCode knows the address of {name}: add its baseURL and attach again to record it live"
        elif address is not None and not _is_address(address):
            yield f"the baseURL of {name} is not a plain address: it is not recorded live"
