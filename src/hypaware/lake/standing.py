"""Check that the lake has all recorded rows, from its files and the state, without starting Spark."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata, secure
from hypaware.opening import open_home


def check_tables(home: Home, names: Collection[str] | None = None) -> None:
    """Check that all recorded tables exist and that their metadata can be read.

    Otherwise a lost catalog would pass for an empty lake, and Iceberg would retry a torn file for a minute.
    """
    from hypaware.state import flushes

    if not home.state.is_file():
        return
    with closing(open_home(home, make=False).store) as store, store.reading() as connection:
        recorded = {name: max(by_source.values()) for name, by_source in flushes.high_water(connection).items()}
    for name in {*recorded, *(entry.name for entry in metadata.entries(home))}:
        if names is None or name in names:
            secure.refuse_damaged(home, name)
            check(home, name, recorded.get(name, 0))


def check(home: Home, dataset: str, recorded: int) -> None:
    """Raise an error unless the table has all rows up to the recorded sequence.

    This keeps a lost table from being replaced by an empty one, and missing rows from being taken as delivered.
    """
    if not recorded:
        return
    entry = metadata.entry(home, dataset)
    if entry is None:
        raise LakeError(
            f"rows of {dataset} up to sequence {recorded} were recorded, but the catalog {home.catalog} "
            "has no such table; restore a backup with hyp restore, or rebuild the table from its files",
            kind="lake_rolled_back",
            repair=f"hyp maintain {dataset} --rebuild",
        )
    if (floor := metadata.read(entry.metadata).floor) < recorded:
        raise LakeError(
            f"the lake has {dataset} up to sequence {floor}, but {recorded} was recorded: it was rolled "
            "back or restored without its state. Restore both from one backup, or give up the missing rows",
            kind="lake_rolled_back",
            repair="hyp verify --accept-rollback",
        )
