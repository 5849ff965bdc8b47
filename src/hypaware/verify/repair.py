"""Mending what is derived: the key index, a high water that lags, files that nothing names. Never a row."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.lake import keyring, keys, rebuild
from hypaware.lake.recover import settle_unfinished
from hypaware.state import flushes, mirror
from hypaware.verify import checks
from hypaware.verify.checks import Audit

_FLUSH_ID_LENGTH = 36
_VERSION_DIGITS = 5


def repair(audit: Audit) -> Iterator[str]:
    """What was mended, in words."""
    settle_unfinished(audit.home, audit.store, audit.table, audit.dataset.name)
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
    if _went_back(audit):
        strays = []
    for path in strays:
        path.unlink(missing_ok=True)
    if strays:
        yield f"{len(strays)} files that nothing names were removed"


def _went_back(audit: Audit) -> bool:
    """Whether the folder holds newer metadata than the catalog names: somebody may want to go forward again."""
    current = audit.metadata.path
    versions = [path.name[:_VERSION_DIGITS] for path in current.parent.glob("*.metadata.json")]
    return max(versions) > current.name[:_VERSION_DIGITS]
