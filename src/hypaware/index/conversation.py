"""A session as a conversation: its messages in order, and its threads, of which one is the main thread.

Messages are ordered by time, then by their index in their transcript, then by sequence. Time comes first because a
session can have several transcripts, each with its own indexes: those of its subagents, and those that a resumed
session writes. Parts of one message stay together. Rows that are not part of the conversation are left out.

A subagent is a thread. The call that started it is, in this order, the one that its transcript names, the one whose
prompt is its first message, or, if its transcript has no prompt (Codex), the latest call before its first message that
starts agents and is not taken yet. Old transcripts of Claude Code mark the rows of subagents but do not name the agent;
there, a message without a predecessor begins a thread, and the others belong to the thread of their predecessor.

Only the order is computed at once. Contents are read in batches while the conversation is iterated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from hypaware.index.blocks import read_contents
from hypaware.index.filters import to_text
from hypaware.index.messages import Message, MessageOutline, MessageReader
from hypaware.index.prices import PriceTable, TokenCounts, load_prices
from hypaware.index.sessions import session_document

if TYPE_CHECKING:
    from hypaware.index.store import Index

AGENT_TOOLS = ("Task", "Agent", "spawn_agent")
"""The tools of the clients that start a subagent."""
_CODEX_AGENT_TOOL = "spawn_agent"
_PROMPTS = ("prompt", "message")
_FIRST_BATCH, _BATCH = 48, 512
"""Parts whose contents are read at once. The first batch is small, so that the first screen appears immediately."""


class Thread:
    """The main thread of a session, or one subagent.

    `name` is the client's id of the thread or agent, or that of its first message if the client gave it none. `parent`
    is the name of the thread that started it, `started_by` the id of the tool call that did.
    """

    def __init__(
        self,
        name: str | None,
        is_sidechain: bool = False,
        parent: str | None = None,
        started_by: str | None = None,
        started_at: str | None = None,
        count: Callable[[], tuple[TokenCounts, float | None]] = lambda: (TokenCounts(), None),
    ) -> None:
        self.name, self.is_sidechain, self.parent = name, is_sidechain, parent
        self.started_by, self.started_at = started_by, started_at
        self._count = count

    @cached_property
    def _counted(self) -> tuple[TokenCounts, float | None]:
        return self._count()

    @property
    def tokens(self) -> dict[str, int]:
        return self._counted[0].as_document()

    @property
    def cost_usd(self) -> float | None:
        return self._counted[1]

    def as_document(self) -> dict[str, Any]:
        names = ("name", "is_sidechain", "parent", "started_by", "started_at", "tokens", "cost_usd")
        return {name: getattr(self, name) for name in names}


class RecordedConversation:
    """A session as `hyp sessions` describes it, and its main thread, then the subagents in the order of their starts.

    `read` reads the messages of one thread, or of all threads if it is None.
    """

    def __init__(
        self,
        session: dict[str, Any],
        threads: tuple[Thread, ...],
        read: Callable[[Thread | None], Iterator[Message]],
    ) -> None:
        self.session, self.threads, self.read = session, threads, read

    def __iter__(self) -> Iterator[Message]:
        return self.read(None)

    def as_document(self) -> dict[str, Any]:
        threads = [thread.as_document() for thread in self.threads]
        return {"session": self.session, "threads": threads, "messages": list(self)}


def read_conversation(index: Index, session: int, prices: PriceTable | None = None) -> RecordedConversation:
    """Return the conversation of the session with this number (`sessions.id`)."""
    prices = prices or load_prices(index.home)
    document = session_document(index, session, prices)
    reader = MessageReader(index, prices)
    messages = reader.list_messages("p.session = :session", {"session": session})
    plan = _Plan(reader, messages, document["session_id"])
    return RecordedConversation(document, plan.list_threads(), plan.read)


class _PlannedThread:
    def __init__(self, name: str | None, is_sidechain: bool) -> None:
        self.name, self.is_sidechain = name, is_sidechain
        self.messages: list[MessageOutline] = []
        self.parent: _PlannedThread | None = None
        self.started_by: str | None = None

    @property
    def started_at(self) -> int:
        return self.messages[0].at

    def is_below(self, other: _PlannedThread) -> bool:
        thread: _PlannedThread | None = self
        while thread is not None and thread is not other:
            thread = thread.parent
        return thread is other


class _AgentCall(NamedTuple):
    id: str
    at: int
    tool: str
    prompt: str | None
    thread: _PlannedThread


class _Plan:
    """The messages of a session in order, and their threads, without contents."""

    def __init__(self, reader: MessageReader, messages: list[MessageOutline], session_id: str) -> None:
        self._reader = reader
        self._messages = messages
        self._main = _PlannedThread(None, False)
        self._subagents: dict[str, _PlannedThread] = {}
        kinds = {(message.thread, message.is_sidechain) for message in messages}
        names = reader.load_names(thread for thread, _ in kinds)
        own = {names[thread] for thread, is_sidechain in kinds if not is_sidechain}
        # A session can have an id that differs from that of its only thread.
        main_names = own & {None, session_id} or own
        self._main.name = next((name for name in main_names if name is not None), None)
        self._is_main = {kind: not kind[1] and names[kind[0]] in main_names for kind in kinds}
        if all(self._is_main.values()):
            self._main.messages = messages
        else:
            self._assign_threads(names)
            self._find_starting_calls()

    def _assign_threads(self, names: Mapping[int | None, str | None]) -> None:
        unnamed = [each for each in self._messages if each.thread is None and each.is_sidechain]
        named_by_first = self._name_threads(unnamed)
        for message in self._messages:
            if self._is_main[message.thread, message.is_sidechain]:
                self._main.messages.append(message)
            else:
                name = names[message.thread] or named_by_first[message.message]
                self._subagents.setdefault(name, _PlannedThread(name, True)).messages.append(message)

    def _name_threads(self, messages: Sequence[MessageOutline]) -> dict[int, str]:
        """Return the names of the threads of messages whose client does not name them, by message."""
        threads: dict[str, str] = {}
        found: dict[int, str] = {}
        last: str | None = None
        for message, content in zip(messages, self._reader.read_first_parts(messages), strict=True):
            own_id = content.message_id if content else str(message.message)
            parent = content.parent if content else None
            last = threads.get(parent, last or own_id) if parent else own_id
            threads[own_id] = found[message.message] = last
        return found

    def _find_starting_calls(self) -> None:
        threads = list(self._subagents.values())
        heads = self._reader.read_first_parts([each.messages[0] for each in threads])
        calls = self._list_calls()
        by_id = {call.id: call for call in calls}
        taken: set[str] = set()
        unresolved = []
        for thread, head in zip(threads, heads, strict=True):
            thread.parent = self._main
            if head and head.spawned_by:
                thread.started_by = head.spawned_by
                self._set_parent(thread, by_id.get(head.spawned_by), taken)
            elif head:
                unresolved.append((thread, head))
        for thread, head in unresolved:
            parent = self._subagents.get(head.parent_thread) if head.parent_thread else None
            if parent is not None and not parent.is_below(thread):
                thread.parent = parent
            possible = [call for call in calls if call.at <= thread.started_at and call.id not in taken]
            said = (head.text or "").strip()
            matching = [call for call in possible if said and call.prompt == said]
            if not matching and head.parent_thread:
                matching = [
                    call for call in possible if call.tool == _CODEX_AGENT_TOOL and call.thread is thread.parent
                ]
            if matching:
                thread.started_by = matching[-1].id
                self._set_parent(thread, matching[-1], taken)

    @staticmethod
    def _set_parent(thread: _PlannedThread, call: _AgentCall | None, taken: set[str]) -> None:
        if call is not None and not call.thread.is_below(thread):
            thread.parent = call.thread
            taken.add(call.id)

    def _list_calls(self) -> list[_AgentCall]:
        """Return the calls of tools that start subagents."""
        query = f"""
            SELECT p.seq, p.at, tool.name FROM parts p JOIN names tool ON tool.id = p.tool
            JOIN names type ON type.id = p.type AND type.name = 'tool_call'
            WHERE p.session = ? AND tool.name IN ({", ".join("?" * len(AGENT_TOOLS))}) ORDER BY p.at, p.seq"""
        session = self._messages[0].session
        rows = self._reader.index.connection.execute(query, (session, *AGENT_TOOLS)).fetchall()
        contents = read_contents(self._reader.index, [row[0] for row in rows])
        threads = {
            seq: thread
            for thread in (self._main, *self._subagents.values())
            for message in thread.messages
            for seq in message.seqs
        }
        calls = []
        for seq, at, tool in rows:
            content = contents.get(seq)
            if content is not None and content.tool_call_id is not None and seq in threads:
                calls.append(_AgentCall(content.tool_call_id, at, tool, _find_prompt(content.tool_args), threads[seq]))
        return calls

    def list_threads(self) -> tuple[Thread, ...]:
        subagents = sorted(self._subagents.values(), key=lambda each: each.messages[0])
        return tuple(map(self._to_thread, [self._main, *subagents]))

    def _to_thread(self, thread: _PlannedThread) -> Thread:
        return Thread(
            thread.name,
            thread.is_sidechain,
            thread.parent.name if thread.parent else None,
            thread.started_by,
            to_text(thread.started_at) if thread.messages else None,
            lambda: self._reader.count_tokens([seq for message in thread.messages for seq in message.seqs]),
        )

    def read(self, thread: Thread | None) -> Iterator[Message]:
        if thread is not None:
            planned = self._subagents[str(thread.name)] if thread.is_sidechain else self._main
            return self._read((message, planned.name) for message in planned.messages)
        names = {message.first_seq: each.name for each in self._subagents.values() for message in each.messages}
        return self._read((message, names.get(message.first_seq, self._main.name)) for message in self._messages)

    def _read(self, messages: Iterable[tuple[MessageOutline, str | None]]) -> Iterator[Message]:
        batch: list[tuple[MessageOutline, str | None]] = []
        parts, size = 0, _FIRST_BATCH
        for message in messages:
            batch.append(message)
            parts += len(message[0].seqs)
            if parts >= size:
                yield from self._reader.read_messages(batch)
                batch, parts, size = [], 0, _BATCH
        yield from self._reader.read_messages(batch)


def _find_prompt(args: Any) -> str | None:
    if not isinstance(args, dict):
        return None
    return next((args[name].strip() for name in _PROMPTS if isinstance(args.get(name), str)), None)
