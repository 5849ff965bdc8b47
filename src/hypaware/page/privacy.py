"""Privacy in the page: which sessions and folders are private and by which rule, and changes of these rules.

A session is marked as `hyp session ignore` does, a folder as `hyp config set privacy.folders` does. Before a folder is
marked, a preview shows the recorded sessions whose class would change. Rules are found by looking at folders, which may
be on a disk that does not answer, so threads look at them, and the page waits for a thread only briefly.
"""

from __future__ import annotations

import asyncio
import json
import os.path
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from aiohttp import hdrs, web

from hypaware import config
from hypaware.config import PrivacyConfig
from hypaware.config.edit import set_value, unset_value
from hypaware.config.validation import format_key
from hypaware.engine.background import run_in_thread
from hypaware.errors import HypError, Retryable, UsageError
from hypaware.export.status import derive_stream_states
from hypaware.home import Home
from hypaware.home.session_context import working_directory
from hypaware.index.filters import Filters
from hypaware.index.prices import PriceTable
from hypaware.index.sessions import list_sessions
from hypaware.index.store import Index
from hypaware.model.privacy_class import PrivacyClass
from hypaware.page.address import session_path
from hypaware.page.context import PageContext
from hypaware.page.part_reader import PartReader
from hypaware.privacy import ignored_sessions
from hypaware.privacy.folder_memory import FolderMemory, MissingFolder, list_missing_folders
from hypaware.privacy.ignored_sessions import ReloadedFile
from hypaware.privacy.policy import PrivacyDecision, PrivacyPolicy
from hypaware.state.snapshot import read_snapshot
from hypaware.text import format_count

_SECONDS = 3.0
"""How long a view waits for folders."""
_POLL_SECONDS = 0.1
_MAX_LISTED = 20
_MAX_PATH = 4096
_CHOICES = ("local-only", "ignore")
T = TypeVar("T")
Document = dict[str, Any]


@dataclass(frozen=True)
class FolderRule:
    """A rule that makes folders private, and how to undo it."""

    label: str
    """The class: local-only or ignore."""
    place: str
    """The file or folder that it is about."""
    origin: str
    sessions: int
    """How many recorded sessions worked there."""
    undo: tuple[str, ...]
    """The commands that undo it."""
    folder: str | None = None
    """The folder as written in the config, if the rule is there: the page can remove it."""


@dataclass(frozen=True)
class PrivacyRules:
    sessions: Sequence[Mapping[str, str]]
    folders: Sequence[FolderRule]
    unknown_folder: str
    """The class of sessions whose folder is unknown."""
    problems: Sequence[HypError] = ()
    """Files of rules that cannot be read."""


@dataclass(frozen=True)
class FolderPlan:
    """What marking a folder would change."""

    folders: Mapping[str, tuple[str, str]]
    """Recorded folder → (class now, class then), of those whose class changes."""
    before: PrivacyDecision
    after: PrivacyDecision
    """What decides about the folder itself."""


def require_change(context: PageContext, request: web.Request) -> None:
    """Refuse a change that this page does not allow, or that another site has sent."""
    if not context.access.may_change:
        raise web.HTTPForbidden(reason="this page is read-only")
    if urlsplit(request.headers.get(hdrs.ORIGIN, "")).netloc.lower() != request.host.lower():
        raise web.HTTPForbidden(reason="a change must come from this page")


async def require_recorded(context: PageContext, session_id: str) -> None:
    """Raise UsageError if no session has this id. The newest rows may take a moment to be in the index."""
    deadline = time.monotonic() + _SECONDS
    while await context.read(list_folders, session_id) is None and context.notice() is None:
        if time.monotonic() > deadline:
            raise UsageError(f"no recorded session has the id {session_id}", repair="hyp sessions")
        await asyncio.sleep(_POLL_SECONDS)


def count_sessions(index: Index) -> dict[str, int]:
    """Return the number of recorded sessions by folder."""
    query = """SELECT name, count(DISTINCT session) FROM totals JOIN names ON names.id = totals.cwd GROUP BY names.id"""
    return dict(index.connection.execute(query).fetchall())


