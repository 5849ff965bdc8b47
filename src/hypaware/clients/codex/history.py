"""Codex's history provider: one item per rollout file, which holds one thread.

The thread id is the session's id, or else the UUID in the file name, or else the file name; it becomes the
conversation id. The session id is that of the session to which the thread belongs: a subagent's thread names its
parent's session.

Rollouts are `rollout-*.{jsonl,jsonl.zst,json}` under `<CODEX_HOME or ~/.codex>/sessions` and `archived_sessions`. Codex
moves a thread that the user archives, and compresses one that was not used for days; it unpacks it when the thread goes
on. While both forms exist, the plain one is current. Links are followed; each folder and file is visited once. Known
locations with history in unsupported formats are reported as events.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson

from hypaware.clients import compressed_content
from hypaware.clients.client import Environment, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.codex import rollout
from hypaware.clients.codex.rollout import Payload, RolloutThread, absolute_folder
from hypaware.clients.reader import SourceLine, SourceReader, SourceSnapshot, text_or_none, unknown_type_reason
from hypaware.home.durable_files import open_regular_file
from hypaware.home.machine_facts import look_up
from hypaware.model.columns import format_timestamp
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text
from hypaware.state.titles import MAX_RAW_LENGTH, SessionTitle
from hypaware.text import strip_url_credentials

_MAX_INDEX_BYTES = 16 << 20
_ROLLOUTS = (".jsonl", ".json")
_COMPRESSED = f".jsonl{compressed_content.SUFFIX}"
_FOLDERS = ("sessions", "archived_sessions")
# Every row has more bytes of content than this.
_MIN_ROW_BYTES = 16
_MAX_ROWS = 1 << 40
# Folders of the app under the user's home, on Linux and macOS.
_APPS = (
    *(".config/ChatGPT", ".config/Codex", ".config/com.openai.chat", ".config/com.openai.codex"),
    *(".local/share/ChatGPT", ".local/share/Codex", ".local/share/com.openai.chat", ".local/share/com.openai.codex"),
    *("Library/Application Support/ChatGPT", "Library/Application Support/Codex"),
    *("Library/Application Support/com.openai.chat", "Library/Application Support/com.openai.codex"),
    *("Library/Containers/com.openai.chat", "Library/Containers/com.openai.codex"),
)
_CHROMIUMS = (
    *(".config/google-chrome", ".config/chromium", ".config/microsoft-edge", ".config/BraveSoftware/Brave-Browser"),
    *("Library/Application Support/Google/Chrome", "Library/Application Support/Chromium"),
    *("Library/Application Support/Microsoft Edge", "Library/Application Support/BraveSoftware/Brave-Browser"),
)
_CHROMIUM_STORAGE = "Default/IndexedDB/https_chatgpt.com_0.indexeddb.leveldb"
# Quotes inside a string are escaped, so this matches only keys.
_TIMESTAMP = re.compile(rb'"timestamp"\s*:\s*"([0-9TZ:.+-]{16,40})"')
_SESSION = re.compile(rb'"session_id"\s*:\s*"([0-9A-Za-z_-]{1,100})"')
_NATIVE = {"codex": {"identity_source": "native"}}
_FALLBACK = {"codex": {"identity_source": "gateway_fallback"}}
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
# The client's local time, without a time zone; old names have only the day.
_NAME_TIME = re.compile(r"rollout-([0-9]{4}-[0-9]{2}-[0-9]{2})(?:T([0-9]{2})-([0-9]{2})-([0-9]{2}))?")


def printable(path: Path) -> str:
    """Return a path as printable text, even if it is not UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _walk(top: Path) -> Iterator[Path | ProviderEvent]:
    """Yield the paths of rollout files, and events for unreadable folders."""
    folders, seen = [top], set[tuple[int, int]]()
    while folders:
        folder = folders.pop()
        try:
            status = folder.stat()
            if (inode := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(inode)
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry):
                        folders.append(folder / entry.name)
                    elif entry.name.startswith("rollout-") and entry.name.endswith((*_ROLLOUTS, _COMPRESSED)):
                        yield folder / entry.name
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            yield _unreadable_event(folder, error)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A broken or cyclic link.
        return False


def _unreadable_event(path: Path, error: OSError) -> ProviderEvent:
    return ProviderEvent("unreadable", {"path": printable(path), "reason": os.strerror(error.errno or 0)})


def _other_history(home: Path, codex_home: Path) -> Iterator[ProviderEvent]:
    """Yield events for history that is not imported: prompts without responses, logs, apps, browsers."""
    for name in ("history.jsonl", "history.json", "log"):
        if os.access(codex_home / name, os.F_OK):
            yield ProviderEvent("diagnostic_only", {"path": printable(codex_home / name)})
    places = [("app", home / app) for app in _APPS]
    places += [("browser", home / browser / _CHROMIUM_STORAGE) for browser in _CHROMIUMS]
    for kind, path in places:
        if os.access(path, os.F_OK):
            yield ProviderEvent("unsupported_location", {"kind": kind, "path": printable(path)})


