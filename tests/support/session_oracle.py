"""What sessions of Qwen Code, Gemini CLI and Copilot CLI contain, computed naively with json, without the package."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

Totals = tuple[Counter[tuple[str, str]], Counter[str]]
"""(role, kind of part) → count, and the sums of tokens."""


def qwen(data: bytes) -> Totals:
    parts, tokens = Counter[tuple[str, str]](), Counter[str]()
    for line in map(json.loads, data.splitlines()):
        role = {"user": "user", "assistant": "assistant", "tool_result": "tool"}.get(line["type"])
        for part in line.get("message", {}).get("parts", []):
            assert role is not None
            parts[role, _kind(part)] += 1
        if '"event.name": "qwen-code.api_error"' in json.dumps(line):
            parts["assistant", "error"] += 1
        if used := line.get("usageMetadata"):
            # A provider of the OpenAI dialect counts reasoning as output.
            tokens["input_tokens"] += used["promptTokenCount"] - used["cachedContentTokenCount"]
            tokens["output_tokens"] += used["totalTokenCount"] - used["promptTokenCount"]
            tokens["cache_read_tokens"] += used["cachedContentTokenCount"]
            tokens["reasoning_tokens"] += used["thoughtsTokenCount"]
            tokens["total_tokens"] += used["totalTokenCount"]
    return parts, tokens


def gemini(data: bytes) -> Totals:
    parts, tokens, messages = Counter[tuple[str, str]](), Counter[str](), dict[str, Any]()
    for line in map(json.loads, data.splitlines()):
        for each in line.get("$set", {}).get("messages", []):
            messages.setdefault(each["id"], each)
        if "type" in line:
            messages[line["id"]] = line
    results = set[str]()
    for each in messages.values():
        content = each["content"] if isinstance(each["content"], list) else [{"text": each["content"]}]
        for part in content:
            kind = _kind(part)
            if kind == "tool_result":
                results.add(part["functionResponse"]["id"])
            elif each["type"] == "gemini":
                parts["assistant", kind] += part["text"] != ""
            else:
                parts["system" if part["text"].startswith("<session_context>") else "user", kind] += 1
        parts["assistant", "reasoning"] += len(each.get("thoughts", []))
        calls = each.get("toolCalls", [])
        parts["assistant", "tool_call"] += len(calls)
        # A call that ends a subagent has its result only there.
        results |= {call["id"] for call in calls if "result" in call}
        if used := each.get("tokens"):
            tokens["input_tokens"] += used["input"] - used["cached"]
            tokens["output_tokens"] += used["total"] - used["input"]
            tokens["cache_read_tokens"] += used["cached"]
            tokens["reasoning_tokens"] += used["thoughts"]
            tokens["total_tokens"] += used["total"]
    if results:
        parts["tool", "tool_result"] = len(results)
    return +parts, tokens


def copilot(data: bytes) -> Totals:
    parts, tokens = Counter[tuple[str, str]](), Counter[str]()
    for line in map(json.loads, data.splitlines()):
        kind, facts = line["type"], line["data"]
        if kind in ("user.message", "system.message"):
            parts[kind.partition(".")[0], "text"] += 1
        elif kind == "assistant.message":
            parts["assistant", "text"] += bool(facts["content"])
            parts["assistant", "reasoning"] += "reasoningText" in facts
            parts["assistant", "tool_call"] += len(facts["toolRequests"])
        elif kind == "tool.execution_complete":
            parts["tool", "tool_result"] += 1
        elif kind == "session.error":
            parts["assistant", "error"] += 1
        elif kind == "session.usage_record":
            used = facts["usage"]
            tokens["input_tokens"] += used["inputTokens"] - used["cacheReadTokens"]
            tokens["output_tokens"] += used["outputTokens"]
            tokens["cache_read_tokens"] += used["cacheReadTokens"]
            tokens["reasoning_tokens"] += used.get("reasoningTokens", 0)
            tokens["total_tokens"] += used["inputTokens"] + used["outputTokens"]
    return +parts, tokens


def _kind(part: dict[str, Any]) -> str:
    if "functionCall" in part:
        return "tool_call"
    if "functionResponse" in part:
        return "tool_result"
    return "reasoning" if part.get("thought") else "text"
