"""The receiver of this home, if it has one: its lock tells whether it runs, its file where it listens."""

from __future__ import annotations

import json
from typing import Any

from hypaware import lock_file
from hypaware.home import Home


def look(home: Home) -> dict[str, Any]:
    if not lock_file.is_taken(home.run / "server.lock"):
        return {"state": "stopped"}
    pid = lock_file.holder(home.run / "server.lock")
    return {"state": "running", "pid": pid, "listen": _told(home).get("listen")}


def _told(home: Home) -> dict[str, Any]:
    """Nothing, until it listens."""
    try:
        found = json.loads((home.run / "server.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