def list_in_folders(index: Index, folders: Collection[str], prices: PriceTable) -> tuple[int, list[Document]]:
    """Return how many recorded sessions worked in these folders, and the newest of them."""
    query = """SELECT DISTINCT session FROM totals JOIN names ON names.id = totals.cwd
               WHERE name IN (SELECT value FROM json_each(?))"""
    found = [row[0] for row in index.connection.execute(query, (json.dumps(list(folders)),))]
    return len(found), list_sessions(index, Filters(), prices, among=found, limit=_MAX_LISTED)


def find_recorded(index: Index, ids: Collection[str], prices: PriceTable) -> dict[str, Document]:
    """Return the documents of those sessions that are recorded."""
    query = "SELECT id FROM sessions WHERE session_id IN (SELECT value FROM json_each(?))"
    found = [row[0] for row in index.connection.execute(query, (json.dumps(list(ids)),))]
    return {each["session_id"]: each for each in list_sessions(index, Filters(), prices, among=found)}


def list_folders(index: Index, session_id: str) -> list[str] | None:
    """Return the folders in which a session worked, the newest of its main thread first; None if it is not recorded."""
    query = """SELECT names.name FROM sessions LEFT JOIN names ON names.id = sessions.cwd WHERE session_id = :id
               UNION ALL
               SELECT names.name FROM sessions JOIN totals ON totals.session = sessions.id
               JOIN names ON names.id = totals.cwd WHERE session_id = :id"""
    found = [row[0] for row in index.connection.execute(query, {"id": session_id})]
    return [each for each in dict.fromkeys(found) if each] if found else None


def read_rules(home: Home, recorded: Mapping[str, int]) -> PrivacyRules:
    """Return all rules. `recorded` is the number of recorded sessions by folder."""
    settings = config.load(home).privacy
    problems: list[HypError] = []

    def read(call: Callable[[Home], T], default: T) -> T:
        try:
            return call(home)
        except ignored_sessions.PrivacyFileUnreadable as problem:
            problems.append(problem)
            return default

    listed: Mapping[str, Mapping[str, str]] = read(ignored_sessions.read_ignored_sessions, {})
    sessions = [
        {"session_id": name, "class": each.get("class", "ignore"), "at": each.get("at", "")}
        for name, each in sorted(listed.items(), key=lambda each: each[1].get("at", ""), reverse=True)
    ]
    folders = [*_config_rules(settings, recorded), *_file_rules(home, recorded)]
    missing_folders: list[MissingFolder] = read(list_missing_folders, [])
    for missing in missing_folders:
        folders.append(
            FolderRule(
                label=missing.privacy_class.label,
                place=missing.folder or "(its name was purged)",
                origin="the last known .hypignore of a folder that is missing",
                sessions=_count_inside(recorded, missing.folder) if missing.folder else 0,
                undo=_reopen(missing.folder) if missing.folder else (),
            )
        )
    return PrivacyRules(sessions, folders, settings.unknown_folder, problems)


def _config_rules(settings: PrivacyConfig, recorded: Mapping[str, int]) -> list[FolderRule]:
    return [
        FolderRule(
            label=label,
            place=written,
            origin="privacy.folders in the config",
            sessions=_count_inside(recorded, str(Path(written).expanduser())),
            undo=(shlex.join(["hyp", "config", "unset", folder_key(written)]),),
            folder=written,
        )
        for written, label in sorted(settings.folders.items())
    ]


