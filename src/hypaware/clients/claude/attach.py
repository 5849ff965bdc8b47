"""Attach Claude Code: `env.ANTHROPIC_BASE_URL` and three hooks in its `settings.json`.

The hooks (SessionStart, UserPromptSubmit, PostToolUse of Bash) run `hyp hook claude`, which records the session's
working folder. A base URL that the user had set, in the file or in the environment, becomes the gateway's upstream
for this client; detach restores it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hypaware.clients import json_edit, settings_file
from hypaware.clients.attach import CLAUDE_BASE, AttachRecord, Environment, PreviousUpstream, SettingsEdit
from hypaware.clients.claude.history import config_folder
from hypaware.clients.json_edit import NotPlainJson
from hypaware.clients.settings_file import SettingsRefused, Splice

VARIABLE = "ANTHROPIC_BASE_URL"
EVENTS: Mapping[str, str | None] = {"SessionStart": None, "UserPromptSubmit": None, "PostToolUse": "Bash"}
_SECONDS = 5
_OURS = re.compile(r"\bhyp'? hook claude\b")
_OUR_URL = re.compile(r"http://(?:127\.0\.0\.1|localhost|\[::1\]):\d+" + re.escape(CLAUDE_BASE))
_BOM = "\ufeff"


def hook_command(environment: Environment) -> str:
    """Return the hook's command. It must never disturb the client, even after HypAware was uninstalled."""
    sibling = Path(sys.executable).parent / "hyp"
    program = str(sibling) if sibling.is_file() else shutil.which("hyp") or "hyp"
    chosen = environment.get("HYP_HOME")
    home = f"HYP_HOME={shlex.quote(str(Path(chosen).expanduser().absolute()))} " if chosen else ""
    return f"{home}{shlex.quote(program)} hook claude 2>/dev/null || :"


class ClaudeSettings:
    name = "claude"

    def path(self, environment: Environment) -> Path:
        return config_folder(environment) / "settings.json"

    def attach(self, text: str, gateway: str, environment: Environment) -> SettingsEdit:
        base_url = gateway + CLAUDE_BASE
        command = hook_command(environment)
        settings = self._settings(text)
        previous = settings.get("env", {}).get(VARIABLE)
        edits = _Edits(text)
        if not text.strip(_BOM + " \t\r\n"):
            edits.add(Splice(len(text), "", "{\n}\n"))
        if previous != base_url:
            edits.set_variable(base_url)
        for event, matcher in EVENTS.items():
            if command not in _list_commands(settings, event):
                edits.add_hook(event, matcher, command)
        own = (environment.get(VARIABLE, "") if previous is None else previous).rstrip("/")
        is_ours = own == base_url or _OUR_URL.fullmatch(own) is not None
        return SettingsEdit(
            splices=tuple(edits.done),
            base_url=base_url,
            ours={"base_urls": [base_url], "commands": [command], "created": edits.created},
            before={"base_url": previous},
            upstream=PreviousUpstream(CLAUDE_BASE, own) if own and not is_ours else None,
            notes=tuple(_notes(settings, environment)),
        )

    def detach(self, text: str, record: AttachRecord | None) -> str:
        ours: Mapping[str, Any] = record.ours if record else {}
        if not text.strip(_BOM + " \t\r\n"):
            return text
        settings = self._settings(text)
        edits = _Edits(text)
        value = settings.get("env", {}).get(VARIABLE)
        if isinstance(value, str) and (value in ours.get("base_urls", ()) or _OUR_URL.fullmatch(value)):
            edits.restore_variable(record.before.get("base_url") if record else None)
        for event in EVENTS:
            edits.remove_hooks(event, ours.get("commands", ()))
        # Without a record it is unknown whether attach created these containers; empty ones mean nothing to the client.
        edits.remove_empty(ours.get("created", ()) if record else edits.emptied)
        if record and not record.existed and edits.text.strip() == "{}":
            return ""
        return edits.text

    def base_url(self, text: str) -> str | None:
        if not text.strip(_BOM + " \t\r\n"):
            return None
        found = self._settings(text).get("env", {}).get(VARIABLE)
        return found if isinstance(found, str) else None

    def _settings(self, text: str) -> dict[str, Any]:
        """Parse the settings; raise SettingsRefused for every form that the edits cannot handle."""
        if not text.strip(_BOM + " \t\r\n"):
            return {}
        try:
            settings = json_edit.parse_json(text.removeprefix(_BOM))
            self._check(settings)
            _Edits(text).check_duplicate_keys()
        except NotPlainJson as reason:
            raise SettingsRefused(f"cannot edit Claude Code's settings.json: {reason}. Nothing was written") from None
        assert isinstance(settings, dict)
        return settings

    @staticmethod
    def _check(settings: Any) -> None:
        if not isinstance(settings, dict):
            raise NotPlainJson("it is not a JSON object")
        env = settings.get("env", {})
        if not isinstance(env, dict) or not isinstance(env.get(VARIABLE, ""), str):
            raise NotPlainJson(f"env is not an object, or its {VARIABLE} is not text")
        hooks = settings.get("hooks", {})
        if not isinstance(hooks, dict) or not all(isinstance(hooks.get(event, []), list) for event in EVENTS):
            raise NotPlainJson("hooks is not an object, or the hooks of an event are not a list")


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


