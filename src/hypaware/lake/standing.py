"""Whether a lake still stands where the state says it does, told from files: no Spark is started to learn it."""

from __future__ import annotations

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import metadata


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
            "does not know the table: restore lake/ and state.db from one backup",
            kind="lake_rolled_back",
        )
    if (floor := metadata.read(entry.metadata).floor) < recorded:
        raise LakeError(
            f"the lake holds {dataset} up to sequence {floor}, but {recorded} was recorded: it was rolled "
            "back or restored without its state. Restore both from one backup; or, to give those rows up:",
            kind="lake_rolled_back",
            repair="hyp verify --accept-rollback",
        )
