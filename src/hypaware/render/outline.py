"""The outline of a conversation: what every format shows, in the order in which it is read.

Messages become events. A result follows the call that it answers, whatever was said in between, and the messages of a
subagent stand between the call that started it and that call's result. Messages are read ahead only as far as that
needs, so the first events come immediately and memory stays bounded; a result that comes too late is an event of its
own.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple

from hypaware.index.conversation import RecordedConversation, Thread
from hypaware.index.messages import Message
from hypaware.index.schema import TOKENS
from hypaware.render.edits import list_changes

Part = dict[str, Any]
_ENCRYPTED = re.compile(r"[A-Za-z0-9+/_-]{40,}={0,2}")
_LOOKAHEAD = 256
"""Parts that a call waits for its result."""
_MAX_DEPTH = 16
"""Subagents of subagents are shown next to each other from here on."""


class Kind(Enum):
    """What a part that is no tool call or result is to the reader."""

    TEXT = "text"
    THINKING = "thinking"
    SUMMARY = "summary"
    """The summary that replaced the conversation in the model's context."""
    ERROR = "error"
    ATTACHMENT = "attachment"


class Speaker(NamedTuple):
    """From here on, someone else speaks: the user, the model, or (in a subagent) its prompt."""

    name: str
    """"you", "agent" or "prompt"."""
    message: Message
    depth: int

    @property
    def label(self) -> str:
        """The speaker for people: the model, or "You" or "Prompt"."""
        return (self.message["model"] or "agent") if self.name == "agent" else self.name.capitalize()


class Said(NamedTuple):
    kind: Kind
    message: Message
    part: Part
    depth: int


class Context(NamedTuple):
    """Texts that the client added, one after the other: instructions, reminders, the environment."""

    entries: tuple[tuple[Message, Part], ...]
    depth: int

    @property
    def texts(self) -> list[str]:
        return [part["text"] or "" for _, part in self.entries]

    @property
    def lines(self) -> int:
        return sum(len(text.strip().splitlines()) for text in self.texts)


class Call(NamedTuple):
    """A tool call begins; subagents that it started follow, then `CallEnd`."""

    message: Message
    part: Part
    result: Part | None
    depth: int
    has_agents: bool = False
    result_message: Message | None = None
    is_answered: bool = False
    """The result was shown before: a client can write it before the call is known."""

    @property
    def is_edit(self) -> bool:
        return list_changes(self.part["tool_args"]) is not None


class CallEnd(NamedTuple):
    call: Call


class LateResult(NamedTuple):
    """A result whose call is too far above it, or unknown."""

    message: Message
    part: Part
    depth: int


class AgentStart(NamedTuple):
    thread: Thread
    depth: int


class AgentEnd(NamedTuple):
    thread: Thread
    depth: int


