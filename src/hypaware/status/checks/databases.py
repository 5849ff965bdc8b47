"""Check the integrity of the home's databases: state, catalog, key index, tombstones."""

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
    yield _check_database("state", view.home.state, "hyp verify")


def catalog(view: View) -> Iterator[Check]:
    yield _check_database("catalog", view.home.catalog, "hyp restore --help")


def tombstones(view: View) -> Iterator[Check]:
    if view.home.tombstones.exists():
        yield _check_database("tombstones", view.home.tombstones, "hyp restore --help")


def key_index(view: View) -> Iterator[Check]:
    """Check that the key index is intact and covers the tables. The next flush indexes missing rows."""
    check = _check_database("key_index", view.home.keys, "hyp verify --repair")
    behind = _tables_ahead(view.home) if check.status == "ok" and view.home.keys.exists() else []
    if behind:
        check = warning("key_index", f"the key index is behind the table {', '.join(behind)}", "hyp flush")
    yield check


def _check_database(name: str, path: Path, repair: str) -> Check:
    if not path.exists():
        return ok(name, "does not exist yet")
    try:
        with look_into(path) as db:
            answer = db.execute("PRAGMA quick_check(1)").fetchone()
    except (OSError, sqlite3.Error) as error:
        return failed(name, f"{path} cannot be read: {reason_of(error)}", repair)
    if answer != ("ok",):
        return failed(name, f"{path} is damaged: {answer[0] if answer else 'no answer'}", repair)
    return ok(name, f"{path.name} is intact")


def _tables_ahead(home: Home) -> list[str]:
    """Return the tables whose newest rows are not in the key index."""
    with look_into(home.keys) as db:
        indexed = dict(db.execute("SELECT dataset, through FROM applied")) if has_table(db, "applied") else {}
    behind = []
    for entry in metadata.entries(home):
        try:
            floor = metadata.read(entry.metadata).floor
        except (OSError, ValueError, KeyError):
            continue  # the table is damaged, which `hyp status` reports
        if indexed.get(entry.name, 0) < floor:
            behind.append(entry.name)
    return behind
