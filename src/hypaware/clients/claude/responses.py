"""Responses: which lines belong to one API message, what it cost, and whether it is finished.

A transcript has a line per content block, each with the counts as they stood: the last line's count, once, on the last
line of the response that makes a row. Lines of a response that come after an import took the earlier ones carry the
difference. The last response of a thread may still be written to, whatever it says: while the file is not quiet, all of
it waits for the next import. One that an import took in part does not wait any more: it goes on by differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypaware.clients.claude import usage
from hypaware.clients.claude.usage import Counts, counts_of

Thread = tuple[str | None, Any, bool]
"""(root of its lines, agent, sidechain): two agents that write in turns into one file are two threads."""


@dataclass(slots=True, eq=False)
class Response:
    api_id: str | None
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

    def add(self, message: dict[str, Any], offset: int, *, is_new: bool, makes_row: bool) -> None:
        counts = counts_of(message.get("usage"))
        if counts is not None:
            self.counts = counts
            if not is_new:
                self.carried = counts
        self.told |= is_new
        if (reason := message.get("stop_reason")) is not None:
            self.stop_reason = reason
        if not makes_row:
            return
        if is_new:
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
        self._known: dict[tuple[str, str, str], Response] = {}
        self._last: dict[Thread, Response | None] = {}

    def of(self, session: str, api_id: str | None, request: Any) -> Response:
        """The response that a line belongs to: by its API id, else by its request, else the line alone."""
        if api_id is not None:
            key = (session, "message", api_id)
        elif isinstance(request, str):
            key = (session, "request", request)
        else:
            return Response(None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Response(api_id)
        return found

    def follow(self, thread: Thread, response: Response | None) -> None:
        """The response, or something that is none but ends the one before it, stands last in its thread now."""
        self._last[thread] = response

    def uncounted(self) -> int:
        return sum(each.is_uncounted() for each in self._known.values())

    def hold_unfinished(self) -> set[str]:
        """Holds back what may still grow; the ids of it."""
        for response in self._last.values():
            if response is not None and not response.taken:
                response.held = True
        return {each.api_id for each in self._known.values() if each.held and each.api_id is not None}
