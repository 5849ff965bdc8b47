"""The server of this home: its lock shows whether it runs, `run/server.json` where it listens."""

from __future__ import annotations

import json
from typing import Any

from hypaware import lock_file
from hypaware.home import Home


def look(home: Home) -> dict[str, Any]:
    if not lock_file.is_taken(home.run / "server.lock"):
        return {"state": "stopped"}
    pid = lock_file.holder(home.run / "server.lock")
    return {"state": "running", "pid": pid, "listen": _status_file(home).get("listen")}


def _status_file(home: Home) -> dict[str, Any]:
    """Return the contents of `run/server.json`, or an empty dict until the server listens."""
    try:
        status = json.loads((home.run / "server.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
