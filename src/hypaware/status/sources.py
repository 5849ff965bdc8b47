"""The sources of rows: imported history, and what privacy settings exclude."""

from __future__ import annotations

from typing import Any

from hypaware.capture import opt_outs, seen_folders
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, error, info
from hypaware.status.view import View


def history(view: View) -> list[dict[str, Any]]:
    """Return the number of imported files and bytes of each client."""
    imports = view.daemon_part("catch_up")
    return [
        {
            "source": each.provider,
            "kind": "history",
            "dataset": each.dataset,
            "files": each.files,
            "bytes": each.bytes,
            "last_run": imports.get("last_run"),
            "last_status": imports.get("last_status"),
            "next_look": imports.get("next_look"),
        }
        for each in view.state.history
    ]


def privacy(view: View) -> Found[dict[str, Any]]:
    folders = [path for path, level in view.config.privacy.folders.items() if level != "full"]
    facts: dict[str, Any] = {"ignored_sessions": None, "private_folders": len(folders), "private_folders_gone": None}
    diagnostics: list[Diagnostic] = []
    try:
        facts["ignored_sessions"] = len(opt_outs.read(view.home))
    except opt_outs.Unreadable as unreadable:
        diagnostics.append(error(unreadable.kind, unreadable.message, *unreadable.repair))
    try:
        facts["private_folders_gone"] = len(seen_folders.gone(view.home))
    except opt_outs.Unreadable as unreadable:
        diagnostics.append(error(unreadable.kind, unreadable.message, *unreadable.repair))
    return Found(facts, (*diagnostics, *_exclusion_diagnostics(facts)))


def _exclusion_diagnostics(facts: dict[str, Any]) -> list[Diagnostic]:
    nouns = {
        "ignored_sessions": ("session", "sessions"),
        "private_folders": ("folder", "folders"),
        "private_folders_gone": ("deleted folder", "deleted folders"),
    }
    parts = [words.count(facts[name], *noun) for name, noun in nouns.items() if facts[name]]
    if not parts:
        return []
    listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return [info("left_out", f"not recorded or not exported, as you asked: {listed}", "hyp session status")]
