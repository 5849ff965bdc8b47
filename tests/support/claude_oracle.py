"""Totals of Claude Code transcripts, computed naively with json and dictionaries, without the package.

It reads lines, not exchanges: every message counts once by its uuid, every API message once by its id. It is correct
for whole files of real clients. `codex_oracle` does the same for Codex.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PARTS = {
    "thinking": "reasoning",
    "redacted_thinking": "reasoning",
    "tool_use": "tool_call",
    "server_tool_use": "tool_call",
    "web_search_tool_result": "tool_result",
    "document": "file",
}
TOKENS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
    "cache_creation_input_tokens": "cache_write_tokens",
}


@dataclass
class Totals:
    parts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(role, kind of part) → how many."""
    tokens: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    sessions: set[str] = field(default_factory=set)


def claude_totals(paths: Iterable[Path]) -> Totals:
    """Return the totals of the files, in import order: the first copy of a message counts."""
    totals = Totals()
    seen: set[str] = set()
    used: dict[str, dict[str, Any]] = {}
    for path in paths:
        cost: dict[str, dict[str, Any]] = {}
        for text in path.read_text().splitlines():
            value = json.loads(text)
            if value["type"] not in ("user", "assistant") or value["uuid"] in seen:
                continue
            seen.add(value["uuid"])
            message = value["message"]
            content = message["content"]
            blocks = [{"type": "text"}] if isinstance(content, str) else content
            for block in blocks:
                kind = "error" if value.get("isApiErrorMessage") else PARTS.get(block["type"], block["type"])
                totals.parts[message["role"], kind] += 1
                if kind == "tool_call":
                    totals.tools[block["name"]] += 1
            if blocks:
                totals.sessions.add(value["sessionId"])
            if "usage" in message and message["model"] != "<synthetic>":
                cost[message["id"]] = message["usage"]
        for api_id, usage in cost.items():
            used.setdefault(api_id, usage)
    for usage in used.values():
        for theirs, ours in TOKENS.items():
            totals.tokens[ours] += usage.get(theirs, 0)
        if thought := (usage.get("output_tokens_details") or {}).get("thinking_tokens"):
            totals.tokens["reasoning_tokens"] += thought
    return totals
