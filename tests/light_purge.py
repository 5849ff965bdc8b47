"""A purge over a light lake: the same steps as an engine takes, without Spark."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles

from hypaware.config import Config
from hypaware.export import configured, letters
from hypaware.export.driver import Driver, Terms
from hypaware.export.lake_rows import LakeRows
from hypaware.export.report import SinkReport
from hypaware.home import Home
from hypaware.lake.committer import LakeTable
from hypaware.maintain.purge.purging import Purging
from hypaware.maintain.purge.run import run
from hypaware.maintain.purge.selection import Kind, Selector
from hypaware.opening import open_home
from hypaware.testing.destination import FOLDER
from tests.light_lake import LightLake, LightTable


class LightHistory:
    """What PyIceberg can do of it; files that no snapshot needs are left to the sweep."""

    def describe_live_files_only(self, table: LakeTable) -> bool:
        assert isinstance(table, LightTable)
        held = table._table
        snapshot = held.current_snapshot()
        if snapshot is None or not any(each.deleted_files_count for each in snapshot.manifests(held.io)):
            return False
        with held.transaction() as transaction, _LiveEntries(Operation.APPEND, transaction, held.io):
            pass
        return True

    def expire(self, table: LakeTable) -> None:
        assert isinstance(table, LightTable)
        held = table._table
        current = held.current_snapshot()
        old = [each.snapshot_id for each in held.snapshots() if current and each.snapshot_id != current.snapshot_id]
        if old:
            held.maintenance.expire_snapshots().by_ids(old).commit()


class _LiveEntries(_FastAppendFiles):  # type: ignore[misc]
    """A commit whose manifests have the live entries of those before it, and nothing else."""

    def _existing_manifests(self) -> list[ManifestFile]:
        kept = []
        for manifest in super()._existing_manifests():
            entries = [
                entry
                for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=False)
                if entry.status != ManifestEntryStatus.DELETED
            ]
            if entries:
                with self.new_manifest_writer(spec=self.spec(manifest.partition_spec_id)) as writer:
                    for entry in entries:
                        writer.existing(entry)
                kept.append(writer.to_manifest_file())
        return kept


def purge(home: Home, kind: Kind, *values: str, config: Config | None = None, **asked: Any) -> dict[str, Any]:
    asked.setdefault("wait", 0.0)
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        selector = Selector(kind, values)
        return run(Purging(home, config or Config(), store, lake, selector, LightHistory(), **asked)).as_json()


def deliver(home: Home, config: Config, budget: int | None = None) -> list[SinkReport]:
    opened = open_home(home)
    with closing(opened.store), configured.also(FOLDER):
        driver = Driver(opened, config, LakeRows(home), Terms(0.0, budget))
        return asyncio.run(driver.deliver(tuple(config.sinks)))


def holders(home: Home, *words: str) -> set[str]:
    """Every file of the home in which one of the words stands, packed or not: what a stranger with the disk finds."""
    return {
        str(path.relative_to(home.root))
        for path in home.root.rglob("*")
        if path.is_file() and any(word.encode() in content for content in _contents(path) for word in words)
    }


def _contents(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()
    if path.suffix == ".parquet":
        yield str(pq.read_table(path).to_pylist()).encode()
    elif path.suffix == ".avro":
        with path.open("rb") as file:
            yield str(list(fastavro.reader(file))).encode()
    elif path.parent.name == "rejected":
        for line in path.read_text().splitlines():
            yield base64.b64decode(json.loads(line).get("line_base64", ""))
    elif path.name == "state.db":
        with closing(sqlite3.connect(path)) as state:
            for (body,) in state.execute("SELECT payload FROM dead_letters WHERE payload IS NOT NULL"):
                yield str(letters.unpacked(body).to_pylist()).encode()