class _Edits:
    """Collects edits; each applies to the result of the one before it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.done: list[Splice] = []
        self.created: list[str] = []
        self.emptied: set[str] = set()
        """Containers from which something was removed."""

    def add(self, edit: Splice) -> None:
        self.done.append(edit)
        self.text = settings_file.apply_splices(self.text, [edit])

    @property
    def _root(self) -> int:
        return json_edit.find_root(self.text[1:]) + 1 if self.text.startswith(_BOM) else json_edit.find_root(self.text)

    def _inside(self, name: str, outer: int | None = None) -> int | None:
        found = json_edit.find_member(self.text, self._root if outer is None else outer, name)
        return found.start if found else None

    def check_duplicate_keys(self) -> None:
        json_edit.list_members(self.text, self._root)
        for name in ("env", "hooks"):
            if (start := self._inside(name)) is not None:
                json_edit.list_members(self.text, start)

    def _ensure(self, name: str, empty: Any, outer: int | None = None, path: str = "") -> int:
        """Return the offset of a container, which is created if it does not exist."""
        if (start := self._inside(name, outer)) is None:
            self.add(json_edit.add_member(self.text, self._root if outer is None else outer, name, empty))
            self.created.append(path + name)
            start = self._inside(name, outer)
        assert start is not None
        return start

    def set_variable(self, value: str) -> None:
        env = self._ensure("env", {})
        if found := json_edit.find_member(self.text, env, VARIABLE):
            self.add(json_edit.set_value(self.text, found, value))
        else:
            self.add(json_edit.add_member(self.text, env, VARIABLE, value))

    def restore_variable(self, previous: str | None) -> None:
        env = self._inside("env")
        found = json_edit.find_member(self.text, env, VARIABLE) if env is not None else None
        if env is None or found is None:
            return
        if previous is None:
            self.add(json_edit.remove_member(self.text, env, VARIABLE))
            self.emptied.add("env")
        else:
            self.add(json_edit.set_value(self.text, found, previous))

    def add_hook(self, event: str, matcher: str | None, command: str) -> None:
        hooks = self._ensure("hooks", {})
        groups = self._ensure(event, [], hooks, "hooks.")
        group: dict[str, Any] = {"matcher": matcher} if matcher else {}
        group["hooks"] = [{"type": "command", "command": command, "timeout": _SECONDS}]
        self.add(json_edit.add_element(self.text, groups, group))

    def remove_hooks(self, event: str, commands: Any) -> None:
        """Remove all our hooks of an event, wherever they are, and groups that contain nothing else."""
        while (place := self._our_hook(event, commands)) is not None:
            groups, group, hooks, hook = place
            self.emptied |= {"hooks", f"hooks.{event}"}
            if len(json_edit.list_elements(self.text, hooks)) == 1:
                self.add(json_edit.remove_element(self.text, groups, group))
            else:
                self.add(json_edit.remove_element(self.text, hooks, hook))

    def _our_hook(self, event: str, commands: Any) -> tuple[int, int, int, int] | None:
        outer = self._inside("hooks")
        groups = self._inside(event, outer) if outer is not None else None
        if groups is None:
            return None
        for group, (start, end) in enumerate(json_edit.list_elements(self.text, groups)):
            value = json.loads(self.text[start:end])
            hooks = value.get("hooks") if isinstance(value, dict) else None
            for hook, each in enumerate(hooks if isinstance(hooks, list) else ()):
                command = each.get("command") if isinstance(each, dict) else None
                if isinstance(command, str) and (command in commands or _OURS.search(command)):
                    inside = json_edit.find_member(self.text, start, "hooks")
                    assert inside is not None
                    return groups, group, inside.start, hook
        return None

    def remove_empty(self, created: Any) -> None:
        """Remove the containers that attach created if they are empty, inner ones first."""
        for path in sorted(created, key=lambda each: -each.count(".")):
            *outer, name = path.split(".")
            start = self._inside(outer[0]) if outer else self._root
            found = json_edit.find_member(self.text, start, name) if start is not None else None
            if start is not None and found and json.loads(self.text[found.start : found.end]) in ({}, []):
                self.add(json_edit.remove_member(self.text, start, name))
