"""Reads the session context that clients' hooks record: `<HYP_HOME>/clients/<name>/session-context.jsonl`.

Each line is `{session_id, cwd, git_branch, git_remote, head_sha, repo_root, at}`. `clients.session_notes` writes the
file and limits its size. Invalid lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from hypaware.regular import open_regular

FACTS = ("cwd", "git_branch", "git_remote", "head_sha", "repo_root")
_NAME = "session-context.jsonl"
_MAX_BYTES = 4 << 20


def path_of(root: Path, client: str) -> Path:
    """Return the path of a client's file below the home folder `root`."""
    return root / "clients" / client / _NAME


def paths(root: Path) -> list[Path]:
    return sorted((root / "clients").glob(f"*/{_NAME}"))


def notes(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (session id, note), oldest first. Raise OSError if the file cannot be read."""
    with open_regular(path) as file:
        lines = file.read(_MAX_BYTES).splitlines()
    for line in lines:
        try:
            note = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(note, dict) and isinstance(session := note.get("session_id"), str):
            yield session, note


def facts_of(note: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns that a note provides."""
    return {name: text for name in FACTS if isinstance(text := note.get(name), str) and text}
