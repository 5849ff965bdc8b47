"""Count each response's tokens once, from the repeated notices that Codex writes.

A `token_count` event contains a snapshot: the running total and what the last response added. It is repeated whenever
something else changes (rate limits), contains an estimate instead of the last figures after a compaction, and has no
figures before the first response of a process. Newer versions also write a `token_usage_record` per response, before
its snapshot. Therefore figures count when the running total has changed, and a record and its snapshot count once. A
total that restarts (older versions, on resume) or starts at the parent's (forks) is not a figure of this file: only
what the last response added is counted, never the total.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

_MAX_COUNT = 2**53


class Figure(NamedTuple):
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

    def minus(self, other: Figure) -> Figure:
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
    """Return the figure of a usage object, or None if there is none; invalid counts are zero."""
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
    """Decides, in file order, which figures count."""

    def __init__(self) -> None:
        self.is_fork = False
        """The thread is a fork: figures before its first response belong to its parent."""
        self._total: Figure | None = None
        self._counted: Figure | None = None
        self._counted_by: Literal["record", "snapshot"] | None = None
        """The kind of line that the last counted figure came from, until the other kind has repeated it."""
        self._has_response = self._ever_had_response = False
        self._responses: dict[str, Figure] = {}

    def add_response(self) -> None:
        """Note a message of the model. An equal figure after it counts again, unless the total is equal too."""
        self._has_response = self._ever_had_response = True

    def add_snapshot(self, payload: dict[str, Any]) -> Figure | None:
        """Return what a `token_count` event adds."""
        info = payload.get("info")
        if not isinstance(info, dict):
            # The client restarts its counter: an equal total after this is not a repetition.
            self._total = None
            return None
        total, last = figure(info.get("total_token_usage")), figure(info.get("last_token_usage"))
        known = self._is_known(total, last) or (self._counted_by == "record" and last == self._counted)
        self._total = total
        if last is None or not last.is_measured or (self.is_fork and not self._ever_had_response):
            return None
        if not known:
            return self._count(last, "snapshot")
        if self._counted_by == "record":
            self._counted_by = None
        return None

    def add_record(self, payload: dict[str, Any]) -> Figure | None:
        """Return what a `token_usage_record` adds; a repeated response adds only the difference."""
        used, total = figure(payload.get("usage")), figure(payload.get("thread_token_usage"))
        if used is None or not used.is_measured:
            return None
        response = payload.get("response_id")
        if isinstance(response, str):
            before, self._responses[response] = self._responses.get(response), used
            if before is not None:
                more = used.minus(before)
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
        return last == self._counted and not self._has_response

    def _count(self, last: Figure, source: Literal["record", "snapshot"]) -> Figure:
        self._counted, self._counted_by = last, source
        self._has_response = False
        return last