def _user_home(environment: Environment) -> Path:
    return Path(environment.get("HOME") or "~").expanduser()


def _codex_home(environment: Environment) -> Path:
    return Path(environment.get("CODEX_HOME") or _user_home(environment) / ".codex")


class CodexHistory:
    """Codex archives and compresses old rollouts but deletes none, so it has no expiry."""

    name = "codex"
    summary = "Codex sessions, active, archived and compressed: ~/.codex (or CODEX_HOME)"
    datasets = ("ai_gateway_messages",)
    environment = ("CODEX_HOME", "HOME")

    def folders(self, environment: Environment) -> tuple[Path, ...]:
        return tuple(_codex_home(environment) / name for name in _FOLDERS)

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        home, codex_home = _user_home(environment), _codex_home(environment)
        yield from _other_history(home, codex_home)
        paths: list[Path] = []
        for folder in self.folders(environment):
            for found in _walk(folder):
                if isinstance(found, ProviderEvent):
                    yield found
                else:
                    paths.append(found)
        if not paths:
            yield ProviderEvent("no_history", {"path": printable(codex_home / "sessions")})
        known, seen = set(paths), set[tuple[int, int]]()
        for path in sorted(paths):
            is_compressed = path.name.endswith(_COMPRESSED)
            if is_compressed and path.with_suffix("") in known:
                continue
            try:
                status = path.stat()
            except OSError as error:
                yield _unreadable_event(path, error)
                continue
            if (inode := (status.st_dev, status.st_ino)) not in seen:
                seen.add(inode)
                most = status.st_size * (compressed_content.MAX_RATIO // _MIN_ROW_BYTES)
                yield Source(path, min(most, _MAX_ROWS) if is_compressed else None)

    def first_time(self, head: bytes) -> str | None:
        times = (to_utc_text(found[1].decode("ascii")) for found in _TIMESTAMP.finditer(head))
        return min((time for time in times if time is not None), default=None)

    def session_of(self, path: Path, head: bytes) -> str | None:
        in_name = _UUID.search(path.name)
        found = _SESSION.search(head[: head.find(b"\n") + 1] or head)
        return found[1].decode("ascii") if found else in_name.group() if in_name else None

    def is_kept_elsewhere(self, path: str) -> bool:
        """Codex compresses old rollouts in place, unpacks them to continue them, and moves archived ones."""
        plain = path.removesuffix(compressed_content.SUFFIX)
        home, _, name = plain.rpartition(f"{os.sep}sessions{os.sep}")
        archived = Path(home) / "archived_sessions" / Path(name).name
        ends = ("", compressed_content.SUFFIX)
        return any(os.access(f"{each}{end}", os.F_OK) for each in (plain, archived) for end in ends)

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        document = rollout.read_document(reader)
        if document is None:
            thread = RolloutThread()
            thread.read(reader)
            messages = _line_messages(reader, thread)
        else:
            session = document.get("session")
            meta: Payload = session if isinstance(session, dict) else {}
            thread = RolloutThread(meta, cwd=absolute_folder(meta.get("cwd")))
            messages = _document_messages(reader, document)
        item = _build_item(reader.source, thread, messages)
        reader.titles = list(_list_titles(item.value.session_id, item.provenance.native_id, thread, environment))
        yield item


HISTORY = CodexHistory()


def _list_titles(
    session: str, thread_id: str, thread: RolloutThread, environment: Environment
) -> Iterator[SessionTitle]:
    """Yield the name that the user gave to the thread. The names of subagents' threads are not those of sessions."""
    if session != thread_id:
        return
    if thread.name is not None:
        yield SessionTitle("user", thread.name[:MAX_RAW_LENGTH], session, thread.first_time or "", thread.cwd)
    no_names: Mapping[str, tuple[str, str]] = {}
    names = look_up(_thread_names, _codex_home(environment) / "session_index.jsonl", default=no_names)
    if (listed := names.get(session)) is not None:
        name, at = listed
        yield SessionTitle("user", name, session, at, thread.cwd)


def _thread_names(path: Path) -> Mapping[str, tuple[str, str]]:
    """Return (name, time) by thread, from the file to which Codex appends a line for each change."""
    try:
        status = path.stat()
    except OSError:
        return {}
    return _parse_thread_names(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1)
def _parse_thread_names(path: Path, _mtime_ns: int, size: int) -> Mapping[str, tuple[str, str]]:
    names: dict[str, tuple[str, str]] = {}
    try:
        with open_regular_file(path) as file:
            file.seek(max(0, size - _MAX_INDEX_BYTES))
            lines = file.read(_MAX_INDEX_BYTES).splitlines()
    except OSError:
        return {}
    for line in lines:
        with suppress(ValueError, RecursionError):
            entry = orjson.loads(line)
            if isinstance(entry, dict) and isinstance(name := entry.get("thread_name"), str):
                at = entry.get("updated_at")
                names[str(entry.get("id"))] = name[:MAX_RAW_LENGTH], to_utc_text(at) or ""
    return names


def _build_item(source: SourceSnapshot, thread: RolloutThread, messages: Iterable[Message]) -> ImportItem:
    meta = thread.meta
    in_name = _UUID.search(source.path.name)
    conversation = text_or_none(meta.get("id")) or (in_name.group() if in_name else _stem(source.path))
    session = text_or_none(meta.get("session_id")) or conversation
    columns, attributes = _shared_facts(thread)
    attributes["session_id"] = session
    if conversation != session:
        attributes["thread_id"] = conversation
    exchange = Exchange(
        provider="openai",
        session_id=session,
        conversation_id=conversation,
        client_name="codex",
        client_version=text_or_none(meta.get("cli_version")),
        started_at=to_utc_text(meta.get("timestamp")) or thread.first_time,
        fallback_time=_fallback_time(source),
        columns=columns,
        attributes={"codex": attributes},
        messages=messages,
    )
    provenance = Provenance("codex", str(source.path), conversation)
    return ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


def _stem(path: Path) -> str:
    return Path(path.name.removesuffix(compressed_content.SUFFIX)).stem


def _shared_facts(thread: RolloutThread) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the columns and the `attributes.codex` that all rows share."""
    meta, turn = thread.meta, thread.turn
    found = meta.get("git")
    git: Payload = found if isinstance(found, dict) else {}
    policy = turn.get("sandbox_policy")
    sandbox = text_or_none(policy.get("type")) if isinstance(policy, dict) else None
    sandbox = sandbox or text_or_none(turn.get("sandbox"))
    remote = text_or_none(git.get("repository_url")) or text_or_none(git.get("origin_url"))
    remote = None if remote is None else strip_url_credentials(remote)
    commit = text_or_none(git.get("commit_hash")) or text_or_none(git.get("commit"))
    thread_source = text_or_none(meta.get("thread_source"))
    columns = {
        "conversation_source": "codex",
        "model": text_or_none(turn.get("model")),
        "cwd": thread.cwd,
        "git_branch": text_or_none(git.get("branch")),
        "git_remote": remote,
        "head_sha": commit,
        "entrypoint": text_or_none(meta.get("originator")),
        "user_type": thread_source,
        "permission_mode": sandbox,
        "is_sidechain": None if thread_source is None else thread_source == "subagent",
        "parent_thread_id": text_or_none(meta.get("parent_thread_id")),
    }
    has_changes = git.get("has_changes")
    attributes = {
        "workspace": thread.cwd,
        "git_origin_url": remote,
        "git_commit": commit,
        "sandbox": sandbox,
        "originator": columns["entrypoint"],
        "thread_source": thread_source,
        "model_provider": text_or_none(meta.get("model_provider")),
        "source": text_or_none(meta.get("source")),
        "has_changes": has_changes if isinstance(has_changes, bool) else None,
    }
    return columns, {name: value for name, value in attributes.items() if value is not None}


def _fallback_time(source: SourceSnapshot) -> tuple[str, str]:
    if in_name := _NAME_TIME.match(source.path.name):
        day, *clock = in_name.groups("00")
        if moment := to_utc_text(f"{day}T{':'.join(clock)}Z"):
            return moment, "file_name"
    return format_timestamp(datetime.fromtimestamp(source.mtime_ns / 10**9, UTC)), "file_mtime"


def _line_messages(reader: SourceReader, thread: RolloutThread) -> Iterator[Message]:
    for slot in thread.carriers.slots:
        value = slot.line.value
        created_at = value.get("timestamp")
        wanted = reader.wants(slot.line, to_utc_text(created_at), new=slot.new)
        if slot.new and not wanted:
            reader.excluded_with += [(offset, offset + 1) for offset in slot.counts_at]
        fresh = wanted and not slot.held
        yield _build_message(value["payload"], created_at, fresh, reader.skipped, slot.usage)


def _document_messages(reader: SourceReader, document: Payload) -> Iterator[Message]:
    skipped = reader.skipped
    whole = SourceLine(reader, 0, reader.size, document)
    for payload in document["items"]:
        if not isinstance(payload, dict):
            skipped["not_an_object"] += 1
        elif rollout.makes_message(payload):
            created_at = payload.get("timestamp")
            yield _build_message(payload, created_at, reader.wants(whole, to_utc_text(created_at)), skipped)
        else:
            skipped[rollout.item_skip_reason(payload) or unknown_type_reason(payload.get("type"), skipped)] += 1


def _build_message(
    payload: Payload,
    created_at: Any,
    fresh: bool,
    skipped: Counter[str],
    usage: Mapping[str, int] | None = None,
) -> Message:
    role, content = rollout.convert_item(payload, skipped if fresh else Counter())
    own_id = rollout.get_item_id(payload)
    return Message(
        role=role,
        content=content,
        created_at=created_at,
        message_id=own_id,
        fresh=fresh,
        usage=usage,
        columns={"provider_type": payload["type"]},
        attributes=_NATIVE if own_id else _FALLBACK,
    )
