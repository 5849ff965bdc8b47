"""Disk space: free bytes, the home's size and its growth."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypaware.home import Home
from hypaware.status import words
from hypaware.status.diagnostic import Diagnostic, Found, error, warning
from hypaware.status.lake import Lake
from hypaware.status.spool import Spool
from hypaware.status.view import View

_FULL = 256 * 2**20
_TIGHT = 2 * 2**30
_DAYS_LEFT = 14
_WEEK = timedelta(days=7)


def look(view: View, lake: Lake, spool: Spool) -> Found[dict[str, Any]]:
    usage = shutil.disk_usage(nearest(view.home))
    facts = {
        "path": str(view.home.root),
        "total_bytes": usage.total,
        "free_bytes": usage.free,
        "lake_bytes": lake.bytes,
        "spool_bytes": spool.bytes,
        "state_bytes": sum(_size(path) for path in (view.home.state, view.home.keys, view.home.catalog)),
        "growth_per_day": _growth(view, lake),
    }
    return Found(facts, tuple(_diagnostics(facts, spool)))


def nearest(home: Home) -> Path:
    """Return the home, or the nearest existing folder above it."""
    return next(path for path in (home.root, *home.root.parents) if path.is_dir())


def _growth(view: View, lake: Lake) -> int:
    """Return the average growth of the last week, in bytes per day."""
    since = (view.now - _WEEK).date()
    files = (file for table in lake.tables.values() for file in table.files)
    return sum(file.bytes for file in files if file.day and file.day > since) // _WEEK.days


def _diagnostics(facts: dict[str, Any], spool: Spool) -> Iterator[Diagnostic]:
    free, growth = facts["free_bytes"], facts["growth_per_day"]
    left = f"{words.size(free)} are free on the disk of {facts['path']}"
    # A flush writes the spooled rows a second time before it removes the segments.
    if free < _FULL + 2 * spool.bytes:
        yield error("disk_full", f"{left}: recording will stop soon", "hyp maintain", "hyp purge --help")
    elif free < _TIGHT:
        yield warning("disk_tight", f"only {left}", "hyp maintain", "hyp purge --help")
    elif growth and free / growth < _DAYS_LEFT:
        days = words.count(int(free / growth), "day")
        yield warning(
            "disk_filling",
            f"{left}, which will last {days} at {words.size(growth)} a day",
            "hyp maintain",
            "hyp purge --help",
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
