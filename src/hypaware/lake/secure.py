"""Power cuts: Iceberg syncs none of its files, so we do, and step back if a cut came between.

Every commit is made durable before the next one may follow. So only the newest commit of a table can be damaged, and
the metadata before it is whole: if the files that the newest one added are missing or short, the catalog steps back.

@ref flush#commit
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hypaware import durable, faults
from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.lake import metadata
from hypaware.lake.metadata import TableEntry

_before_secure = faults.point("lake.secure.before-fsync", "a commit is visible, its files are not durable")
_after_secure = faults.point("lake.secure.after-fsync", "a commit is visible and durable")
_before_step_back = faults.point("lake.step-back.before-update", "a damaged commit was found")
_after_step_back = faults.point("lake.step-back.after-update", "the catalog names the metadata before the damage")

_PARQUET_MAGIC = b"PAR1"


@dataclass(frozen=True)
class SteppedBack:
    table: str
    reason: str


@dataclass(frozen=True)
class Damaged:
    """No power cut did that: stepping back would lose what was recorded."""

    table: str
    error: LakeError


def secure(home: Home, table: str, namespace: str = metadata.NAMESPACE) -> None:
    """Makes the newest commit of a table durable; its data files' bytes already are, their writers synced them."""
    _before_secure()
    found = metadata.entry(home, table, namespace)
    if found is None:
        raise LakeError(f"the catalog {home.catalog} does not know the table {table} that was just committed")
    now = metadata.read(found.metadata)
    added, data = [found.metadata], []
    if now.current:
        added.append(now.current.manifest_list)
        for manifest in metadata.manifests(now.current):
            if manifest.snapshot_id == now.current_id:
                added.append(manifest.path)
                data += [file.path for file in metadata.data_files(now, manifest)]
    for path in added:
        durable.fsync_file(path)
    for folder in sorted(_folders_up_to([*added, *data], home.lake)):
        durable.fsync_dir(folder)
    _after_secure()


def secure_all(home: Home, but: Collection[str] = ()) -> None:
    """For whoever takes a lake over: what was committed last may not be durable yet."""
    for found in metadata.entries(home):
        if found.name not in but:
            secure(home, found.name)


def step_back_where_damaged(home: Home, recorded: Mapping[str, int]) -> list[SteppedBack | Damaged]:
    """Looks at the newest commit of each table; to be called before anything loads the tables.

    `recorded` is the highest sequence that the state recorded for a table. A recorded commit was synced, so no power
    cut can have damaged it: what would lose one is not stepped back from, but told, and the other tables go on.
    """
    stepped: list[SteppedBack | Damaged] = []
    for found in metadata.entries(home):
        if reason := damage(found.metadata):
            try:
                back_to = _one_step_back(found, recorded.get(found.name, 0), reason)
            except LakeError as error:
                stepped.append(Damaged(found.name, error))
                continue
            _before_step_back()
            _step_back(home, found, back_to)
            _after_step_back()
            stepped.append(SteppedBack(found.name, reason))
    return stepped


def refuse_damaged(home: Home, table: str) -> None:
    """Nothing may be committed on top of a table whose newest commit is not whole."""
    found = metadata.entry(home, table)
    if found is not None and (reason := damage(found.metadata) or _unreadable(found.metadata)):
        raise _damaged(table, reason)


def _unreadable(path: Path) -> str | None:
    """What cannot be read of the manifests of earlier commits; those that were read once are not read again."""
    try:
        for _ in metadata.remembered_files(metadata.read(path)):
            pass
    except (PermissionError, MemoryError):
        raise
    except Exception as error:
        # As in `damage`.
        return f"{type(error).__name__}: {error}"
    return None


def _one_step_back(table: TableEntry, recorded: int, reason: str) -> Path | None:
    """The metadata before the damaged one; None if that was the table's first. Anything more is no power cut's work."""
    if table.previous is not None and not damage(table.previous):
        if (kept := metadata.read(table.previous).floor) >= recorded:
            return table.previous
        lost = f"the commit before it ends at {kept}, recorded was up to {recorded}"
    else:
        others = [path for path in table.metadata.parent.glob("*.metadata.json") if path != table.metadata]
        if recorded == 0 and all(damage(path) for path in others):
            return None
        lost = "so is the commit before it" if table.previous else f"rows up to {recorded} were recorded"
    raise _damaged(table.name, f"{reason}; {lost}")


def _damaged(table: str, reason: str) -> LakeError:
    return LakeError(
        f"table {table} is damaged ({reason}): restore a backup (hyp restore), or save what can be read",
        kind="lake_damaged",
        repair=f"hyp maintain {table} --rebuild",
    )


def damage(path: Path) -> str | None:
    """What is missing or short of the files that a metadata.json and its newest snapshot name."""
    try:
        known = metadata.read(path)
        if known.current is None:
            return None
        for manifest in metadata.manifests(known.current):
            if manifest.snapshot_id != known.current_id:
                continue
            if (found := manifest.path.stat().st_size) != manifest.bytes:
                return f"{manifest.path} has {found} bytes instead of {manifest.bytes}"
            for file in metadata.data_files(known, manifest):
                if reason := file_damage(file.path, file.bytes):
                    return reason
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ImportError, MemoryError) as error:
        # Trouble in looking is not damage.
        raise Retryable(f"{path} could not be checked: {error}", kind="lake_unreadable") from error
    except Exception as error:
        # Torn JSON and torn Avro fail in many ways, all of them mean the same here.
        return f"{path.name} or a file that it names cannot be read ({type(error).__name__}: {error})"
    return None


def file_damage(path: Path, size: int) -> str | None:
    """Whether a Parquet file is missing, short, or has no end."""
    if not path.is_file():
        return f"{path} is missing"
    if (found := path.stat().st_size) != size:
        return f"{path} has {found} bytes instead of {size}"
    with open(path, "rb") as file:
        file.seek(-len(_PARQUET_MAGIC), 2)
        return None if file.read() == _PARQUET_MAGIC else f"{path} has no Parquet footer"


def _step_back(home: Home, table: TableEntry, back_to: Path | None) -> None:
    """One change of the catalog. A table of which nothing whole is left, and nothing was recorded, never existed."""
    where = " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
    key = (metadata.CATALOG, metadata.NAMESPACE, table.name)
    with closing(sqlite3.connect(home.catalog, timeout=30, isolation_level=None)) as catalog:
        catalog.execute("PRAGMA synchronous=FULL")
        catalog.execute("BEGIN IMMEDIATE")
        if back_to is None:
            catalog.execute("DELETE FROM iceberg_tables" + where, key)
        else:
            older = metadata.read(back_to).log
            locations = (metadata.location_of(back_to), metadata.location_of(older[-1]) if older else None)
            catalog.execute(
                "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?" + where,
                (*locations, *key),
            )
        catalog.execute("COMMIT")


def _folders_up_to(paths: Iterable[Path], top: Path) -> set[Path]:
    return {folder for path in paths for folder in path.parents if folder.is_relative_to(top)}
