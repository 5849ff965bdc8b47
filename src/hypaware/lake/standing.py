"""Whether a lake still stands where the state says it does, told from files: no Spark is started to learn it."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata, secure
from hypaware.opening import open_home


def check_tables(home: Home, names: Collection[str] | None = None) -> None:
    """Before anybody answers from the tables: all are there that were recorded, and their metadata can be read.

    Else a lost catalog is an empty lake, and a torn file costs a minute of Iceberg's patience.
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
    """Raises unless the table holds everything up to the sequence that was recorded.

    A new table must not be made in the place of a lost one, and nobody may believe that rows are there which are not.
    """
    if not recorded:
        return
    entry = metadata.entry(home, dataset)
    if entry is None:
        raise LakeError(
            f"rows of {dataset} up to sequence {recorded} were recorded, and the catalog {home.catalog} "
            "does not know the table: restore a backup (hyp restore), or make it anew from the files that are there",
            kind="lake_rolled_back",
            repair=f"hyp maintain {dataset} --rebuild",
        )
    if (floor := metadata.read(entry.metadata).floor) < recorded:
        raise LakeError(
            f"the lake holds {dataset} up to sequence {floor}, but {recorded} was recorded: it was rolled "
            "back or restored without its state. Restore both from one backup; or, to give those rows up:",
            kind="lake_rolled_back",
            repair="hyp verify --accept-rollback",
        )
