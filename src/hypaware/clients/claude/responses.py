"""Group transcript lines into API responses: token counts, and whether a response is finished.

A transcript has one line per content block, each with the token counts at that time. The counts of the last line
count once, on the last line of the response that makes a row; counts that a line lacks keep their earlier value.
Lines that appear after an import took the earlier ones carry the difference. Counts that no row can carry yet wait
for a line that can.

The last response of a thread may still grow. While the file is not quiet, the whole response is held back for the
next import. A response that an import took in part is not held back; its later lines carry differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypaware.clients.claude import usage
from hypaware.clients.claude.usage import Counts, counts_of

Thread = tuple[str | None, Any, bool]
"""(root of its lines, agent, sidechain): two agents that take turns writing to one file are two threads."""


@dataclass(slots=True, eq=False)
class Response:
    key: str | None
    """Its id if it, or a line of it, is held back; None if its lines cannot be grouped."""
    counts: Counts | None = None
    carried: Counts | None = None
    """The counts that earlier imports have recorded."""
    taken: bool = False
    """An earlier import made rows from it."""
    has_new_lines: bool = False
    """This import reads new lines of it."""
    stop_reason: Any = None
    last_line: int | None = None
    """Offset of the last line that makes a row in this import; it carries token counts and stop reason."""
    held: bool = False
    rowless: list[int] = field(default_factory=list)
    """Offsets of new lines that make no row."""

    def add(self, message: dict[str, Any], offset: int, *, is_new: bool, makes_row: bool) -> None:
        counts = counts_of(message.get("usage"))
        if counts is not None:
            self.counts = usage.newest(self.counts, counts)
            if not is_new:
                self.carried = self.counts
        self.has_new_lines |= is_new
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
        """Return whether it has counts that no line can carry and that no earlier import recorded."""
        return self.has_new_lines and self.last_line is None and not self.held and any((self.usage() or {}).values())


class Responses:
    def __init__(self) -> None:
        self._known: dict[str, Response] = {}
        self._last: dict[Thread, Response | None] = {}

    def get(self, session: str, api_id: str | None, request: Any) -> Response:
        """Return the response of a line, by its API id or else its request; otherwise one for the line alone."""
        by_request = f"{session}:{request}" if isinstance(request, str) else None
        key = f"{session}:{api_id}" if api_id is not None else by_request
        if key is None:
            return Response(None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Response(key)
        if by_request is not None:
            # A later line of it may lack the API id.
            self._known.setdefault(by_request, found)
        return found

    def set_last(self, thread: Thread, response: Response | None) -> None:
        """Set the last response of a thread; None if another message ended the previous response."""
        self._last[thread] = response

    def hold_unfinished(self) -> set[str]:
        """Hold back the responses that may still grow, and return their keys."""
        for response in self._last.values():
            if response is not None and not response.taken:
                response.held = True
        return {each.key for each in self._known.values() if each.held and each.key is not None}

    def hold_uncounted(self) -> set[str]:
        """Return the keys of lines whose counts no row can carry yet; a later line of the response may."""
        uncounted = [each for each in set(self._known.values()) if each.is_uncounted()]
        return {line_key(each.key, offset) for each in uncounted if each.key is not None for offset in each.rowless}


def line_key(response: str, offset: int) -> str:
    """Return the key under which a single line of a response is held back."""
    return f"{response}@{offset}"