def _file_rules(home: Home, recorded: Mapping[str, int]) -> list[FolderRule]:
    """Return the `.hypignore` files that apply to recorded folders."""
    memory, found = FolderMemory(home), dict[Path, tuple[PrivacyClass, int]]()
    for folder, sessions in recorded.items():
        # Another system's paths mean nothing here.
        if not Path(folder).is_absolute() or "\0" in folder:
            continue
        rule = memory.find_rule(folder)
        if rule is not None and rule.privacy_class is not PrivacyClass.FULL and rule.evidence != "remembered":
            found[rule.path] = (rule.privacy_class, found.get(rule.path, (None, 0))[1] + sessions)
    return [
        FolderRule(each.label, str(path), "a .hypignore file", sessions, (shlex.join(["rm", str(path)]),))
        for path, (each, sessions) in sorted(found.items())
    ]


def _reopen(folder: str) -> tuple[str, ...]:
    quoted = shlex.quote(folder)
    return (f"mkdir -p {quoted} && echo full > {shlex.quote(str(Path(folder, '.hypignore')))}", "hyp backfill")


def _count_inside(recorded: Mapping[str, int], folder: str) -> int:
    root = os.path.normpath(folder).rstrip("/")
    return sum(count for each, count in recorded.items() if each == root or each.startswith(f"{root}/"))


def folder_key(folder: str) -> str:
    return format_key(("privacy", "folders", folder))


def decide_session(home: Home, session_id: str, folders: Sequence[str]) -> PrivacyDecision:
    """Return the strictest class of a session in its folders, and its rule."""
    policy = PrivacyPolicy.from_config(home, config.load(home).privacy)
    found = [policy.decide(folder, session_id) for folder in folders] or [policy.decide(None, session_id)]
    return max(found, key=lambda each: each.privacy_class)


def plan_folder(home: Home, path: str, label: str, recorded: Collection[str]) -> FolderPlan:
    """Return what the class of these recorded folders would be if the config gave the folder this class."""
    settings = config.load(home).privacy
    unknown = PrivacyClass.parse(settings.unknown_folder)
    find_cwd = partial(working_directory, home)
    before = PrivacyPolicy(home, settings.folders, unknown, find_cwd)
    after = PrivacyPolicy(home, {**settings.folders, path: label}, unknown, find_cwd)
    classes = {each: (before.class_of(each, None), after.class_of(each, None)) for each in recorded}
    changed = {each: (now.label, then.label) for each, (now, then) in classes.items() if now is not then}
    return FolderPlan(changed, before.decide(path, None), after.decide(path, None))


def list_deliveries(home: Home) -> list[Document]:
    """Return the sinks that have received rows, and how many."""
    states = derive_stream_states(home, config.load(home), read_snapshot(home).deliveries)
    rows: dict[str, int] = {}
    for state in states:
        rows[state.key.sink] = rows.get(state.key.sink, 0) + (state.stream.exported_rows if state.stream else 0)
    return [{"sink": sink, "rows": count} for sink, count in rows.items() if count]


def check_folder(path: str) -> str:
    """Return the path in the form in which it is stored. Raise UsageError if it cannot be the path of a folder."""
    is_whole = False
    with suppress(RuntimeError):  # the home directory of an unknown user
        is_whole = Path(path).expanduser().is_absolute()
    if not is_whole or len(path) > _MAX_PATH or not path.isprintable():
        raise UsageError("name a folder by its whole path, such as /home/me/work or ~/work")
    return path.rstrip("/") or "/"


async def wait_for_folders(call: Callable[[], T]) -> T:
    """Return the result of a call that looks at folders. Raise Retryable if they do not answer."""
    done, _ = await asyncio.wait([outcome := run_in_thread(call, "page: folders")], timeout=_SECONDS)
    if not done:
        raise Retryable("the folders of this machine do not answer; try again later", repair="hyp session status")
    return outcome.result()


