"""Gemini CLI's history provider: one file per session and one per subagent.

Files are `<GEMINI_CLI_HOME or ~>/.gemini/tmp/<project>/chats/session-*.jsonl`, those of subagents in a folder with the
name of their session. A file begins with `{sessionId, projectHash, startTime, kind, directories}`. Each further line is

- a message: `{id, timestamp, type, content, thoughts, tokens, model, toolCalls}` of type user, gemini, info, warning or
  error. A later line with the same id replaces it: the calls of a response follow their text;
- `{$set: {…}}`: changed values of the first line, or all messages (`messages`);
- `{$rewindTo: id}`: the user went back; what was said before stays recorded.

The last message of a file that is being written may still be replaced, and is held back. A result is in a message of
its own; in older versions only in the call, as `result`. A session that is resumed repeats results under new ids. Older
versions write one document `{sessionId, messages, …}`
(`.json`), which is rewritten as a whole.

The project's folder is in the file `.project_root` next to `chats`; old versions have only its hash, and no folder is
recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hypaware.clients import git, session_files
from hypaware.clients.client import Environment, ImportItem, Provenance, ProviderEvent, Source
from hypaware.clients.google_parts import to_blocks, to_result, to_usage
from hypaware.clients.reader import SourceLine, SourceReader, text_or_none, unknown_type_reason
from hypaware.home.durable_files import open_regular_file
from hypaware.model import canonical
from hypaware.model.expand import Exchange, Message
from hypaware.model.sanitize import to_utc_text
from hypaware.state.titles import MAX_RAW_LENGTH, SessionTitle

_ROLES = {"user": "user", "gemini": "assistant", "info": "system", "warning": "system", "error": "system"}
_USAGE = {
    "prompt": "input",
    "output": "output",
    "cached": "cached",
    "thoughts": "thoughts",
    "tool": "tool",
    "total": "total",
}
_META = ("sessionId", "projectHash", "startTime", "kind", "directories", "summary")
_SUFFIXES = (".jsonl", ".json")
_MAX_PATH_BYTES = 4096
# What the client says about the folder and the day, as the first message of the user.
_CONTEXT = "<session_context>"


class GeminiHistory:
    name = "gemini"
    summary = "Gemini CLI sessions: ~/.gemini/tmp (or GEMINI_CLI_HOME), including subagents"
    datasets = ("ai_gateway_messages",)
    only_if_found = True
    environment = ("GEMINI_CLI_HOME", "HOME")

    def folders(self, environment: Environment) -> tuple[Path, ...]:
        return (Path(environment.get("GEMINI_CLI_HOME") or environment["HOME"]) / ".gemini" / "tmp",)

    def find(self, environment: Environment) -> Iterator[Source | ProviderEvent]:
        (folder,) = self.folders(environment)
        return session_files.find_files(folder, _is_session)

    def first_time(self, head: bytes) -> str | None:
        return session_files.find_first_time(head)

    def session_of(self, path: Path, head: bytes) -> str | None:
        return session_files.find_session_id(head) if path.parent.name == "chats" else path.parent.name

    def read(self, reader: SourceReader, environment: Environment) -> Iterator[ImportItem | ProviderEvent]:
        chat = _Chat(reader.source.path)
        if reader.source.path.suffix == ".json":
            chat.read_document(reader)
        else:
            chat.read_lines(reader)
        if (title := chat.title()) is not None:
            reader.titles.append(title)
        exchange = _build_exchange(chat, reader)
        provenance = Provenance("gemini", str(reader.source.path), chat.thread)
        yield ImportItem("ai_gateway_messages", "ai_gateway.projected_exchange", exchange, provenance)


HISTORY = GeminiHistory()


def _is_session(path: Path) -> bool:
    """The path of a session's file, in `chats`, or of a subagent's, in a folder below it."""
    in_chats = path.parent.name == "chats" and path.name.startswith("session-")
    return path.suffix in _SUFFIXES and (in_chats or path.parent.parent.name == "chats")


@dataclass(frozen=True)
class _Place:
    """Where the last version of a message is: in a line of its own, or in a list of messages."""

    line: SourceLine
    index: int | None = None
    fresh: bool = True


@dataclass
class _Chat:
    path: Path
    meta: dict[str, Any] = field(default_factory=dict)
    messages: dict[str, _Place] = field(default_factory=dict)
    """Messages by id, or by place if they have none, in the order in which they appeared first."""
    answered: set[str] = field(default_factory=set)
    """Calls whose results are messages of their own."""
    last_time: str | None = None
    _listing: tuple[SourceLine, list[dict[str, Any]]] | None = None
    """The list of messages that was read last: the lines of a large source are not kept."""

    def value_of(self, place: _Place) -> dict[str, Any]:
        if place.index is None:
            return place.line.value
        if self._listing is None or self._listing[0] is not place.line:
            value = place.line.value
            changed = value.get("$set")
            self._listing = place.line, _listed(changed if isinstance(changed, dict) else value)
        return self._listing[1][place.index]

    @property
    def thread(self) -> str:
        return text_or_none(self.meta.get("sessionId")) or self.path.stem

    @property
    def session(self) -> str:
        """The session that a subagent belongs to names the folder of its file."""
        return self.thread if self.path.parent.name == "chats" else self.path.parent.name

    def title(self) -> SessionTitle | None:
        summary = text_or_none(self.meta.get("summary"))
        if summary is None or self.session != self.thread:
            return None
        return SessionTitle("client", summary[:MAX_RAW_LENGTH], self.session, self.last_time or "")

    def read_lines(self, reader: SourceReader) -> None:
        latest = None
        for line in reader.lines():
            value = line.value
            if isinstance(changed := value.get("$set"), dict):
                self._set(changed)
                for index, each in enumerate(_listed(changed)):
                    latest = self._add(line, each, index) or latest
            elif _is_message(value):
                latest = self._add(line, value) or latest
            elif "sessionId" in value:
                self._set(value)
            elif reader.is_new(line.offset):
                known = "$rewindTo" in value
                reader.skipped["bookkeeping" if known else unknown_type_reason(value.get("type"), reader.skipped)] += 1
        for key, place in self.messages.items():
            value = self.value_of(place)
            is_open = key == latest and value.get("type") == "gemini"
            if is_open and not reader.source.quiet and key not in reader.source.released:
                reader.held.add(key)
            time = to_utc_text(value.get("timestamp"))
            fresh = reader.wants(place.line, time, new=reader.is_new(place.line.offset, key))
            self.messages[key] = _Place(place.line, place.index, fresh and key not in reader.held)

    def read_document(self, reader: SourceReader) -> None:
        data, document = reader.read_all(), None
        try:
            document = None if data is None else canonical.loads(data)
        except (ValueError, RecursionError):
            pass
        if not isinstance(document, dict):
            reader.skipped["line_too_long" if data is None else "not_json"] += 1
            return
        self._set(document)
        whole = SourceLine(reader, 0, reader.size, document)
        for index, each in enumerate(_listed(document)):
            if _is_message(each):
                self._add(whole, each, index)
            else:
                reader.skipped[unknown_type_reason(each.get("type"), reader.skipped)] += 1
        for key, place in self.messages.items():
            fresh = reader.wants(whole, to_utc_text(self.value_of(place).get("timestamp")))
            self.messages[key] = _Place(whole, place.index, fresh)

    def _set(self, values: dict[str, Any]) -> None:
        self.meta |= {name: values[name] for name in _META if values.get(name) is not None}

    def _add(self, line: SourceLine, value: dict[str, Any], index: int | None = None) -> str | None:
        if not _is_message(value):
            return None
        key = text_or_none(value.get("id")) or f"@{line.offset}:{index}"
        known = self.messages.get(key)
        # A list repeats messages as they are; a line of their own is newer.
        if known is None or index is None:
            self.messages[key] = _Place(line, index)
        for block in to_blocks(value.get("content"), Counter()):
            if block["type"] == "tool_result" and isinstance(block["tool_use_id"], str):
                self.answered.add(block["tool_use_id"])
        self.last_time = to_utc_text(value.get("timestamp")) or self.last_time
        return key


def _is_message(value: dict[str, Any]) -> bool:
    return isinstance(kind := value.get("type"), str) and kind in _ROLES


def _listed(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a list; other values become empty, so that places stay the same."""
    messages = values.get("messages")
    return [each if isinstance(each, dict) else {} for each in messages] if isinstance(messages, list) else []


