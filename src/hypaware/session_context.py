"""What clients' hooks have noted of sessions: `<HYP_HOME>/clients/<name>/session-context.jsonl`.

Lines `{session_id, cwd, git_branch, git_remote, head_sha, repo_root, at}`, bounded by who writes them
(`clients.session_notes`). Here they are only read; what is no such line says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from hypaware.regular import open_regular

FACTS = ("cwd", "git_branch", "git_remote", "head_sha", "repo_root")
_NAME = "session-context.jsonl"
_MOST_BYTES = 4 << 20


def path_of(root: Path, client: str) -> Path:
    """`root` is the home's folder."""
    return root / "clients" / client / _NAME


def paths(root: Path) -> list[Path]:
    return sorted((root / "clients").glob(f"*/{_NAME}"))


def notes(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(session, note), the oldest first. Raises OSError where the file cannot be read."""
    with open_regular(path) as file:
        lines = file.read(_MOST_BYTES).splitlines()
    for line in lines:
        try:
            told = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(told, dict) and isinstance(session := told.get("session_id"), str):
            yield session, told


def facts_of(note: Mapping[str, Any]) -> dict[str, str]:
    """The columns that a note tells."""
    return {name: text for name in FACTS if isinstance(text := note.get(name), str) and text}
