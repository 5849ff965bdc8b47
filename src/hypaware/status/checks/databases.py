"""The databases of a home, read from end to end: state, catalog, key index, tombstones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.looking import has_table, look_into
from hypaware.status.checks.check import Check, failed, ok, warning
from hypaware.status.diagnostic import reason_of
from hypaware.status.view import View


def state(view: View) -> Iterator[Check]:
    yield _sound("state", view.home.state, "hyp verify")


def catalog(view: View) -> Iterator[Check]:
    yield _sound("catalog", view.home.catalog, "hyp restore --help")


def tombstones(view: View) -> Iterator[Check]:
    if view.home.tombstones.exists():
        yield _sound("tombstones", view.home.tombstones, "hyp restore --help")


def key_index(view: View) -> Iterator[Check]:
    """Sound, and as far as the tables are; what it lacks is read from the lake by the next flush."""
    found = _sound("key_index", view.home.keys, "hyp verify --repair")
    behind = _behind(view.home) if found.status == "ok" and view.home.keys.exists() else []
    if behind:
        found = warning("key_index", f"it lags behind the table {', '.join(behind)}", "hyp flush")
    yield found


def _sound(name: str, path: Path, repair: str) -> Check:
    if not path.exists():
        return ok(name, "there is none yet")
    try:
        with look_into(path) as db:
            answer = db.execute("PRAGMA quick_check(1)").fetchone()
    except (OSError, sqlite3.Error) as trouble:
        return failed(name, f"{path} cannot be read: {reason_of(trouble)}", repair)
    if answer != ("ok",):
        return failed(name, f"{path} is damaged: {answer[0] if answer else 'no answer'}", repair)
    return ok(name, f"{path.name} is sound")


def _behind(home: Home) -> list[str]:
    with look_into(home.keys) as db:
        reached = dict(db.execute("SELECT dataset, through FROM applied")) if has_table(db, "applied") else {}
    behind = []
    for entry in metadata.entries(home):
        try:
            floor = metadata.read(entry.metadata).floor
        except (OSError, ValueError, KeyError):
            continue  # the table is damaged, and `hyp status` says so
        if reached.get(entry.name, 0) < floor:
            behind.append(entry.name)
    return behind
