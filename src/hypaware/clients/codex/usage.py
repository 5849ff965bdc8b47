"""Token counts of a Codex thread: count each response once, and assign the counts to messages.

A `token_count` event contains a snapshot: the running total and what the last response added. It is repeated whenever
something else changes (rate limits), contains an estimate after a compaction, and has no figures before the first
response of a process. Newer versions also write a `token_usage_record` per response, before its snapshot. Therefore
figures count when the running total has changed, and a record and its snapshot count once. The total itself never
counts: it may restart (older versions, on resume) or start at the parent's (forks).

Counts follow their messages, so they go to the last message of the turn that can carry them (text or a tool call of the
model); a turn begins with the user's message. An imported message cannot change any more, therefore:

- while the file is being written, messages after the turn's last counts are held back, because counts may follow;
- counts whose message was imported earlier wait for the next message that can carry them, in a later turn if necessary;
- counts before the first such message of their turn wait for one in this turn, and are dropped without it.

Everything held back is recorded under its offset, so that the next import reads it as new. In a quiet file no message
is held back, and neither is one that the reader releases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from hypaware.clients.reader import SourceLine, SourceReader

_MAX_COUNT = 2**53
_FIGURE_NAMES = (
    *("input_tokens", "cached_input_tokens", "cache_write_input_tokens"),
    *("output_tokens", "reasoning_output_tokens", "total_tokens"),
)


class TokenFigure(NamedTuple):
    """Token counts as the client writes them: `input` includes cached tokens, `output` includes reasoning."""

    input: int
    cached: int
    cache_write: int
    output: int
    reasoning: int
    total: int

    @property
    def is_measured(self) -> bool:
        """False for an estimate of the context size, which has only a total."""
        return any(self[:-1])

    def as_usage(self) -> dict[str, int]:
        usage = {
            "input_tokens": max(0, self.input - self.cached),
            "output_tokens": self.output,
            "cache_read_tokens": self.cached,
            "reasoning_tokens": self.reasoning,
        }
        if self.cache_write:
            usage["cache_write_tokens"] = self.cache_write
        if self.total:
            usage["total_tokens"] = self.total
        return usage


def parse_figure(counts: Any) -> TokenFigure | None:
    """Return the figure of a usage object, or None if there is none; invalid counts are zero."""
    if not isinstance(counts, dict):
        return None
    values = (counts.get(name) for name in _FIGURE_NAMES)
    return TokenFigure(*(value if type(value) is int and 0 <= value < _MAX_COUNT else 0 for value in values))


class UsageCounter:
    """Decides, in file order, which figures count."""

    def __init__(self) -> None:
        self.is_fork = False
        """The thread is a fork: figures before its first response belong to its parent."""
        self._total: TokenFigure | None = None
        self._counted: TokenFigure | None = None
        self._counted_by: Literal["record", "snapshot"] | None = None
        """The kind of line that the last counted figure came from, until the other kind has repeated it."""
        self._has_response = self._ever_had_response = False
        self._responses: dict[str, TokenFigure] = {}

    def add_response(self) -> None:
        """Note a message of the model. An equal figure after it counts again, unless the total is equal too."""
        self._has_response = self._ever_had_response = True

    def add_snapshot(self, payload: dict[str, Any]) -> TokenFigure | None:
        """Return what a `token_count` event adds."""
        info = payload.get("info")
        if not isinstance(info, dict):
            # The client restarts its counter: an equal total after this is not a repetition.
            self._total = None
            return None
        total, last = parse_figure(info.get("total_token_usage")), parse_figure(info.get("last_token_usage"))
        known = self._is_known(total, last) or (self._counted_by == "record" and last == self._counted)
        self._total = total
        if last is None or not last.is_measured or (self.is_fork and not self._ever_had_response):
            return None
        if not known:
            return self._count(last, "snapshot")
        if self._counted_by == "record":
            self._counted_by = None
        return None

    def add_record(self, payload: dict[str, Any]) -> TokenFigure | None:
        """Return what a `token_usage_record` adds; a repeated response adds only the difference."""
        used, total = parse_figure(payload.get("usage")), parse_figure(payload.get("thread_token_usage"))
        if used is None or not used.is_measured:
            return None
        response = payload.get("response_id")
        if isinstance(response, str):
            before, self._responses[response] = self._responses.get(response), used
            if before is not None:
                more = TokenFigure(*(max(0, now - then) for now, then in zip(used, before, strict=True)))
                return more if more.is_measured else None
        known = self._counted_by == "snapshot" and self._is_known(total, used)
        self._total = total
        if not known:
            return self._count(used, "record")
        self._counted_by = None
        return None

    def _is_known(self, total: TokenFigure | None, last: TokenFigure | None) -> bool:
        if total is not None and self._total is not None:
            return total == self._total
        return last == self._counted and not self._has_response

    def _count(self, last: TokenFigure, source: Literal["record", "snapshot"]) -> TokenFigure:
        self._counted, self._counted_by = last, source
        self._has_response = False
        return last


@dataclass(slots=True)
class MessageSlot:
    """A message of the thread: its line, and the token counts it carries."""

    line: SourceLine
    new: bool
    """No earlier import has read it."""
    usage: Counter[str] | None = None
    counts_at: tuple[int, ...] = ()
    """Offsets of the lines whose counts it carries."""
    held: bool = False

    def carry(self, counts: Iterable[tuple[int, TokenFigure]]) -> None:
        for offset, figure in counts:
            self.usage = Counter() if self.usage is None else self.usage
            self.usage.update(figure.as_usage())
            self.counts_at += (offset,)


class UsageCarriers:
    def __init__(self) -> None:
        self.slots: list[MessageSlot] = []
        self.dropped = 0
        """The number of counts whose turn has no message that can carry them."""
        self._carrier: MessageSlot | None = None
        self._unfinished: int | None = None
        self._early: list[tuple[int, TokenFigure]] = []
        self._late: list[tuple[int, TokenFigure]] = []

    def add_message(self, slot: MessageSlot, *, role: str, can_carry: bool) -> None:
        if role == "user":
            self._carrier = self._unfinished = None
            self.dropped += len(self._early)
            self._early = []
        elif role == "assistant" and slot.new and self._unfinished is None:
            self._unfinished = len(self.slots)
        self.slots.append(slot)
        if can_carry:
            self._carrier = slot
            slot.carry((*self._late, *self._early))
            self._late, self._early = [], []

    def add_counts(self, offset: int, figure: TokenFigure, *, new: bool) -> None:
        self._unfinished = None
        if not new:
            return
        if self._carrier is None:
            self._early.append((offset, figure))
        elif self._carrier.new:
            self._carrier.carry([(offset, figure)])
        else:
            self._late.append((offset, figure))

    def close(self, reader: SourceReader, *, hold_all: bool) -> None:
        """Finish at the end of the file: hold back messages that may change, and count unassigned counts as skipped."""
        quiet = reader.source.quiet
        unfinished = self.slots if hold_all else [] if self._unfinished is None else self.slots[self._unfinished :]
        released = frozenset[str]() if hold_all else reader.source.released
        for slot in unfinished if not quiet else ():
            if slot.new and held_key(slot.line.offset) not in released:
                slot.held = True
                reader.held.update(map(held_key, (slot.line.offset, *slot.counts_at)))
        if quiet:
            self.dropped += len(self._early)
        else:
            reader.held.update(held_key(offset) for offset, _ in self._early)
        reader.held.update(held_key(offset) for offset, _ in self._late)
        unassigned = {"usage_without_message": self.dropped, "usage_waiting": len(self._late) if quiet else 0}
        reader.skipped.update({reason: count for reason, count in unassigned.items() if count})


def held_key(offset: int) -> str:
    return str(offset)
