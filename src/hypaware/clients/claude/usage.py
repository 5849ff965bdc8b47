"""Token counts as Claude Code notes them, under the table's names.

Input is net of the cache already; thinking is part of the output.
"""

from __future__ import annotations

from typing import Any

NAMES = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
Counts = tuple[Any, Any, Any, Any, Any]
"""In the order of `NAMES`, as they were noted: it is short, and most are replaced by the next line's."""


def counts_of(noted: Any) -> Counts | None:
    """None where a line notes none."""
    if not isinstance(noted, dict):
        return None
    details = noted.get("output_tokens_details")
    return (
        noted.get("input_tokens"),
        noted.get("output_tokens"),
        noted.get("cache_read_input_tokens"),
        noted.get("cache_creation_input_tokens"),
        (details.get("thinking_tokens") or None) if isinstance(details, dict) else None,
    )


def newest(before: Counts | None, noted: Counts) -> Counts:
    """The counts of the last line, and those of earlier ones for what it does not note."""
    if before is None or None not in noted:
        return noted
    older, newer = before, noted
    return (
        older[0] if newer[0] is None else newer[0],
        older[1] if newer[1] is None else newer[1],
        older[2] if newer[2] is None else newer[2],
        older[3] if newer[3] is None else newer[3],
        older[4] if newer[4] is None else newer[4],
    )


def usage(counts: Counts) -> dict[str, Any]:
    return {name: count for name, count in zip(NAMES, counts, strict=True) if count is not None}


def difference(counts: Counts, carried: Counts) -> dict[str, Any]:
    """What is to be added to counts that are recorded already; empty if they were the same."""
    more = (_number(now) - _number(before) for now, before in zip(counts, carried, strict=True))
    return {name: count for name, count in zip(NAMES, more, strict=True) if count}


def _number(count: Any) -> int:
    return count if type(count) is int else 0
