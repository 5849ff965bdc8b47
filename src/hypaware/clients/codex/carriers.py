"""Assign token counts to messages, and hold back messages whose counts are still to come.

The counts of a response follow its messages, so they go to the last message of the turn that can carry them (text or
a tool call of the model); a turn begins with the user's message. Counts belong to the import that first reads their
line. An imported message cannot change any more, therefore:

- while the file is being written, messages after the turn's last counts are held back, because counts may follow;
- counts whose message was imported earlier wait for the next message that can carry them, in a later turn if necessary;
- counts before the first such message of their turn wait for one in this turn, and are dropped without it.

Everything held back is recorded under its offset, so that the next import reads it as new. In a quiet file no message
is held back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from hypaware.backfill.reading import Line, Reading
from hypaware.clients.codex.usage import Figure


@dataclass(slots=True)
class Slot:
    """A message of the thread: its line, and the token counts it carries."""

    line: Line
    new: bool
    """No earlier import has read it."""
    usage: Counter[str] | None = None
    counts_at: tuple[int, ...] = ()
    """Offsets of the lines whose counts it carries."""
    held: bool = False

    def carry(self, counts: Iterable[tuple[int, Figure]]) -> None:
        for offset, figure in counts:
            self.usage = Counter() if self.usage is None else self.usage
            self.usage.update(figure.as_usage())
            self.counts_at += (offset,)


def held_key(offset: int) -> str:
    return str(offset)


class Carriers:
    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.dropped = 0
        """The number of counts whose turn has no message that can carry them."""
        self._carrier: Slot | None = None
        self._unfinished: int | None = None
        self._early: list[tuple[int, Figure]] = []
        self._late: list[tuple[int, Figure]] = []

    def add_message(self, slot: Slot, *, role: str, can_carry: bool) -> None:
        if role == "user":
            self._end_turn()
        elif role == "assistant" and slot.new and self._unfinished is None:
            self._unfinished = len(self.slots)
        self.slots.append(slot)
        if can_carry:
            self._carrier = slot
            slot.carry((*self._late, *self._early))
            self._late, self._early = [], []

    def add_counts(self, offset: int, figure: Figure, *, new: bool) -> None:
        self._unfinished = None
        if not new:
            return
        if self._carrier is None:
            self._early.append((offset, figure))
        elif self._carrier.new:
            self._carrier.carry([(offset, figure)])
        else:
            self._late.append((offset, figure))

    def close(self, reading: Reading, *, hold_all: bool) -> None:
        """Finish at the end of the file: hold back messages that may change, and count unassigned counts as skipped."""
        quiet = reading.source.quiet
        unfinished = self.slots if hold_all else [] if self._unfinished is None else self.slots[self._unfinished :]
        for slot in unfinished if not quiet else ():
            if slot.new:
                slot.held = True
                reading.held.update(map(held_key, (slot.line.offset, *slot.counts_at)))
        if quiet:
            self.dropped += len(self._early)
        else:
            reading.held.update(held_key(offset) for offset, _ in self._early)
        reading.held.update(held_key(offset) for offset, _ in self._late)
        unassigned = {"usage_without_message": self.dropped, "usage_waiting": len(self._late) if quiet else 0}
        reading.skipped.update({reason: count for reason, count in unassigned.items() if count})

    def _end_turn(self) -> None:
        self._carrier = self._unfinished = None
        self.dropped += len(self._early)
        self._early = []
