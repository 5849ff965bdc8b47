"""Small synthetic Claude Code transcripts: turns of a user's line and a response in one or more lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

START = datetime(2026, 10, 1, 8, tzinfo=UTC)
LONG_AGO = 7 * 86_400


def turns(
    session: str, count: int, *, first: int = 0, lines: int = 2, start: datetime = START, output: int = 10
) -> Iterator[dict[str, Any]]:
    """Yield `count` turns, numbered from `first`: a user's line and a response whose lines have the same usage."""
    for turn in range(first, first + count):
        previous = f"{session}-a{turn - 1}-{lines - 1}" if turn else None
        user = f"{session}-u{turn}"
        yield _line(session, user, previous, start + timedelta(minutes=turn), "user", f"question {turn}")
        for place in range(lines):
            yield _line(
                session,
                f"{session}-a{turn}-{place}",
                f"{session}-a{turn}-{place - 1}" if place else user,
                start + timedelta(minutes=turn, seconds=1 + place),
                "assistant",
                [{"type": "text", "text": f"answer {turn}, line {place}"}],
                id=f"msg-{session}-{turn}",
                model="claude-opus-5-5",
                usage={"input_tokens": 1, "output_tokens": output},
            )


def write(path: Path, lines: Iterator[dict[str, Any]], *, age: float = LONG_AGO) -> Path:
    """Write a transcript whose last change was `age` seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    return aged(path, age)


def grow(path: Path, lines: Iterator[dict[str, Any]], *, age: float = LONG_AGO - 1) -> Path:
    with path.open("ab") as file:
        file.writelines(json.dumps(line).encode() + b"\n" for line in lines)
    return aged(path, age)


def aged(path: Path, age: float) -> Path:
    then = datetime.now(UTC).timestamp() - age
    os.utime(path, (then, then))
    return path


def _line(
    session: str, uuid: str, parent: str | None, at: datetime, role: str, content: Any, **message: Any
) -> dict[str, Any]:
    return {
        "type": role,
        "sessionId": session,
        "uuid": uuid,
        "parentUuid": parent,
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "cwd": "/nonexistent/project",
        "version": "2.1.325",
        "message": {"role": role, "content": content, **message},
    }
