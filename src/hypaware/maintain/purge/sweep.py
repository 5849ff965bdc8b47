"""Files under a table that nothing names and that hold, or tell of, what was purged: they go.

A killed flush, compaction or purge leaves such files, and older manifests say between which values the columns of a
file lay, the beginnings of texts among them. Data files of others that hold no such row stay: they may be what a
rollback left behind. The caller keeps the table and has the turn to change it, so nothing is being written.
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

_after_sweep = faults.point("maintain.purge.after-sweep", "files that held the rows are gone from the disk")
# Only whoever keeps the table writes such files, and that is us.
_OWN = ("purge-", "keep-")


def strays(purging: Purging, dataset: Dataset, gone: Gone) -> list[Path]:
    """Data files that are no part of the table and hold such rows, or were left by a keeper that was killed."""
    known = metadata.read(_entry(purging, dataset).metadata)
    live = {file.path.resolve() for file in metadata.remembered_files(known)}
    root = purging.lake.table(dataset).data_root
    others = [path for path in root.rglob("*.parquet") if path.resolve() not in live]
    replaced = {path.resolve() for path in gone.replaced}
    found = [path for path in others if path.resolve() in replaced]
    found += _left_by_keepers(known, [path for path in others if path.name.startswith(_OWN)])
    sized = [(path, path.stat().st_size) for path in others if path not in found]
    for result in purging.lake.run(list(finding.tasks(dataset, sized, purging.selector, None))):
        if isinstance(result, BuildFailure):
            continue  # the proof names what cannot be read
        found += [each.path for each in result.notes if each.rows]
        gone.clean |= {each.path for each in result.notes if not each.rows}
    return found


def sweep(purging: Purging, dataset: Dataset, found: Sequence[Path]) -> int:
    """How many data files went, beside what no snapshot needs of the metadata."""
    there = [path for path in found if path.exists()]
    folders = set()
    for path in [*there, *_unnamed_metadata(_entry(purging, dataset))]:
        path.unlink(missing_ok=True)
        folders.add(path.parent)
    for folder in folders:
        durable.fsync_dir(folder)
    _after_sweep()
    return len(there)


def avro_records(path: Path) -> Iterator[dict[str, Any]]:
    import fastavro

    with open(path, "rb") as file:
        yield from fastavro.reader(file)


def _left_by_keepers(known: Metadata, own: list[Path]) -> list[Path]:
    """Files that a keeper wrote and that no snapshot names; one that was killed may have left them torn."""
    if not own:
        return []
    manifests = {
        manifest.path: manifest
        for snapshot in known.snapshots
        if snapshot.manifest_list.is_file()
        for manifest in metadata.manifests(snapshot)
    }
    named = {
        file.path.resolve()
        for manifest in manifests.values()
        if manifest.path.is_file()
        for file in metadata.data_files(known, manifest)
    }
    return [path for path in own if path.resolve() not in named]


def _entry(purging: Purging, dataset: Dataset) -> TableEntry:
    found = metadata.entry(purging.home, dataset.name)
    assert found is not None
    return found


def _unnamed_metadata(entry: TableEntry) -> list[Path]:
    """Manifests and lists of them that neither the table needs, nor the step back that a power cut may ask for."""
    needed = _needed(metadata.read(entry.metadata), current_only=False)
    if entry.previous is not None and entry.previous.is_file():
        needed |= _needed(metadata.read(entry.previous), current_only=True)
    return [path for path in entry.metadata.parent.glob("*.avro") if path.resolve() not in needed]


def _needed(known: Metadata, *, current_only: bool) -> set[Path]:
    needed = set()
    for snapshot in known.snapshots:
        if snapshot.manifest_list.is_file() and (snapshot.id == known.current_id or not current_only):
            needed.add(snapshot.manifest_list.resolve())
            needed |= {manifest.path.resolve() for manifest in metadata.manifests(snapshot)}
    return needed
