"""Repair derived data: the key index, a lagging high water, files of discarded flushes. Never change a row."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.lake import keyring, keys, rebuild
from hypaware.lake.recover import settle_unfinished
from hypaware.state import flushes, mirror, streams
from hypaware.verify import checks
from hypaware.verify.checks import Audit


def repair(audit: Audit) -> Iterator[str]:
    """Repair one dataset, and yield a description of each repair."""
    settle_unfinished(audit.home, audit.store, audit.table, audit.dataset.name)
    if not checks.key_index(audit).ok:
        keys.remove(audit.home.keys)
        yield "rebuilt the key index"
    keyring.opened(audit.home, audit.lake, audit.table, audit.dataset).close()
    if not (checks.high_water(audit).ok and checks.allocation(audit).ok):
        with audit.store.transaction() as connection:
            rebuild.raise_to(connection, rebuild.read_facts(audit.home), mirror.read(audit.home.mirror))
        mirror.write(audit.home.mirror, audit.store)
        yield "advanced the state to the lake"
    leftover = checks.removable(audit)
    for path in leftover:
        path.unlink(missing_ok=True)
    if leftover:
        yield f"deleted {len(leftover)} files of discarded flushes"


def accept_rollback(audit: Audit) -> Iterator[str]:
    """Lower the state to the lake, giving up recorded rows that the lake no longer has."""
    if gone := checks.rolled_back(audit):
        with audit.store.transaction() as connection:
            flushes.lower_high_water(connection, audit.dataset.name, audit.table.floor)
            streams.lower_watermarks(connection, audit.dataset.name, audit.table.floor)
        mirror.write(audit.home.mirror, audit.store)
        yield f"gave up recorded rows of {', '.join(gone)} above sequence {audit.table.floor}"
