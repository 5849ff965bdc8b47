"""Token counts of a thread, each response's once, out of what the client writes about them again and again.

A `token_count` event shows a snapshot: the running total and what the last response added. It is repeated whenever
anything else changes (rate limits), with an estimate in place of the last figure after a compaction, and without any
figures before the first response of a process. Newer versions also write a `token_usage_record` per response, before
its snapshot. So a figure counts when the running total moved with it, and a record and its snapshot count once.
A total that starts again (older versions, on resume) or at the parent's (forks) is no figure of this file: only what
the last response added is ever counted, never the total itself.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

_MAX_COUNT = 2**53


class Figure(NamedTuple):
    """Counts as the client writes them: `input` holds the cached ones, `output` the reasoning."""

    input: int
    cached: int
    cache_write: int
    output: int
    reasoning: int
    total: int

    @property
    def is_measured(self) -> bool:
        """Estimates of how full the context is have a total alone."""
        return any(self[:-1])

    def beyond(self, other: Figure) -> Figure:
        return Figure(*(max(0, mine - theirs) for mine, theirs in zip(self, other, strict=True)))

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


def figure(counts: Any) -> Figure | None:
    """None if there are no counts; one that is no count is zero."""
    if not isinstance(counts, dict):
        return None
    return Figure(*(_count(counts.get(name)) for name in _NAMES))


_NAMES = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0


class Tally:
    """What counts, in the order of the file."""

    def __init__(self) -> None:
        self.inherits = False
        """The thread is a fork: what is said of tokens before its first answer is said of its parent."""
        self._total: Figure | None = None
        self._counted: Figure | None = None
        self._counted_by: Literal["record", "snapshot"] | None = None
        """Who told of the figure that was counted last, until the other one has told of it too."""
        self._answered = self._ever_answered = False
        self._responses: dict[str, Figure] = {}

    def answered(self) -> None:
        """The model said something: an equal figure after it is another response's, if no total tells otherwise."""
        self._answered = self._ever_answered = True

    def snapshot(self, payload: dict[str, Any]) -> Figure | None:
        """What a `token_count` event adds."""
        info = payload.get("info")
        if not isinstance(info, dict):
            # The client begins to count anew: a total like the one before is no repetition then.
            self._total = None
            return None
        total, last = figure(info.get("total_token_usage")), figure(info.get("last_token_usage"))
        known = self._is_known(total, last) or (self._counted_by == "record" and last == self._counted)
        self._total = total
        if last is None or not last.is_measured or (self.inherits and not self._ever_answered):
            return None
        if not known:
            return self._count(last, "snapshot")
        if self._counted_by == "record":
            self._counted_by = None
        return None

    def record(self, payload: dict[str, Any]) -> Figure | None:
        """What a `token_usage_record` adds. The same response again adds what it has more."""
        used, total = figure(payload.get("usage")), figure(payload.get("thread_token_usage"))
        if used is None or not used.is_measured:
            return None
        response = payload.get("response_id")
        if isinstance(response, str):
            before, self._responses[response] = self._responses.get(response), used
            if before is not None:
                more = used.beyond(before)
                return more if more.is_measured else None
        known = self._counted_by == "snapshot" and self._is_known(total, used)
        self._total = total
        if not known:
            return self._count(used, "record")
        self._counted_by = None
        return None

    def _is_known(self, total: Figure | None, last: Figure | None) -> bool:
        if total is not None and self._total is not None:
            return total == self._total
        return last == self._counted and not self._answered

    def _count(self, last: Figure, told_by: Literal["record", "snapshot"]) -> Figure:
        self._counted, self._counted_by = last, told_by
        self._answered = False
        return last
