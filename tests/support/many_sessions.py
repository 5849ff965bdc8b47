"""A home with many small sessions, for lists that are longer than a screen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from hypaware.home import Home
from hypaware.index.builder import wait_for_builder
from hypaware.index.store import open_index
from tests.support.index_home import HAIKU, OPUS, SONNET, make_home, prompt, response
from tests.support.light_home import append

_NEWEST = datetime(2026, 11, 14, 12, 0, tzinfo=UTC)
_PROJECTS = ("web", "shop", "api", "infrastructure-as-code", "docs")
_WORK = ("Fix the flaky test of", "Add a button to", "Explain", "Rename everything in", "Why is it slow in")
_BATCH = 5000


def session_number(number: int) -> str:
    """Return the id of a session. Session 0 is the newest."""
    return str(UUID(int=(number * 0x9E3779B97F4A7C15 + 0x1234) % (1 << 64) << 64 | number))


def session_rows(number: int) -> list[dict[str, Any]]:
    """Return the rows of a session: a prompt, a response, and in every seventh one a failed tool call."""
    ended = _NEWEST - timedelta(minutes=7 * number)
    cwd = f"/home/dev/{_PROJECTS[number % len(_PROJECTS)]}"
    columns: dict[str, Any] = {
        "session_id": session_number(number),
        "cwd": cwd,
        "git_branch": f"feature/{number % 90}",
        "client_name": "codex" if number % 4 == 3 else "claude",
    }
    title = f"{_WORK[number % 3]} the cart, number {number}"
    usage = {"input_tokens": number % 1000, "output_tokens": 1000 + number * 37 % 50_000}
    rows = [
        prompt(3 * number, title, at=(ended - timedelta(minutes=number % 300)).isoformat(), **columns),
        response(3 * number + 1, at=ended.isoformat(), usage=usage, **columns, model=(OPUS, SONNET, HAIKU)[number % 3]),
    ]
    if number % 7 == 0:
        failed: dict[str, Any] = {"part_type": "tool_result", "tool_name": "Bash", "role": "tool", "is_error": True}
        text = "connect: connection refused" if number % 70 == 0 else "exit code 1"
        rows.append(response(3 * number + 2, at=ended.isoformat(), **columns, **failed, content_text=text))
    return rows


def make_many_sessions(root: Path, count: int) -> Home:
    """Return a home with this many sessions and a complete index."""
    home = make_home(root)
    for start in range(0, count, _BATCH):
        numbers = range(start, min(start + _BATCH, count))
        append(home, [row for number in numbers for row in session_rows(number)])
        open_index(home).close()
        assert wait_for_builder(home, 600)
    return home
