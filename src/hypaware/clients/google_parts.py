"""Google's content parts, in which Gemini CLI and Qwen Code keep messages, as blocks of the expansion.

A message has `parts`: text (with `thought`, the model's reasoning), functionCall, functionResponse, inlineData,
fileData, executableCode and codeExecutionResult. A list of parts may contain plain text, and one part may stand for the
list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypaware.clients.reader import unknown_type_reason
from hypaware.model import canonical
from hypaware.model.json_values import Block

_MAX_COUNT = 2**53


def to_blocks(parts: Any, skipped: Counter[str]) -> list[Any]:
    """Return the blocks of a message, in the order of its parts. Parts that make none are counted."""
    listed = parts if isinstance(parts, list) else [parts]
    found = []
    for part in listed:
        if isinstance(part, str):
            found.append({"type": "text", "text": part} if part else None)
        elif isinstance(part, dict):
            found.append(_to_block(part, skipped))
        elif part is not None:
            skipped["bad_part"] += 1
    return [block for block in found if block is not None]


def _to_block(part: Mapping[str, Any], skipped: Counter[str]) -> Block | None:
    match part:
        case {"functionCall": dict(call)}:
            return {"type": "tool_use", "id": call.get("id"), "name": call.get("name"), "input": call.get("args")}
        case {"functionResponse": dict(response)}:
            return to_result(response.get("id"), response.get("response"))
        case {"text": str(text), "thought": True}:
            signature = part.get("thoughtSignature")
            return {"type": "thinking", "thinking": text, "signature": signature} if text else None
        case {"text": str(text)}:
            return {"type": "text", "text": text} if text else None
        case {"inlineData": dict(data)} | {"fileData": dict(data)}:
            is_image = str(data.get("mimeType")).startswith("image/")
            return {"type": "image" if is_image else "file", "text": data.get("fileUri")}
        case {"executableCode": dict(code)}:
            return {"type": "tool_use", "id": code.get("id"), "name": "code_execution", "input": code}
        case {"codeExecutionResult": dict(result)}:
            failed = result.get("outcome") not in (None, "OUTCOME_OK")
            return to_result(result.get("id"), {"error" if failed else "output": result.get("output")})
    names = sorted(name for name in part if name not in ("thought", "thoughtSignature"))
    skipped[unknown_type_reason(names[0] if names else None, skipped)] += 1
    return None


def to_result(call_id: Any, response: Any, *, failed: bool = False) -> Block:
    """Return the result of a tool call: the text under `output` or `error`, or else the response as JSON."""
    text: Any = response
    if isinstance(response, dict):
        failed = failed or response.get("error") is not None
        text = next((response[name] for name in ("error", "output") if response.get(name) is not None), response)
    if text is not None and not isinstance(text, str):
        text = canonical.dumps(text)
    return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": failed}


def to_usage(counts: Any, names: Mapping[str, str]) -> dict[str, int] | None:
    """Return token counts; `names` maps prompt, output, cached, thoughts, tool and total to the client's names.

    The prompt includes cached tokens. The output includes reasoning for some providers and not for others; the total
    tells which.
    """
    if not isinstance(counts, dict):
        return None
    found = {kind: _count(counts.get(name)) for kind, name in names.items()}
    prompt, output, thoughts = found["prompt"] + found["tool"], found["output"], found["thoughts"]
    if not any(found.values()):
        return None
    if thoughts and found["total"] != prompt + output:
        output += thoughts
    return {
        "input_tokens": max(0, prompt - found["cached"]),
        "output_tokens": output,
        "cache_read_tokens": found["cached"],
        "reasoning_tokens": thoughts,
        "total_tokens": found["total"] or prompt + output,
    }


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < _MAX_COUNT else 0
