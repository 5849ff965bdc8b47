"""Avro files of an Iceberg table, written anew with other paths in them: manifests, and the lists of them.

Everything else in a file stays as it was: schema, header, statistics, sequence numbers. Each file is written once,
under a new name, and synced. One that cannot be read (a power cut tore it) is left as it is, so that whoever looks for
damage finds it.
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
    """The file is missing, short or not what it should be."""


class Rewriter:
    """Of one table; a manifest that several snapshots share is written once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._manifests: dict[str, tuple[str, int | None]] = {}
        self._lists: dict[str, str] = {}

    def manifest_list(self, location: str) -> str:
        """Where its new form lies; a torn one is named as it should be named here."""
        if location not in self._lists:
            there = self._place.here(location)
            snapshot = Path(location).name.removeprefix("snap-").partition("-")[0]
            name = f"snap-{snapshot}-1-{uuid.uuid4()}.avro"
            self._lists[location] = self._rewritten(there, name, self._manifest_entry)[0]
        return self._lists[location]

    def _manifest_entry(self, entry: _Record) -> _Record:
        location, length = self._manifest(entry["manifest_path"])
        return {**entry, "manifest_path": location, "manifest_length": length or entry["manifest_length"]}

    def _manifest(self, location: str) -> tuple[str, int | None]:
        if location not in self._manifests:
            there = self._place.here(location)
            self._manifests[location] = self._rewritten(there, f"{uuid.uuid4()}-m0.avro", self._file_entry)
        return self._manifests[location]

    def _file_entry(self, entry: _Record) -> _Record:
        file = entry["data_file"]
        return {**entry, "data_file": {**file, "file_path": self._place.here(file["file_path"])}}

    def _rewritten(self, location: str, name: str, change: Callable[[_Record], _Record]) -> tuple[str, int | None]:
        old = self._place.file(location)
        try:
            return f"{location.rpartition('/')[0]}/{name}", rewrite(old, old.with_name(name), change)
        except Torn:
            return location, None


def rewrite(old: Path, new: Path, change: Callable[[_Record], _Record]) -> int:
    """Writes an Avro file with every record changed, synced: its size."""
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
        # Torn Avro fails in many ways, all of them mean the same here.
        raise Torn(str(old)) from error
