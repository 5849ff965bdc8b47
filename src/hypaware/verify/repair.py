"""Mending what is derived: the key index, a high water that lags, files of flushes that did not land. Never a row."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.lake import keyring, keys, rebuild
from hypaware.lake.recover import settle_unfinished
from hypaware.state import flushes, mirror, streams
from hypaware.verify import checks
from hypaware.verify.checks import Audit


def repair(audit: Audit) -> Iterator[str]:
    """What was mended, in words."""
    settle_unfinished(audit.home, audit.store, audit.table, audit.dataset.name)
    if not checks.key_index(audit).ok:
        keys.remove(audit.home.keys)
        yield "the key index was made anew"
    keyring.opened(audit.home, audit.lake, audit.table, audit.dataset).close()
    if not (checks.high_water(audit).ok and checks.allocation(audit).ok):
        with audit.store.transaction() as connection:
            rebuild.raise_to(connection, rebuild.read_facts(audit.home), mirror.read(audit.home.mirror))
        mirror.write(audit.home.mirror, audit.store)
        yield "the state was raised to the lake"
    strays = checks.removable(audit)
    for path in strays:
        path.unlink(missing_ok=True)
    if strays:
        yield f"{len(strays)} files of flushes that did not land were removed"


def accept_rollback(audit: Audit) -> Iterator[str]:
    """The user gives recorded rows up that the lake no longer has: the state follows the lake."""
    if gone := checks.rolled_back(audit):
        with audit.store.transaction() as connection:
            flushes.lower_high_water(connection, audit.dataset.name, audit.table.floor)
            streams.lower_watermarks(connection, audit.dataset.name, audit.table.floor)
        mirror.write(audit.home.mirror, audit.store)
        yield f"rows of {', '.join(gone)} above {audit.table.floor} were recorded and are given up"
