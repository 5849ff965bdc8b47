"""The first pass over a rollout file with lines `{timestamp, type, payload}`.

It collects the values that all messages share (session_meta, turn_context), which lines are messages, and which of
them carry token counts. The messages are built from the same lines later, when the exchange is expanded, so that a
large file is never in memory as a whole. Lines count in file order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hypaware.backfill.reading import Line, Reading
from hypaware.clients.codex import items
from hypaware.clients.codex.carriers import Carriers, Slot, held_key
from hypaware.clients.codex.items import Payload
from hypaware.clients.codex.usage import Tally
from hypaware.model.storable import utc_text

_READ = frozenset({"event_msg", "response_item", "session_meta", "token_usage_record", "turn_context"})
_BOOKKEEPING = frozenset(
    {
        "compacted",
        "inter_agent_communication",
        "inter_agent_communication_metadata",
        "security_risk_score",
        "world_state",
    }
)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:[\\/]|\\\\")


@dataclass
class Thread:
    """The thread of a rollout file."""

    meta: Payload = field(default_factory=dict)
    turn: Payload = field(default_factory=dict)
    """The context of the first turn."""
    cwd: str | None = None
    """The session's working folder, or else that of the first turn that has one."""
    first_time: str | None = None
    slots: list[Slot] = field(default_factory=list)


def read_thread(reading: Reading) -> Thread:
    return _FirstPass(reading).run()


def folder(path: Any) -> str | None:
    """Return a working folder if it is an absolute path, or else None."""
    return path if isinstance(path, str) and _ABSOLUTE.match(path) else None


class _FirstPass:
    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._thread = Thread()
        self._carriers = Carriers()
        self._tally = Tally()
        self._ids: set[str | None] = set()
        self._has_meta = False
        self._own_from = 0

    def run(self) -> Thread:
        thread, reading = self._thread, self._reading
        for line in reading.lines():
            value = line.value
            new = reading.is_new(line.offset, held_key(line.offset))
            if thread.first_time is None:
                thread.first_time = utc_text(value.get("timestamp"))
            reason = self._add(line, value, new)
            if reason is not None and new:
                reading.skipped[reason] += 1
        # The columns that all rows share are unknown until the first turn has begun.
        self._carriers.close(reading, hold_all=not thread.turn)
        thread.slots = self._carriers.slots
        return thread

    def _add(self, line: Line, value: dict[str, Any], new: bool) -> str | None:
        """Add a line; return a reason to count it as skipped, or None."""
        kind, payload, ordinal = value.get("type"), value.get("payload"), value.get("ordinal")
        if not isinstance(kind, str) or kind not in _READ:
            known = isinstance(kind, str) and kind in _BOOKKEEPING
            return "bookkeeping" if known else items.unknown_type(kind, self._reading.skipped)
        if not isinstance(payload, dict):
            return "no_payload"
        if isinstance(ordinal, int) and ordinal < self._own_from:
            return "inherited"
        counted = None
        match kind:
            case "response_item":
                return self._add_item(line, payload, new)
            case "session_meta":
                return self._set_meta(payload)
            case "turn_context":
                self._set_turn(payload)
            case "token_usage_record":
                counted = self._tally.add_record(payload)
            case _ if payload.get("type") == "token_count":
                counted = self._tally.add_snapshot(payload)
            case _:
                return "bookkeeping"
        if counted is not None:
            self._carriers.add_counts(line.offset, counted, new=new)
        return None

    def _add_item(self, line: Line, payload: Payload, new: bool) -> str | None:
        if not items.says(payload):
            return items.why_unsaid(payload) or items.unknown_type(payload.get("type"), self._reading.skipped)
        own_id = items.own_id(payload)
        repeated = own_id in self._ids
        if own_id is not None:
            self._ids.add(own_id)
        # `expand` skips a message that it has already seen, so counts on it would be lost.
        can_carry = not repeated and items.carries_usage(payload)
        if can_carry:
            self._tally.add_response()
        self._carriers.add_message(Slot(line, new), role=items.role_of(payload), can_carry=can_carry)
        return None

    def _set_turn(self, payload: Payload) -> None:
        self._thread.turn = self._thread.turn or payload
        if self._thread.cwd is None:
            self._thread.cwd = folder(payload.get("cwd"))

    def _set_meta(self, payload: Payload) -> str | None:
        if self._has_meta:
            return "bookkeeping"
        self._has_meta = True
        self._thread.meta = payload
        if (named := folder(payload.get("cwd"))) is not None:
            self._thread.cwd = named
        own_from = payload.get("subagent_history_start_ordinal")
        self._own_from = own_from if isinstance(own_from, int) else 0
        self._tally.is_fork = payload.get("forked_from_id") is not None or payload.get("history_base") is not None
        return None
