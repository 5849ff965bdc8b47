"""Attach Claude Code: `env.ANTHROPIC_BASE_URL` and two hooks in its `settings.json`.

The hooks (UserPromptSubmit, PostToolUse of Bash) record the session's working folder, see `clients.session_hook`. There
is no SessionStart hook: `--output-format stream-json` would show it before `init`. A base URL that the user had set, in
the file or in the environment, becomes the gateway's upstream for this client; detach restores it.

Behind a base URL that it does not know, Claude Code sends other requests: other betas and prompts, and in some versions
the schema of every MCP tool. If the upstream is Anthropic itself, attach therefore also sets `ASSUME_FIRST_PARTY`. If a
proxy is configured, attach excepts the gateway from it with `NO_PROXY`.

The text is edited in place, without touching any other byte. It must be plain JSON: no comments, no NaN, no duplicate
keys in the objects that are read. New lines follow the indentation of the text; single-line text stays on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypaware.clients import session_hook
from hypaware.clients.attach import (
    AttachRecord,
    Environment,
    PreviousUpstream,
    SettingsEdit,
    find_proxy_exception,
)
from hypaware.clients.claude.history import config_folder
from hypaware.clients.json_text import (
    BOM,
    JsonEdits,
    NotPlainJson,
    add_value,
    find_member,
    find_root,
    list_items,
    parse_json,
    remove_item,
)
from hypaware.clients.settings_file import SettingsRefused, Splice

CLAUDE_BASE = "/claude"
VARIABLE = "ANTHROPIC_BASE_URL"
ASSUME_FIRST_PARTY = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
_ANTHROPIC = "api.anthropic.com"
EVENTS: Mapping[str, str | None] = {"UserPromptSubmit": None, "PostToolUse": "Bash"}
_EARLIER_EVENTS = ("SessionStart",)
"""Events for which earlier versions installed a hook."""
_SECONDS = 5
_OURS = re.compile(r"\bhyp'? hook claude\b")
_OUR_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+" + re.escape(CLAUDE_BASE))


def hook_command(environment: Environment) -> str:
    """Return the hook's command. It must never disturb the client, even after HypAware was uninstalled."""
    chosen = environment.get("HYP_HOME")
    home = str(Path(chosen).expanduser().absolute()) if chosen else None
    return session_hook.build_hook_command("claude", session_hook.find_program(), home)


class ClaudeSettings:
    name = "claude"

    def path(self, environment: Environment) -> Path:
        return config_folder(environment) / "settings.json"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        base_url = gateway + CLAUDE_BASE
        command = hook_command(environment)
        settings = self._settings(text)
        previous = settings.get("env", {}).get(VARIABLE)
        edits = JsonEdits(text)
        if not text.strip(BOM + " \t\r\n"):
            edits.add(Splice(len(text), "", "{\n}\n"))
        if previous != base_url:
            edits.set(base_url, "env", VARIABLE)
        own = (environment.get(VARIABLE, "") if previous is None else previous).rstrip("/")
        is_ours = own == base_url or _OUR_URL.fullmatch(own) is not None
        variables = []
        if ASSUME_FIRST_PARTY not in settings.get("env", {}) and (
            not own or is_ours or urlsplit(own).hostname == _ANTHROPIC
        ):
            edits.set("1", "env", ASSUME_FIRST_PARTY)
            variables.append(ASSUME_FIRST_PARTY)
        env = settings.get("env", {})
        # Claude Code sends plain HTTP to an HTTPS proxy too, even for this machine.
        proxies = ("https_proxy", "http_proxy")
        exception = find_proxy_exception({**environment, **env}, proxies, urlsplit(gateway).hostname or "")
        if exception:
            edits.set(exception[1], "env", exception[0])
        for event, matcher in EVENTS.items():
            if command not in _list_commands(settings, event):
                _HookEdits(edits).add(event, matcher, command)
        return SettingsEdit(
            splices=tuple(edits.done),
            base_url=base_url,
            ours={
                "base_urls": [base_url],
                "variables": variables,
                "exceptions": [exception[1]] if exception else [],
                "commands": [command],
                "created": [".".join(path) for path in edits.created],
            },
            before={"base_url": previous, **({exception[0]: env.get(exception[0])} if exception else {})},
            upstreams=(PreviousUpstream(CLAUDE_BASE, own),) if own and not is_ours else (),
            notes=tuple(_notes(settings, environment)),
        )

    def detach(self, text: str, record: AttachRecord | None) -> str:
        ours: Mapping[str, Any] = record.ours if record else {}
        if not text.strip(BOM + " \t\r\n"):
            return text
        settings = self._settings(text)
        edits = JsonEdits(text)
        env = settings.get("env", {})
        value = env.get(VARIABLE, "")
        is_ours = value in ours.get("base_urls", ()) or _OUR_URL.fullmatch(value) is not None
        if is_ours:
            edits.restore(record.before.get("base_url") if record else None, "env", VARIABLE)
        is_set = ASSUME_FIRST_PARTY in ours.get("variables", ()) if record else is_ours
        if is_set and env.get(ASSUME_FIRST_PARTY) == "1":
            edits.restore(None, "env", ASSUME_FIRST_PARTY)
        for name in ("no_proxy", "NO_PROXY"):
            if record and name in env and env[name] in ours.get("exceptions", ()):
                edits.restore(record.before.get(name), "env", name)
        for event in (*EVENTS, *_EARLIER_EVENTS):
            _HookEdits(edits).remove(event, ours.get("commands", ()))
        # Without a record it is unknown whether attach created these containers; empty ones mean nothing to the client.
        created = (tuple(path.split(".")) for path in ours.get("created", ()))
        edits.remove_empty(created if record else edits.emptied)
        if record and not record.existed and edits.text.strip() == "{}":
            return ""
        return edits.text

    def explain_removal(self, text: str, environment: Environment) -> tuple[str, ...]:
        return ()

    def base_url(self, text: str) -> str | None:
        found = self._settings(text).get("env", {}).get(VARIABLE)
        return found if isinstance(found, str) else None

    def _settings(self, text: str) -> dict[str, Any]:
        """Parse the settings; raise SettingsRefused for every form that the edits cannot handle."""
        if not text.strip(BOM + " \t\r\n"):
            return {}
        try:
            settings = parse_json(text.removeprefix(BOM))
            if not isinstance(settings, dict):
                raise NotPlainJson("it is not a JSON object")
            env, hooks = settings.get("env", {}), settings.get("hooks", {})
            if not isinstance(env, dict) or not isinstance(env.get(VARIABLE, ""), str):
                raise NotPlainJson(f"env is not an object, or its {VARIABLE} is not text")
            if not isinstance(hooks, dict) or not all(
                isinstance(hooks.get(event, []), list) for event in (*EVENTS, *_EARLIER_EVENTS)
            ):
                raise NotPlainJson("hooks is not an object, or the hooks of an event are not a list")
            # Refuses duplicate keys.
            for member in list_items(text, find_root(text)):
                if member.name in ("env", "hooks"):
                    list_items(text, member.start)
        except NotPlainJson as reason:
            raise SettingsRefused(f"cannot edit Claude Code's settings.json: {reason}. Nothing was written") from None
        return settings


