"""Mending what is derived: the key index, a high water that lags, files that nothing names. Never a row."""

from __future__ import annotations

from collections.abc import Iterator

from hypaware.lake import keyring, keys, rebuild
from hypaware.state import mirror
from hypaware.verify import checks
from hypaware.verify.checks import Audit


def repair(audit: Audit) -> Iterator[str]:
    """What was mended, in words."""
    if not checks.key_index(audit).ok:
        keys.remove(audit.home.keys)
        yield "the key index was made anew"
    keyring.opened(audit.home, audit.table, audit.dataset.name).close()
    if not (checks.high_water(audit).ok and checks.allocation(audit).ok):
        with audit.store.transaction() as connection:
            rebuild.raise_to(connection, rebuild.read_facts(audit.home), mirror.read(audit.home.mirror))
        mirror.write(audit.home.mirror, audit.store)
        yield "the state was raised to the lake"
    strays = checks.orphans(audit)
    for path in strays:
        path.unlink(missing_ok=True)
    if strays:
        yield f"{len(strays)} files that nothing names were removed"
