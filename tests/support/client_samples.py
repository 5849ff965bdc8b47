"""Samples of sessions that clients wrote, one file each, where their client keeps them."""

from __future__ import annotations

from pathlib import Path

FIXTURES = Path(__file__).parents[1] / "fixtures"


def copy_sample(folder: Path, sample: Path) -> Path:
    """Put a sample where its client keeps sessions."""
    client, _, *inner = sample.relative_to(FIXTURES).parts
    if client == "copilot":
        inner = ["session-state", sample.stem, "events.jsonl"]
    elif inner[0] != "subagents":
        inner = ["chats", *inner]
    path = folder.joinpath(*inner)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sample.read_bytes())
    if (meta := sample.with_suffix(".meta.json")).exists():
        path.with_suffix(".meta.json").write_bytes(meta.read_bytes())
    return path
