"""Responses: which lines belong to one API message, what it cost, and whether it is finished.

A transcript has a line per content block, each with the counts as they stood: the last line's count, once, on the last
line of the response that makes a row; a line that notes only some counts leaves the others as they were. Lines of a
response that come after an import took the earlier ones carry the difference. Counts that no row can carry yet wait
for a line that can.

The last response of a thread may still be written to, whatever it says: while the file is not quiet, all of it waits
for the next import. One that an import took in part does not wait any more: it goes on by differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypaware.clients.claude import usage
from hypaware.clients.claude.usage import Counts, counts_of

Thread = tuple[str | None, Any, bool]
"""(root of its lines, agent, sidechain): two agents that write in turns into one file are two threads."""


@dataclass(slots=True, eq=False)
class Response:
    key: str | None
    """What it is called when it, or a line of it, is held back; None if its lines cannot be told to be one."""
    counts: Counts | None = None
    carried: Counts | None = None
    """The counts at the end of what earlier imports took."""
    taken: bool = False
    """An earlier import made rows of it."""
    told: bool = False
    """This import has lines of it."""
    stop_reason: Any = None
    last_line: int | None = None
    """Offset of the last line that makes a row in this import: it carries what there is once per response."""
    held: bool = False
    rowless: list[int] = field(default_factory=list)
    """Offsets of new lines that make no row."""

    def add(self, message: dict[str, Any], offset: int, *, is_new: bool, makes_row: bool) -> None:
        counts = counts_of(message.get("usage"))
        if counts is not None:
            self.counts = usage.newest(self.counts, counts)
            if not is_new:
                self.carried = self.counts
        self.told |= is_new
        if (reason := message.get("stop_reason")) is not None:
            self.stop_reason = reason
        if not makes_row:
            if is_new:
                self.rowless.append(offset)
        elif is_new:
            self.last_line = offset
        else:
            self.taken = True

    def usage(self) -> dict[str, Any] | None:
        if self.counts is None:
            return None
        if self.taken and self.carried is not None:
            return usage.difference(self.counts, self.carried) or None
        return usage.usage(self.counts)

    def is_uncounted(self) -> bool:
        """It has counts that no line of this import can carry, and no earlier one carried."""
        return self.told and self.last_line is None and not self.held and any((self.usage() or {}).values())


class Responses:
    def __init__(self) -> None:
        self._known: dict[str, Response] = {}
        self._last: dict[Thread, Response | None] = {}

    def of(self, session: str, api_id: str | None, request: Any) -> Response:
        """The response that a line belongs to: by its API id, else by its request, else the line alone."""
        by_request = f"{session}:{request}" if isinstance(request, str) else None
        key = f"{session}:{api_id}" if api_id is not None else by_request
        if key is None:
            return Response(None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Response(key)
        if by_request is not None:
            # A later line of it may have lost its API id.
            self._known.setdefault(by_request, found)
        return found

    def follow(self, thread: Thread, response: Response | None) -> None:
        """The response, or something that is none but ends the one before it, stands last in its thread now."""
        self._last[thread] = response

    def hold_unfinished(self) -> set[str]:
        """Holds back what may still grow; the keys of it."""
        for response in self._last.values():
            if response is not None and not response.taken:
                response.held = True
        return {each.key for each in self._known.values() if each.held and each.key is not None}

    def hold_uncounted(self) -> set[str]:
        """Keys of the lines whose counts no row could carry yet: a later line of the response may."""
        waiting = [each for each in set(self._known.values()) if each.is_uncounted()]
        return {line_key(each.key, offset) for each in waiting if each.key is not None for offset in each.rowless}


def line_key(response: str, offset: int) -> str:
    """A line of a response, where it alone is held back."""
    return f"{response}@{offset}"