class TurnEnd:
    """The sums over one turn: what the user said, and everything up to the next time."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.calls = self.errors = 0
        self.tokens = dict.fromkeys(TOKENS, 0)
        self.cost_usd: float | None = None
        self.first_at: datetime | None = None
        self.last_at: datetime | None = None

    @property
    def seconds(self) -> float:
        return (self.last_at - self.first_at).total_seconds() if self.first_at and self.last_at else 0.0

    def add(self, message: Message) -> None:
        at = to_time(message["at"])
        self.first_at = self.first_at or at
        self.last_at = max(self.last_at or at, at)
        for name, count in (message["tokens"] or {}).items():
            self.tokens[name] += count
        if message["cost_usd"] is not None:
            self.cost_usd = (self.cost_usd or 0.0) + message["cost_usd"]


Event = Speaker | Said | Context | Call | CallEnd | LateResult | AgentStart | AgentEnd | TurnEnd


class _Entry:
    def __init__(self, message: Message, part: Part, *, is_first: bool) -> None:
        """`is_first`: it is the first part of its message."""
        self.message, self.part, self.is_first = message, part, is_first
        self.result: Part | None = None
        self.result_message: Message | None = None
        self.waits = False


def outline(conversation: RecordedConversation) -> Iterator[Event]:
    """Yield the events of the whole conversation."""
    return _Outline(conversation).main()


class _Outline:
    def __init__(self, conversation: RecordedConversation) -> None:
        self._conversation = conversation
        self._main, *subagents = conversation.threads or (Thread(None),)
        self._unseen = {each.name: each for each in subagents}
        self._by_call: dict[str, list[Thread]] = defaultdict(list)
        for each in subagents:
            if each.started_by:
                self._by_call[each.started_by].append(each)
        self._turn = TurnEnd(1)

    def main(self) -> Iterator[Event]:
        yield from self._walk(self._main, 0)
        while self._unseen:
            yield from self._agent(next(iter(self._unseen.values())), 1)
        if self._turn.first_at is not None:
            yield self._turn

    def _walk(self, thread: Thread, depth: int) -> Iterator[Event]:
        speaker: str | None = None
        turn: Message | None = None
        context: list[tuple[Message, Part]] = []
        for entry in pair_results(self._conversation.read(thread)):
            message, part = entry.message, entry.part
            name = speaker_of(message, part)
            begins_turn = part["is_typed"] and message is not turn
            if depth == 0:
                yield from self._agents_without_call(message)
            if context and not is_context(message, part):
                yield Context(tuple(context), depth)
                context = []
            if begins_turn:
                if turn is not None:
                    yield self._turn
                    self._turn = TurnEnd(self._turn.number + 1)
                turn = message
            if entry.is_first:
                self._turn.add(message)
            self._turn.errors += part["is_error"] + (entry.result is not None and entry.result["is_error"])
            if name is not None and (name != speaker or begins_turn):
                speaker = name
                yield Speaker(name, message, depth)
            if is_context(message, part):
                context.append((message, part))
            elif part["type"] == "tool_call":
                self._turn.calls += 1
                yield from self._call(entry, depth)
            elif part["type"] == "tool_result":
                yield LateResult(message, part, depth)
            else:
                yield Said(kind_of(message, part), message, part, depth)
        if context:
            yield Context(tuple(context), depth)

    def _call(self, entry: _Entry, depth: int) -> Iterator[Event]:
        agents = [each for each in self._by_call.get(entry.part["tool_call_id"] or "", ()) if each.name in self._unseen]
        if depth >= _MAX_DEPTH:
            agents = []
        call = Call(entry.message, entry.part, entry.result, depth, bool(agents), entry.result_message)
        yield call
        for each in agents:
            yield from self._agent(each, depth + 1)
        yield CallEnd(call)

    def _agent(self, thread: Thread, depth: int) -> Iterator[Event]:
        # Two calls can have one id, and a client can name a call of the subagent itself.
        if self._unseen.pop(thread.name, None) is None:
            return
        yield AgentStart(thread, depth)
        yield from self._walk(thread, depth)
        yield AgentEnd(thread, depth)

    def _agents_without_call(self, message: Message) -> Iterator[Event]:
        """Yield the subagents that began before this message and whose call did not come."""
        for each in list(self._unseen.values()):
            if each.started_at is None or to_time(each.started_at) >= to_time(message["at"]):
                break
            yield from self._agent(each, 1)


class LiveOutline:
    """The outline of messages that arrive one by one. A result is shown when it comes, not below its call."""

    def __init__(self) -> None:
        self._last: tuple[str, str | None, str | None] | None = None
        self._calls: deque[str] = deque(maxlen=_LOOKAHEAD)
        self._answered: deque[str] = deque(maxlen=_LOOKAHEAD)

    def add(self, session_id: str, message: Message) -> Iterator[Event]:
        depth = int(message["is_sidechain"])
        for part in message["parts"]:
            name = speaker_of(message, part)
            key = (session_id, message["thread"], name)
            if name is not None and (key != self._last or part["is_typed"]):
                yield Speaker(name, message, depth)
                self._last = key
            if is_context(message, part):
                yield Context(((message, part),), depth)
            elif part["type"] == "tool_call":
                self._calls.append(part["tool_call_id"])
                yield Call(message, part, None, depth, is_answered=part["tool_call_id"] in self._answered)
            elif part["type"] == "tool_result":
                if part["tool_result_for"] not in self._calls:
                    self._answered.append(part["tool_result_for"])
                yield LateResult(message, part, depth)
            else:
                yield Said(kind_of(message, part), message, part, depth)


def pair_results(messages: Iterable[Message]) -> Iterator[_Entry]:
    """Yield the parts in order, each result together with its call."""
    queue: deque[_Entry] = deque()
    open_calls: dict[str, _Entry] = {}
    for message in messages:
        if message["is_turn"]:
            open_calls.clear()
            for entry in queue:
                entry.waits = False
        is_first = True
        for part in message["parts"]:
            if part["type"] == "tool_result" and (call := open_calls.pop(part["tool_result_for"] or "", None)):
                call.result, call.result_message, call.waits = part, message, False
                continue
            entry = _Entry(message, part, is_first=is_first)
            is_first = False
            if part["type"] == "tool_call" and part["tool_call_id"]:
                entry.waits = True
                open_calls[part["tool_call_id"]] = entry
            queue.append(entry)
        while queue and (not queue[0].waits or len(queue) > _LOOKAHEAD):
            entry = queue.popleft()
            if entry.waits:
                open_calls.pop(entry.part["tool_call_id"], None)
            yield entry
    yield from queue


def to_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def speaker_of(message: Message, part: Part) -> str | None:
    """Return who speaks, or None for parts without a speaker: results, and what the client adds."""
    if part["type"] == "tool_result" or message["is_compact_summary"]:
        return None
    if message["role"] == "assistant":
        return "agent"
    if part["is_typed"]:
        return "you"
    return "prompt" if message["is_sidechain"] and message["role"] == "user" and message["parent"] is None else None


def is_context(message: Message, part: Part) -> bool:
    return part["type"] == "text" and not message["is_compact_summary"] and speaker_of(message, part) is None


def kind_of(message: Message, part: Part) -> Kind:
    match part["type"]:
        case "text":
            return Kind.SUMMARY if message["is_compact_summary"] else Kind.TEXT
        case "reasoning":
            return Kind.THINKING
        case "error":
            return Kind.ERROR
    return Kind.ATTACHMENT


def readable_thinking(text: str) -> str:
    """Return the thinking, or a note if the provider sent it encrypted."""
    return "(encrypted)" if _ENCRYPTED.fullmatch(text) else text
