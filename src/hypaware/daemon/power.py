"""Detect whether this machine runs on battery.

Linux: `/sys/class/power_supply/*/{type,online,status,scope}`, without peripherals such as a mouse, whose batteries have
the scope `Device`. macOS: `pmset -g batt`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SUPPLIES = Path("/sys/class/power_supply")
_PMSET_SECONDS = 5.0


def on_battery() -> bool | None:
    """Return whether the machine runs on battery, or None if the platform does not say."""
    try:
        if sys.platform == "darwin":
            command = ["pmset", "-g", "batt"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PMSET_SECONDS, check=True)
            return _parse_pmset(done.stdout)
        return _read_supplies(_SUPPLIES)
    except (OSError, subprocess.SubprocessError):
        return None


def _parse_pmset(text: str) -> bool | None:
    first, _, _ = text.partition("\n")
    if "'Battery Power'" in first:
        return True
    return False if "'AC Power'" in first else None


def _read_supplies(folder: Path) -> bool | None:
    mains, batteries = [], []
    for supply in sorted(folder.iterdir()):
        kind = _line(supply / "type")
        if kind in ("Mains", "USB"):
            mains.append(_line(supply / "online") == "1")
        elif kind == "Battery" and _line(supply / "scope") != "Device":
            batteries.append(_line(supply / "status"))
    if any(mains):
        return False
    if not batteries:
        return None
    return any(status == "Discharging" for status in batteries)


def _line(path: Path) -> str | None:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
