"""Removing unreferenced files of a table that hold or describe purged rows.

A killed flush, compaction or purge leaves such files, and older manifests contain the column bounds of files, including
the beginnings of texts. Unreferenced data files without a purged row stay: they may have been left by a rollback. The
caller holds both locks of the table, so no file is being written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hypaware import durable, faults
from hypaware.lake import metadata
from hypaware.lake.build import BuildFailure
from hypaware.lake.metadata import Metadata, TableEntry
from hypaware.maintain.purge import finding
from hypaware.maintain.purge.purging import Gone, Purging
from hypaware.model.datasets import Dataset

_after_sweep = faults.point("maintain.purge.after-sweep", "files that held the rows are deleted from disk")
# Only the holder of `turns.keeping` writes such files, which is this job.
_OWN = ("purge-", "keep-")


def strays(context: Purging, dataset: Dataset, removed_rows: Gone) -> list[Path]:
    """Return unreferenced data files that hold such rows or were left by a killed maintenance job."""
    table_metadata = metadata.read(_entry(context, dataset).metadata)
    live = {file.path.resolve() for file in metadata.remembered_files(table_metadata)}
    root = context.lake.table(dataset).data_root
    unreferenced = [path for path in root.rglob("*.parquet") if path.resolve() not in live]
    replaced = {path.resolve() for path in removed_rows.replaced}
    found = [path for path in unreferenced if path.resolve() in replaced]
    found += _left_by_maintenance(table_metadata, [path for path in unreferenced if path.name.startswith(_OWN)])
    sized = [(path, path.stat().st_size) for path in unreferenced if path not in found]
    for result in context.lake.run(list(finding.tasks(dataset, sized, context.selector, None))):
        if isinstance(result, BuildFailure):
            continue  # verification reports files that cannot be read
        found += [each.path for each in result.reports if each.rows]
        removed_rows.clean |= {each.path for each in result.reports if not each.rows}
    return found


def sweep(context: Purging, dataset: Dataset, found: Sequence[Path]) -> int:
    """Remove the files, and metadata that no snapshot needs; return the number of data files."""
    existing = [path for path in found if path.exists()]
    folders = set()
    for path in [*existing, *_unreferenced_metadata(_entry(context, dataset))]:
        path.unlink(missing_ok=True)
        folders.add(path.parent)
    for folder in folders:
        durable.fsync_dir(folder)
    _after_sweep()
    return len(existing)


def avro_records(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        yield from fastavro.reader(file)


def _left_by_maintenance(table_metadata: Metadata, candidates: list[Path]) -> list[Path]:
    """Return files written by maintenance that no snapshot references; a kill may have left them incomplete."""
    if not candidates:
        return []
    manifests = {
        manifest.path: manifest
        for snapshot in table_metadata.snapshots
        if snapshot.manifest_list.is_file()
        for manifest in metadata.manifests(snapshot)
    }
    referenced = {
        file.path.resolve()
        for manifest in manifests.values()
        if manifest.path.is_file()
        for file in metadata.data_files(table_metadata, manifest)
    }
    return [path for path in candidates if path.resolve() not in referenced]


def _entry(context: Purging, dataset: Dataset) -> TableEntry:
    found = metadata.entry(context.home, dataset.name)
    assert found is not None
    return found


def _unreferenced_metadata(entry: TableEntry) -> list[Path]:
    """Return manifests and lists that neither the table nor, after a power cut, its previous metadata needs."""
    needed = _needed(metadata.read(entry.metadata), current_only=False)
    if entry.previous is not None and entry.previous.is_file():
        needed |= _needed(metadata.read(entry.previous), current_only=True)
    return [path for path in entry.metadata.parent.glob("*.avro") if path.resolve() not in needed]


def _needed(table_metadata: Metadata, *, current_only: bool) -> set[Path]:
    needed = set()
    for snapshot in table_metadata.snapshots:
        if snapshot.manifest_list.is_file() and (snapshot.id == table_metadata.current_id or not current_only):
            needed.add(snapshot.manifest_list.resolve())
            needed |= {manifest.path.resolve() for manifest in metadata.manifests(snapshot)}
    return needed