def _build_exchange(chat: _Chat, reader: SourceReader) -> Exchange:
    cwd = _read_project_folder(chat) or _first_folder(chat.meta.get("directories"))
    repository = git.find_repository(cwd) if cwd else git.NO_REPOSITORY
    is_subagent = chat.session != chat.thread
    return Exchange(
        provider="google",
        session_id=chat.session,
        conversation_id=chat.thread if is_subagent else None,
        client_name="gemini",
        started_at=chat.meta.get("startTime"),
        fallback_time=session_files.file_time(reader.source),
        columns={
            "conversation_source": "gemini",
            "cwd": cwd,
            "git_remote": repository.remote,
            "repo_root": repository.repo_root,
            "is_sidechain": True if is_subagent else None,
            "agent_id": chat.thread if is_subagent else None,
        },
        attributes={"gemini": {"project_hash": chat.meta["projectHash"]}} if "projectHash" in chat.meta else {},
        messages=_list_messages(chat, reader),
    )


def _list_messages(chat: _Chat, reader: SourceReader) -> Iterator[Message]:
    for key, place in chat.messages.items():
        value, skipped = chat.value_of(place), reader.skipped if place.fresh else Counter[str]()
        yield from _build_messages(chat, key, value, place.fresh, skipped)


def _build_messages(
    chat: _Chat, key: str, value: dict[str, Any], fresh: bool, skipped: Counter[str]
) -> Iterator[Message]:
    """Yield what was said, the calls, and a message for each result.

    Calls are a message of their own, because they can follow after their text was recorded. A result is named after its
    call, so that it is one row wherever the client repeats it.
    """
    kind = value["type"]
    blocks = to_blocks(value.get("content"), skipped)
    results = [(block["tool_use_id"], block) for block in blocks if block["type"] == "tool_result"]
    said = [block for block in blocks if block["type"] != "tool_result"]
    calls: list[dict[str, Any]] = []
    if kind == "error":
        said = [{"type": "error", "message": block.get("text")} for block in said]
    elif kind == "gemini":
        calls = [block for block in said if block["type"] == "tool_use"]
        said = [*_list_thoughts(value.get("thoughts")), *(each for each in said if each["type"] != "tool_use")]
        calls += _list_calls(value, calls)
        results += [each for each in _list_results(value) if each[0] not in chat.answered]
    is_context = bool(said) and str(said[0].get("text")).startswith(_CONTEXT)
    own_id = None if key.startswith("@") else key
    usage = to_usage(value.get("tokens"), _USAGE) if kind == "gemini" else None
    shared = {"model": value.get("model"), "provider_type": kind, "provider_uuid": own_id}
    build = partial(Message, created_at=value.get("timestamp"), fresh=fresh, columns=shared)
    if said or not (calls or results):
        role = "system" if is_context else _ROLES[kind]
        yield build(role=role, content=said, message_id=own_id, usage=usage)
    if calls:
        calls_id = own_id and f"{own_id}:calls"
        yield build(role="assistant", content=calls, message_id=calls_id, usage=None if said else usage)
    for index, (call, block) in enumerate(results):
        name = f"{chat.thread}:{call}" if isinstance(call, str) else own_id and f"{own_id}:{index}"
        yield build(role="tool", content=[block], message_id=name and f"{name}:result")


