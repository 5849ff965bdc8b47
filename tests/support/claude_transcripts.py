"""Claude Code transcripts: samples of real clients, and builders of single lines."""

from __future__ import annotations

import json
import lzma
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypaware.clients.claude import CLIENT
from hypaware.clients.reader import SourceReader
from hypaware.model.datasets import Row
from tests.support.history import rows_of

assert CLIENT.backfill is not None
PROVIDER = CLIENT.backfill
SAMPLES = Path(__file__).parents[1] / "fixtures" / "claude"
SESSION = "11111111-1111-4111-8111-111111111111"
OTHER_SESSION = "22222222-2222-4222-8222-222222222222"

Line = dict[str, Any]


def sample_names() -> list[str]:
    """`<version>/<scenario>/…/<file>.jsonl`, all of them."""
    return sorted(str(path.relative_to(SAMPLES)).removesuffix(".xz") for path in SAMPLES.rglob("*/*.jsonl.xz"))


def sample(name: str) -> bytes:
    return lzma.decompress((SAMPLES / f"{name}.xz").read_bytes())


def unpacked(folder: Path) -> list[Path]:
    """Return all samples under the folder in import order: first time, modification time, path."""
    found = []
    for number, name in enumerate(sample_names()):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sample(name))
        os.utime(path, (1_800_000_000 + number, 1_800_000_000 + number))
        meta = (SAMPLES / name).with_suffix(".meta.json")
        if meta.exists():
            shutil.copy(meta, path.with_suffix(".meta.json"))
        found.append(path)
    return sorted(found, key=lambda path: (PROVIDER.first_time(path.read_bytes()) or "~", path.stat().st_mtime, path))


def at(second: float) -> str:
    """Return a time in the client's format, some seconds after eight o'clock."""
    whole = int(second)
    return f"2026-11-15T08:{whole // 60:02}:{whole % 60:02}.{round((second - whole) * 1000):03}Z"


def line(kind: str, uuid: str | None, parent: str | None = None, second: float | None = 0, **more: Any) -> Line:
    value = {
        "parentUuid": parent,
        "isSidechain": False,
        "type": kind,
        "uuid": uuid,
        "timestamp": None if second is None else at(second),
        "sessionId": SESSION,
        "version": "2.1.325",
        "cwd": "/nonexistent/project",
        "gitBranch": "main",
    }
    return {name: each for name, each in (value | more).items() if each is not None or name == "parentUuid"}


def user(uuid: str | None, content: Any, parent: str | None = None, second: float | None = 0, **more: Any) -> Line:
    return line("user", uuid, parent, second, message={"role": "user", "content": content}, **more)


def says(
    uuid: str | None,
    block: Any,
    parent: str | None = None,
    second: float | None = 1,
    *,
    api: str | None = "msg_1",
    output: int | None = None,
    stop: str | None = None,
    model: str = "claude-opus-5-5",
    **more: Any,
) -> Line:
    """Return a line of a response with one block; text becomes a text block."""
    content = [{"type": "text", "text": block}] if isinstance(block, str) else [block]
    message: Line = {"model": model, "id": api, "role": "assistant", "content": content, "stop_reason": stop}
    if output is not None:
        message["usage"] = counts(output)
    return line("assistant", uuid, parent, second, message=message, **more)


def counts(output: int) -> dict[str, Any]:
    return {
        "input_tokens": 3,
        "cache_creation_input_tokens": 512,
        "cache_read_input_tokens": 11_000,
        "output_tokens": output,
    }


def calls(call: str, name: str = "Bash", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call, "name": name, "input": arguments, "caller": {"type": "direct"}}


def answers(call: str, content: Any = "done", **more: Any) -> list[dict[str, Any]]:
    return [{"type": "tool_result", "tool_use_id": call, "content": content, **more}]


def as_bytes(lines: Iterable[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines)


def imported(folder: Path, *lines: Any, name: str = "session.jsonl", **pinned: Any) -> tuple[list[Row], SourceReader]:
    path = folder / name
    path.write_bytes(as_bytes(lines))
    return rows_of(PROVIDER, path, **pinned)


def rows(folder: Path, *lines: Any, **pinned: Any) -> list[Row]:
    return imported(folder, *lines, **pinned)[0]


def row(folder: Path, *lines: Any, **pinned: Any) -> Row:
    """Return the only row."""
    (made,) = rows(folder, *lines, **pinned)
    return made
