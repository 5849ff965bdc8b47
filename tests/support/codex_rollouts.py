"""Codex rollout files, built line by line, and their import in one or several steps."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypaware.clients.codex import CLIENT
from hypaware.clients.reader import SourceReader
from hypaware.model.datasets import Row
from tests.support.history import GrowingFile, rows_of

assert CLIENT.backfill is not None
PROVIDER = CLIENT.backfill
SAMPLES = Path(__file__).parents[1] / "fixtures" / "codex"
THREAD = "01a1de10-9003-75d3-96e6-f5bb4f307abe"
NAME = f"rollout-2026-11-15T07-16-29-{THREAD}.jsonl"

Line = dict[str, Any]


def sample_names() -> list[str]:
    return sorted(path.name.removesuffix(".xz") for path in SAMPLES.glob("rollout-*.xz"))


def sample(name: str) -> bytes:
    return lzma.decompress((SAMPLES / f"{name}.xz").read_bytes())


def line(kind: str, payload: Any, at: str | None = "2026-11-15T07:16:30.000Z", **more: Any) -> Line:
    return {"timestamp": at, "type": kind, "payload": payload, **more}


def meta(**facts: Any) -> Line:
    return line("session_meta", {"id": THREAD, "timestamp": "2026-11-15T07:16:29.842Z", "cwd": "/home/dev", **facts})


def turn(**facts: Any) -> Line:
    return line("turn_context", {"cwd": "/home/dev", "model": "gpt-5.5", **facts})


def item(kind: str, **fields: Any) -> Line:
    return line("response_item", {"type": kind, **fields})


def says(role: str, text: str, **more: Any) -> Line:
    kind = "output_text" if role == "assistant" else "input_text"
    return item("message", role=role, content=[{"type": kind, "text": text}], **more)


def thinks(text: str | None) -> Line:
    summary = [] if text is None else [{"type": "summary_text", "text": text}]
    return item("reasoning", summary=summary, content=None, encrypted_content="gAAAA-secret")


def calls(call_id: str, arguments: str = "{}", name: str = "shell") -> Line:
    return item("function_call", name=name, arguments=arguments, call_id=call_id)


def answers(call_id: str, output: Any = "done") -> Line:
    return item("function_call_output", call_id=call_id, output=output)


def counts(used: int, output: int = 10, cached: int = 0) -> dict[str, int]:
    """Return token counts in the client's format, with `used` input tokens."""
    return {
        "input_tokens": used,
        "cached_input_tokens": cached,
        "output_tokens": output,
        "reasoning_output_tokens": 3,
        "total_tokens": used + output,
    }


def added(*several: dict[str, int]) -> dict[str, int]:
    return dict(sum((Counter(each) for each in several), Counter()))


def snapshot(last: Any, total: Any = None, **more: Any) -> Line:
    info = None if last is None else {"total_token_usage": total, "last_token_usage": last}
    return line("event_msg", {"type": "token_count", "info": info, "rate_limits": more})


def record(response: str, used: Any, total: Any = None) -> Line:
    return line("token_usage_record", {"response_id": response, "usage": used, "thread_token_usage": total})


BEGIN = (meta(), turn(), says("user", "Do it."))


def as_bytes(lines: Iterable[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)


def imported(folder: Path, lines: Iterable[Any], name: str = NAME, **pinned: Any) -> tuple[list[Row], SourceReader]:
    path = folder / name
    path.write_bytes(as_bytes(lines))
    return rows_of(PROVIDER, path, **pinned)


def input_tokens(rows: Iterable[Row]) -> list[tuple[str, int]]:
    """Return (text or tool of the row, input tokens) of every row with counts."""
    return [
        (row.get("content_text") or row["tool_name"], row["attributes"]["usage"]["input_tokens"])
        for row in rows
        if "usage" in row["attributes"]
    ]


def add(file: GrowingFile, *lines: Any, quiet: bool = False) -> list[Row]:
    """Return the rows that an import adds after the lines were written."""
    before = file.path.read_bytes() if file.path.exists() else b""
    return file.grow_to(before + as_bytes(lines), quiet=quiet)