def _list_thoughts(thoughts: Any) -> Iterator[dict[str, Any]]:
    for each in thoughts if isinstance(thoughts, list) else ():
        if isinstance(each, dict):
            texts = [text for name in ("subject", "description") if (text := text_or_none(each.get(name)))]
            if texts:
                yield {"type": "thinking", "thinking": "\n".join(texts)}


def _calls(value: dict[str, Any]) -> list[dict[str, Any]]:
    calls = value.get("toolCalls")
    return [each for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []


def _list_calls(value: dict[str, Any], blocks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    shown = {block["id"] for block in blocks if isinstance(block["id"], str)}
    for each in _calls(value):
        if not isinstance(each.get("id"), str) or each["id"] not in shown:
            yield {"type": "tool_use", "id": each.get("id"), "name": each.get("name"), "input": each.get("args")}


def _list_results(value: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield (call, result) of results that are in their calls."""
    for each in _calls(value):
        call_id, result = each.get("id"), each.get("result")
        if result is None:
            continue
        found = to_blocks(result, Counter()) if isinstance(result, list) else [to_result(call_id, result)]
        for block in found:
            if block["type"] == "tool_result":
                failed = block["is_error"] or each.get("status") in ("error", "cancelled")
                yield call_id if isinstance(call_id, str) else None, {**block, "is_error": failed}


def _read_project_folder(chat: _Chat) -> str | None:
    chats = chat.path.parent if chat.path.parent.name == "chats" else chat.path.parent.parent
    try:
        with open_regular_file(chats.parent / ".project_root") as file:
            folder = file.read(_MAX_PATH_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return folder if folder.startswith("/") else None


def _first_folder(folders: Any) -> str | None:
    first = folders[0] if isinstance(folders, list) and folders else None
    return first if isinstance(first, str) and first.startswith("/") else None
