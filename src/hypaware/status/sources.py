"""Where rows come from: the gateway, and the history that clients keep; and what is left out on purpose."""

from __future__ import annotations

from typing import Any

from hypaware.capture import opt_outs, seen_folders
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
    facts: dict[str, Any] = {"ignored_sessions": None, "private_folders": len(folders), "private_folders_gone": None}
    said: list[Diagnostic] = []
    try:
        facts["ignored_sessions"] = len(opt_outs.read(view.home))
    except opt_outs.Unreadable as trouble:
        said.append(error(trouble.kind, trouble.message, *trouble.repair))
    try:
        facts["private_folders_gone"] = len(seen_folders.gone(view.home))
    except opt_outs.Unreadable as trouble:
        said.append(error(trouble.kind, trouble.message, *trouble.repair))
    return Found(facts, (*said, *_left_out(facts)))


def _left_out(facts: dict[str, Any]) -> list[Diagnostic]:
    nouns = {
        "ignored_sessions": ("session", "sessions"),
        "private_folders": ("folder", "folders"),
        "private_folders_gone": ("folder that is gone", "folders that are gone"),
    }
    parts = [words.count(facts[name], *noun) for name, noun in nouns.items() if facts[name]]
    if not parts:
        return []
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return [info("left_out", f"{listed} stay out of the record, or at home, as you asked", "hyp session status")]
