"""Mending what is derived: the key index, a high water that lags, files that nothing names. Never a row."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.lake import keyring, keys, rebuild
from hypaware.state import flushes, mirror
from hypaware.verify import checks
from hypaware.verify.checks import Audit

_FLUSH_ID_LENGTH = 36


def repair(audit: Audit) -> Iterator[str]:
    """What was mended, in words."""
    if not checks.key_index(audit).ok:
        keys.remove(audit.home.keys)
        yield "the key index was made anew"
    keyring.opened(audit.home, audit.table, audit.dataset.name).close()
    if gone := checks.rolled_back(audit):
        with audit.store.transaction() as connection:
            flushes.lower_high_water(connection, audit.dataset.name, audit.table.floor)
        mirror.write(audit.home.mirror, audit.store)
        yield f"recorded rows of {', '.join(gone)} above {audit.table.floor} are gone; the state follows the lake"
    if not (checks.high_water(audit).ok and checks.allocation(audit).ok):
        with audit.store.transaction() as connection:
            rebuild.raise_to(connection, rebuild.read_facts(audit.home), mirror.read(audit.home.mirror))
        mirror.write(audit.home.mirror, audit.store)
        yield "the state was raised to the lake"
    with audit.store.reading() as connection:
        landed = flushes.committed_ids(connection, audit.dataset.name)
    # Files of a flush that landed and is gone again are what a rollback left: they may be wanted.
    strays = [path for path in checks.orphans(audit) if path.name[:_FLUSH_ID_LENGTH] not in landed]
    for path in strays:
        path.unlink(missing_ok=True)
    if strays:
        yield f"{len(strays)} files that nothing names were removed"
