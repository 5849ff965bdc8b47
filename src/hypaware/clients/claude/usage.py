"""Token counts as Claude Code writes them, under the table's names.

Input does not include cached tokens; output includes thinking.
"""

from __future__ import annotations

from typing import Any

NAMES = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
Counts = tuple[Any, Any, Any, Any, Any]
"""In the order of `NAMES`. A compact form, because the next line replaces most of them."""


def counts_of(usage_block: Any) -> Counts | None:
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


def newest(older: Counts | None, newer: Counts) -> Counts:
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


def usage(counts: Counts) -> dict[str, Any]:
    return {name: count for name, count in zip(NAMES, counts, strict=True) if count is not None}


def difference(counts: Counts, carried: Counts) -> dict[str, Any]:
    """Return what to add to the recorded counts; empty if there is no difference."""
    more = (_number(now) - _number(before) for now, before in zip(counts, carried, strict=True))
    return {name: count for name, count in zip(NAMES, more, strict=True) if count}


def _number(count: Any) -> int:
    return count if type(count) is int else 0
