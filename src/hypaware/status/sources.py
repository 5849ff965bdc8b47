"""Where rows come from: the gateway, and the history that clients keep; and what is left out on purpose."""

from __future__ import annotations

from typing import Any

from hypaware.capture import opt_outs
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, error, info
from hypaware.status.view import View


def history(view: View) -> list[dict[str, Any]]:
    """Of each client whose files were imported: how many, and up to which byte in all."""
    told = view.of_daemon("catch_up")
    return [
        {
            "source": each.provider,
            "kind": "history",
            "dataset": each.dataset,
            "files": each.files,
            "bytes": each.bytes,
            "last_run": told.get("last_run"),
            "last_status": told.get("last_status"),
            "next_look": told.get("next_look"),
        }
        for each in view.memory.history
    ]


def privacy(view: View) -> Found[dict[str, Any]]:
    folders = [path for path, privacy in view.config.privacy.folders.items() if privacy != "full"]
    try:
        sessions = opt_outs.read(view.home)
    except opt_outs.Unreadable as trouble:
        said = error("privacy_unreadable", trouble.message, *trouble.repair)
        return Found({"ignored_sessions": None, "private_folders": len(folders)}, (said,))
    facts = {"ignored_sessions": len(sessions), "private_folders": len(folders)}
    return Found(facts, tuple(_left_out(len(sessions), len(folders))))


def _left_out(sessions: int, folders: int) -> list[Diagnostic]:
    parts = [words.count(sessions, "session")] * bool(sessions) + [words.count(folders, "folder")] * bool(folders)
    if not parts:
        return []
    return [
        info(
            "left_out", f"{' and '.join(parts)} stay out of the record, or at home, as you asked", "hyp session status"
        )
    ]