def routes(context: PageContext) -> list[web.RouteDef]:
    if context.access.is_team:
        return []
    home, rules_reader = context.home, PartReader[PrivacyRules]("privacy rules")
    listed_file = ReloadedFile(
        ignored_sessions.ignored_sessions_path(home), lambda: ignored_sessions.read_ignored_sessions(home)
    )
    # For the menu of a session.
    context.add_global("is_ignored", lambda session_id: session_id in (listed_file.get() or {}))

    async def list_rules(request: web.Request) -> web.Response:
        recorded = await context.read(count_sessions)
        reading = await rules_reader.get(lambda: read_rules(home, recorded), _SECONDS)
        known = [each["session_id"] for each in reading.value.sessions] if reading.value else []
        documents = await context.read(find_recorded, known, context.prices()) if known else {}
        values = {"reading": reading, "documents": documents, "path_of": session_path, "counted": format_count}
        return context.render(request, "privacy.html", {**values, "changed": request.query.get("changed") == "1"})

    async def show_session(request: web.Request) -> web.Response:
        session_id = request.query.get("id", "")
        ignored_sessions.check_session_id(session_id)
        folders = await context.read(list_folders, session_id)
        decision = await wait_for_folders(lambda: decide_session(home, session_id, folders or ()))
        listed = ignored_sessions.read_ignored_sessions(home)
        values = {
            "session_id": session_id,
            "folders": folders,
            "decision": decision,
            "is_ignored": session_id in listed,
            "path_of": session_path,
            "changed": request.query.get("changed") == "1",
        }
        return context.render(request, "privacy_session.html", values)

    async def change_session(request: web.Request) -> web.Response:
        require_change(context, request)
        form = await request.post()
        session_id, action = str(form.get("id", "")), form.get("action")
        ignored_sessions.check_session_id(session_id)
        if action == "ignore":
            await require_recorded(context, session_id)
            await run_in_thread(lambda: ignored_sessions.ignore_session(home, session_id), "page: ignore")
        elif action == "unignore":
            await run_in_thread(lambda: ignored_sessions.unignore_session(home, session_id), "page: unignore")
        else:
            raise UsageError("the form is incomplete")
        return web.Response(status=303, headers={hdrs.LOCATION: _session_privacy(session_id)})

    async def preview_folder(request: web.Request) -> web.Response:
        if not context.access.may_change:
            raise web.HTTPForbidden(reason="this page is read-only")
        path, label = check_folder(request.query.get("path", "")), request.query.get("class", _CHOICES[0])
        if label not in _CHOICES:
            raise UsageError(f"the class must be one of {', '.join(_CHOICES)}")
        recorded = await context.read(count_sessions)
        plan = await wait_for_folders(lambda: plan_folder(home, path, label, list(recorded)))
        count, sessions = await context.read(list_in_folders, list(plan.folders), context.prices())
        values = {
            "folder": path,
            "label": label,
            "choices": _CHOICES,
            "plan": plan,
            "count": count,
            "sessions": sessions,
            "deliveries": await wait_for_folders(lambda: list_deliveries(home)),
            "command": shlex.join(["hyp", "config", "set", folder_key(path), label]),
            "purge": shlex.join(["hyp", "purge", "--cwd", path, "--dry-run"]),
            "path_of": session_path,
            "counted": format_count,
        }
        return context.render(request, "privacy_folder.html", values)

    async def change_folder(request: web.Request) -> web.Response:
        require_change(context, request)
        form = await request.post()
        label = form.get("class")
        if label == "remove":
            # As written in the config, even if it could not be added in this form.
            key = folder_key(str(form.get("path", "")))
            await run_in_thread(lambda: unset_value(home, key), "page: unset")
        elif label in _CHOICES:
            key = folder_key(check_folder(str(form.get("path", ""))))
            await run_in_thread(lambda: set_value(home, key, label), "page: set")
        else:
            raise UsageError(f"the class must be one of {', '.join(_CHOICES)}")
        return web.Response(status=303, headers={hdrs.LOCATION: "/privacy?changed=1"})

    return [
        web.get("/privacy", list_rules),
        web.get("/privacy/session", show_session),
        web.post("/privacy/session", change_session),
        web.get("/privacy/folder", preview_folder),
        web.post("/privacy/folder", change_folder),
    ]


def _session_privacy(session_id: str) -> str:
    return f"/privacy/session?{urlencode({'id': session_id, 'changed': 1})}"