SETTINGS = ClaudeSettings()


def _list_commands(settings: Mapping[str, Any], event: str) -> list[str]:
    return [
        hook.get("command", "")
        for group in settings.get("hooks", {}).get(event, [])
        if isinstance(group, dict) and isinstance(group.get("hooks"), list)
        for hook in group["hooks"]
        if isinstance(hook, dict) and isinstance(hook.get("command"), str)
    ]


def _notes(settings: Mapping[str, Any], environment: Environment) -> Iterator[str]:
    env = {**environment, **settings.get("env", {})}
    for variable, where in (("CLAUDE_CODE_USE_BEDROCK", "Bedrock"), ("CLAUDE_CODE_USE_VERTEX", "Vertex AI")):
        if str(env.get(variable, "")).lower() not in ("", "0", "false"):
            yield f"{variable} is set: requests to {where} do not go through the gateway and are not recorded live"
    if settings.get("disableAllHooks") is True:
        yield "disableAllHooks is set: live rows have no folder and no git columns until the transcript is imported"


class _HookEdits:
    """Edits of the hooks; everything else is edited as any JSON."""

    def __init__(self, edits: JsonEdits) -> None:
        self._edits = edits

    def add(self, event: str, matcher: str | None, command: str) -> None:
        groups = self._edits.ensure([], "hooks", event)
        group: dict[str, Any] = {"matcher": matcher} if matcher else {}
        group["hooks"] = [{"type": "command", "command": command, "timeout": _SECONDS}]
        self._edits.add(add_value(self._edits.text, groups, group))

    def remove(self, event: str, commands: Any) -> None:
        """Remove all our hooks of an event, wherever they are, and groups that contain nothing else."""
        while (place := self._our_hook(event, commands)) is not None:
            groups, group, hooks, hook = place
            self._edits.emptied |= {("hooks",), ("hooks", event)}
            text = self._edits.text
            alone = len(list_items(text, hooks)) == 1
            self._edits.add(remove_item(text, groups, group) if alone else remove_item(text, hooks, hook))

    def _our_hook(self, event: str, commands: Any) -> tuple[int, int, int, int] | None:
        text, groups = self._edits.text, self._edits.find("hooks", event)
        if groups is None:
            return None
        for group, (_, _, start, end) in enumerate(list_items(text, groups)):
            value = json.loads(text[start:end])
            hooks = value.get("hooks") if isinstance(value, dict) else None
            for hook, each in enumerate(hooks if isinstance(hooks, list) else ()):
                command = each.get("command") if isinstance(each, dict) else None
                if isinstance(command, str) and (command in commands or _OURS.search(command)):
                    inside = find_member(text, start, "hooks")
                    assert inside is not None
                    return groups, group, inside.start, hook
        return None
