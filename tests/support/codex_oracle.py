"""Totals of a Codex rollout, computed naively with json and dictionaries, without the package.

Unlike the package, it counts tokens from the running totals or from the records by response, not from what each
response added. It is correct for whole files that are not forks or have records.
"""

from __future__ import annotations

import json
from typing import Any

NAMES = {
    "cached_input_tokens": "cache_read_tokens",
    "output_tokens": "output_tokens",
    "reasoning_output_tokens": "reasoning_tokens",
    "total_tokens": "total_tokens",
}


def tokens(data: bytes) -> dict[str, int]:
    """Return the totals that the rows' usage must add up to."""
    records: dict[str, Any] = {}
    totals = []
    for line in data.splitlines():
        found = json.loads(line)
        payload = found["payload"]
        if found["type"] == "token_usage_record":
            records[payload["response_id"]] = payload["usage"]
        elif payload.get("type") == "token_count" and payload["info"]:
            totals.append(payload["info"]["total_token_usage"])
    used = list(records.values()) if records else _last_of_each_run(totals)
    sums = {ours: sum(each[theirs] for each in used) for theirs, ours in NAMES.items()}
    return sums | {"input_tokens": sum(each["input_tokens"] - each["cached_input_tokens"] for each in used)}


def _last_of_each_run(totals: list[dict[str, int]]) -> list[dict[str, int]]:
    """A decreasing total means that the client restarted its counter."""
    ends: list[dict[str, int]] = []
    for total in totals:
        if ends and total["total_tokens"] >= ends[-1]["total_tokens"]:
            ends[-1] = total
        else:
            ends.append(total)
    return ends


def parts(data: bytes) -> dict[tuple[str, str], int]:
    """Return (role, kind of part) → count."""
    found: dict[tuple[str, str], int] = {}
    for line in data.splitlines():
        value = json.loads(line)
        if value["type"] != "response_item":
            continue
        payload = value["payload"]
        kind = payload["type"]
        if kind == "message":
            made = [(payload["role"], "text")] * len(payload["content"])
        elif kind in ("function_call", "custom_tool_call"):
            made = [("assistant", "tool_call")]
        elif kind in ("function_call_output", "custom_tool_call_output"):
            made = [("tool", "tool_result")]
        elif kind == "reasoning" and payload["summary"]:
            made = [("assistant", "reasoning")]
        else:
            made = []
        for each in made:
            found[each] = found.get(each, 0) + 1
    return found
