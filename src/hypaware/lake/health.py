"""Questions about the lake that files and the state answer, without Spark: is it intact, what is uncommitted?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from hypaware.config.shared_lake import find_shared_lake
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import catalog, fsync, metadata
from hypaware.spool import reader, segments
from hypaware.spool.received import open_received
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.state.location import has_state
from hypaware.state.store import StateStore


def check_tables(home: Home, names: Collection[str] | None = None) -> None:
    """Check that all recorded tables exist and are readable. A lost catalog must not pass for an empty lake."""
    for error in find_damaged_tables(home, names).values():
        raise error


def find_damaged_tables(home: Home, names: Collection[str] | None = None) -> dict[str, LakeError]:
    """Return the tables that nothing may be done with, each with the reason and its repair."""
    if not has_state(home):
        return {}
    with closing(open_home(home, make=False).store) as store:
        recorded = read_recorded_floors(store)
    damaged = {}
    for name in sorted({*recorded, *(entry.name for entry in metadata.list_tables(home))}):
        if names is None or name in names:
            try:
                fsync.require_intact(home, name)
                check_floor(home, name, recorded.get(name, 0))
            except LakeError as error:
                damaged[name] = error
    return damaged


def read_recorded_floors(store: StateStore) -> dict[str, int]:
    """Return the highest recorded sequence of each dataset."""
    with store.reading() as connection:
        return {name: max(by_source.values()) for name, by_source in flushes.load_high_water(connection).items()}


def check_floor(home: Home, dataset: str, recorded: int) -> None:
    """Raise unless the table reaches the recorded sequence: missing rows must not be taken as delivered."""
    if not recorded:
        return
    entry = metadata.find_table(home, dataset)
    if entry is None:
        raise LakeError(
            f"rows of {dataset} up to sequence {recorded} were recorded, but the catalog {catalog.describe(home)} "
            "has no such table; restore a backup with hyp restore, or rebuild the table from its files",
            kind="lake_rolled_back",
            repair=f"hyp maintain {dataset} --rebuild",
        )
    if (floor := metadata.read_metadata(entry.metadata).floor) < recorded:
        raise LakeError(
            f"the lake has {dataset} up to sequence {floor}, but {recorded} was recorded: it was rolled "
            "back or restored without its state. Restore both from one backup, or give up the missing rows",
            kind="lake_rolled_back",
            repair="hyp verify --accept-rollback",
        )


def refuse_delete_files(home: Home, damaged: Collection[str] = ()) -> None:
    """Raise if another program has deleted rows by delete files: rewriting their data files would bring them back."""
    for entry in metadata.list_tables(home):
        if entry.name not in damaged and metadata.has_delete_files(metadata.read_metadata(entry.metadata)):
            raise LakeError(
                f"table {entry.name} has delete files, which another program wrote; apply them first",
                kind="delete_files",
                repair=f"hyp maintain {entry.name} --rebuild",
            )


def count_unnumbered_rows(home: Home, dataset: str) -> dict[str, int]:
    """Return by source how many rows have no sequence, from the table's statistics. They are not delivered."""
    entry = metadata.find_table(home, dataset)
    found: Counter[str] = Counter()
    try:
        for file in metadata.iter_cached_files(metadata.read_metadata(entry.metadata)) if entry else ():
            found[file.source] += file.rows - file.sequenced
    except Exception:
        # Damaged JSON and Avro raise many kinds of errors. Reading rows of the table reports the damage.
        return {}
    return dict(+found)


def has_pending_rows(
    home: Home, names: Collection[str] | None = None, *, make: bool = True, skip_deferred: bool = False
) -> bool:
    """Return whether a flush has something to do: rows in the spool, received batches of a shared lake, or interrupted
    flushes. Checks the folders first, which is cheap."""
    wanted = segments.list_spooled_datasets(home) if names is None else names
    if any(reader.summarize_spool(home, name, skip_deferred=skip_deferred).segments for name in wanted):
        return True
    with closing(open_home(home, make=make).store) as store:
        pending = list_unfinished_datasets(store)
        if received := open_received(home, store):
            pending |= set(received.list_datasets())
    return bool(pending if names is None else pending & set(names))


def list_unfinished_datasets(store: StateStore) -> set[str]:
    with store.reading() as connection:
        return {flush.dataset for flush in flushes.unfinished_flushes(connection)}


def has_committed_rows(store: StateStore) -> bool:
    with store.reading() as connection:
        return bool(flushes.load_high_water(connection))


def seconds_since_flush(home: Home) -> float | None:
    """Return the seconds since the last recorded flush, or None if there was none."""
    with closing(open_home(home).store) as store, store.reading() as connection:
        last = flushes.last_flush_at(connection)
    if last is None:
        return None
    age = (datetime.now(UTC) - last).total_seconds()
    # The last flush is in the future because the clock was set back: the age is unknown.
    return age if age >= 0 else float("inf")


def settlements_folder(home: Home, dataset: str) -> Path:
    shared = find_shared_lake(home)
    return (home.settlements if shared is None else shared.root / "settlements") / dataset


def list_settlements(home: Home, dataset: str) -> list[Path]:
    return sorted(settlements_folder(home, dataset).glob("*.parquet"))
