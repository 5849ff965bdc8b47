"""Make a commit on a local disk durable. Iceberg does not fsync its files; other stores do not need it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hypaware import durable
from hypaware.lake.metadata import local_path


def is_local(location: str) -> bool:
    return location.startswith(("file:", "/"))


def secure(table_location: str, files: Iterable[str]) -> None:
    """Fsync local files and all folders above them, up to the one that holds the table's namespace.

    Iceberg does not fsync its files; other stores do not need it. A power cut before this leaves a chunk that was never
    reported as delivered. A round that finds such a chunk calls this before it reports the chunk.
    """
    paths = [local_path(file) for file in files if is_local(file)]
    for path in paths:
        durable.fsync_file(path)
    for folder in sorted({folder for path in paths for folder in _folders(path, table_location)}, reverse=True):
        durable.fsync_dir(folder)


def _folders(path: Path, table_location: str) -> list[Path]:
    if not is_local(table_location):
        return [path.parent]
    table = local_path(table_location)
    inside = [folder for folder in path.parents if folder.is_relative_to(table)]
    return [*(inside or [path.parent]), *table.parents[:2]]
