"""Group transcript lines into API responses: token counts, and whether a response is finished.

A transcript has one line per content block, each with the token counts at that time. The counts of the last line
count once, on the last line of the response that makes a row; counts that a line lacks keep their earlier value.
Lines that appear after an import of the earlier ones carry the difference. Counts that no row can carry yet wait
for a line that can. Input does not include cached tokens; output includes thinking.

The last response of a thread may still grow. While the file is not quiet, the whole response is held back for the
next import. A partly imported response is not held back; its later lines carry differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

COUNT_NAMES = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
Counts = tuple[Any, Any, Any, Any, Any]
"""In the order of `COUNT_NAMES`. A compact form, because the next line replaces most of them."""
ThreadKey = tuple[str | None, Any, bool]
"""(root of its lines, agent, sidechain): two agents that take turns writing to one file are two threads."""


@dataclass(slots=True, eq=False)
class TranscriptResponse:
    key: str | None
    """Its id if it, or a line of it, is held back; None if its lines cannot be grouped."""
    counts: Counts | None = None
    carried: Counts | None = None
    """The counts that earlier imports have recorded."""
    partly_imported: bool = False
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
        counts = get_counts(message.get("usage"))
        if counts is not None:
            self.counts = merge_counts(self.counts, counts)
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
            self.partly_imported = True

    def usage(self) -> dict[str, Any] | None:
        if self.counts is None:
            return None
        if self.partly_imported and self.carried is not None:
            return subtract_counts(self.counts, self.carried) or None
        return to_usage(self.counts)

    def is_uncounted(self) -> bool:
        """Return whether it has counts that no line can carry and that no earlier import recorded."""
        return self.has_new_lines and self.last_line is None and not self.held and any((self.usage() or {}).values())


class TranscriptResponses:
    def __init__(self) -> None:
        self._known: dict[str, TranscriptResponse] = {}
        self.last: dict[ThreadKey, TranscriptResponse | None] = {}
        """The last response of each thread; None if another message ended the previous response."""

    def get(self, session: str, api_id: str | None, request: Any) -> TranscriptResponse:
        """Return the response of a line, by its API id or else its request; otherwise one for the line alone."""
        by_request = f"{session}:{request}" if isinstance(request, str) else None
        key = f"{session}:{api_id}" if api_id is not None else by_request
        if key is None:
            return TranscriptResponse(None)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = TranscriptResponse(key)
        if by_request is not None:
            # A later line of it may lack the API id.
            self._known.setdefault(by_request, found)
        return found

    def hold_unfinished(self) -> set[str]:
        """Hold back the responses that may still grow, and return their keys."""
        for response in self.last.values():
            if response is not None and not response.partly_imported:
                response.held = True
        return {each.key for each in self._known.values() if each.held and each.key is not None}

    def hold_uncounted(self) -> set[str]:
        """Return the keys of lines whose counts no row can carry yet; a later line of the response may."""
        uncounted = [each for each in set(self._known.values()) if each.is_uncounted()]
        return {
            held_line_key(each.key, offset) for each in uncounted if each.key is not None for offset in each.rowless
        }


def held_line_key(response: str, offset: int) -> str:
    """Return the key under which a single line of a response is held back."""
    return f"{response}@{offset}"


def get_counts(usage_block: Any) -> Counts | None:
    """Return the counts of a line's usage, or None if it has none."""
    if not isinstance(usage_block, dict):
        return None
    details = usage_block.get("output_tokens_details")
    return (
        usage_block.get("input_tokens"),
        usage_block.get("output_tokens"),
        usage_block.get("cache_read_input_tokens"),
        usage_block.get("cache_creation_input_tokens"),
        (details.get("thinking_tokens") or None) if isinstance(details, dict) else None,
    )


def merge_counts(older: Counts | None, newer: Counts) -> Counts:
    """Return the newer counts, with the older value for each missing one."""
    if older is None or None not in newer:
        return newer
    return (
        older[0] if newer[0] is None else newer[0],
        older[1] if newer[1] is None else newer[1],
        older[2] if newer[2] is None else newer[2],
        older[3] if newer[3] is None else newer[3],
        older[4] if newer[4] is None else newer[4],
    )


def to_usage(counts: Counts) -> dict[str, Any]:
    return {name: count for name, count in zip(COUNT_NAMES, counts, strict=True) if count is not None}


def subtract_counts(counts: Counts, carried: Counts) -> dict[str, Any]:
    """Return what to add to the recorded counts; empty if there is no difference."""
    more = (_to_int(now) - _to_int(before) for now, before in zip(counts, carried, strict=True))
    return {name: count for name, count in zip(COUNT_NAMES, more, strict=True) if count}


def _to_int(count: Any) -> int:
    return count if type(count) is int else 0
