"""Rewrite the paths in an Iceberg table's Avro files: manifests and manifest lists.

Schema, header, statistics and sequence numbers do not change. Each file is written once, under a new name, and fsynced.
A file that cannot be read (torn by a power cut) stays unchanged, so that the damage check finds it.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from hypaware import durable
from hypaware.errors import HypError
from hypaware.lake.places import Place

_Record = dict[str, Any]


class Torn(Exception):
    """The file is missing, truncated or malformed."""


class Rewriter:
    """Rewrites the manifests of one table. A manifest that several snapshots share is written once."""

    def __init__(self, locations: Place) -> None:
        self._locations = locations
        self._manifests: dict[str, tuple[str, int | None]] = {}
        self._lists: dict[str, str] = {}

    def manifest_list(self, location: str) -> str:
        """Rewrite a manifest list. Return its new location, or the localized old one if the file is torn."""
        if location not in self._lists:
            localized = self._locations.localize(location)
            snapshot = Path(location).name.removeprefix("snap-").partition("-")[0]
            name = f"snap-{snapshot}-1-{uuid.uuid4()}.avro"
            self._lists[location] = self._rewrite(localized, name, self._manifest_entry)[0]
        return self._lists[location]

    def _manifest_entry(self, entry: _Record) -> _Record:
        location, length = self._manifest(entry["manifest_path"])
        return {**entry, "manifest_path": location, "manifest_length": length or entry["manifest_length"]}

    def _manifest(self, location: str) -> tuple[str, int | None]:
        if location not in self._manifests:
            localized = self._locations.localize(location)
            self._manifests[location] = self._rewrite(localized, f"{uuid.uuid4()}-m0.avro", self._file_entry)
        return self._manifests[location]

    def _file_entry(self, entry: _Record) -> _Record:
        file = entry["data_file"]
        return {**entry, "data_file": {**file, "file_path": self._locations.localize(file["file_path"])}}

    def _rewrite(self, location: str, name: str, change: Callable[[_Record], _Record]) -> tuple[str, int | None]:
        old = self._locations.local_file(location)
        try:
            return f"{location.rpartition('/')[0]}/{name}", rewrite(old, old.with_name(name), change)
        except Torn:
            return location, None


def rewrite(old: Path, new: Path, change: Callable[[_Record], _Record]) -> int:
    """Write a copy of an Avro file with every record changed, fsynced. Return its size."""
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as out:
            _copy(old, out, change)
            out.flush()
            durable.fsync_fd(out.fileno())
            return os.fstat(out.fileno()).st_size
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _copy(old: Path, out: BinaryIO, change: Callable[[_Record], _Record]) -> None:
    import fastavro

    try:
        with open(old, "rb") as source:
            reader = fastavro.reader(source)
            header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
            fastavro.writer(out, reader.writer_schema, map(change, reader), codec=reader.codec, metadata=header)
    except FileNotFoundError as missing:
        raise Torn(str(old)) from missing
    except (OSError, MemoryError, HypError):
        raise
    except Exception as error:
        # fastavro raises many kinds of errors for a torn file.
        raise Torn(str(old)) from error
