"""A purge over a light lake: the steps that the engine takes, without Spark."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles

from hypaware.config import Config
from hypaware.config.shared_lake import find_shared_lake
from hypaware.export import dead_letter_rows
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.home.storage import arrow_source
from hypaware.iceberg import catalog
from hypaware.lake.read import LakeRowReader
from hypaware.lake.table import LakeTable
from hypaware.maintain.purge.context import PurgeContext
from hypaware.maintain.purge.run import run_purge
from hypaware.maintain.purge.selector import PurgeSelector, SelectorKind
from hypaware.state.home_opener import open_home
from hypaware.testing import fault_injection
from hypaware.testing.folder_sink import FOLDER
from tests.support.light_lake import LightLake, LightTable

_PAYLOADS = "SELECT payload FROM dead_letters WHERE payload IS NOT NULL"


def describe_live_files_only(table: LakeTable) -> bool:
    """Rewrite manifests as far as PyIceberg can; unneeded files are left to the sweep."""
    assert isinstance(table, LightTable)
    iceberg_table = table._table
    snapshot = iceberg_table.current_snapshot()
    if snapshot is None or not any(each.deleted_files_count for each in snapshot.manifests(iceberg_table.io)):
        return False
    with iceberg_table.transaction() as transaction, _LiveEntries(Operation.APPEND, transaction, iceberg_table.io):
        pass
    return True


class _LiveEntries(_FastAppendFiles):  # type: ignore[misc]
    """A commit whose manifests have only the live entries of the previous ones."""

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


def purge(home: Home, kind: SelectorKind, *values: str, config: Config | None = None, **options: Any) -> dict[str, Any]:
    options.setdefault("wait", 0.0)
    with closing(open_home(home).store) as store, closing(LightLake(home)) as lake:
        selector = PurgeSelector(kind, values)
        return run_purge(
            PurgeContext(home, config or Config(), store, lake, selector, describe_live_files_only, **options)
        ).as_json()


def deliver(home: Home, config: Config, budget: int | None = None) -> list[SinkReport]:
    opened = open_home(home)
    with closing(opened.store), fault_injection.register_kind(FOLDER):
        driver = Driver(opened, config, LakeRowReader(home), DeliveryOptions(0.0, budget))
        return asyncio.run(gather_all(map(driver.deliver, config.sinks)))


def holders(home: Home, *words: str) -> set[str]:
    """Return every file of the home that contains one of the words, compressed or not, as a reader of the disk would
    find it. Of a shared lake, also every object of the bucket and every table of the database."""
    shared = find_shared_lake(home)
    files = [path for path in home.root.rglob("*") if path.is_file()]
    # S3Proxy lists a folder of its disk as an object while it is empty.
    objects = [path for path in shared.root.rglob("*") if path.is_file()] if shared else []
    found = {
        str(path.relative_to(home.root)) if path in files else str(path)
        for path in (*files, *objects)
        if any(word.encode() in content for content in _contents(path) for word in words)
    }
    if shared:
        with closing(catalog.connect_shared(shared)) as database:
            query = "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname IN ('public', 'hypaware')"
            for (table,) in database.execute(query).fetchall():
                contents = [text for (text,) in database.execute(f"SELECT t::text FROM {table} t")]
                if table == "hypaware.dead_letters":
                    contents += map(str, _letters(database.execute(_PAYLOADS.replace("dead_letters", table))))
                if any(word in text for text in contents for word in words):
                    found.add(table)
    return found


def _contents(path: Path) -> Iterator[bytes]:
    yield path.read_bytes()
    if path.suffix == ".parquet":
        yield str(pq.read_table(arrow_source(path), partitioning=None).to_pylist()).encode()
    elif path.suffix == ".avro":
        with path.open("rb") as file:
            yield str(list(fastavro.reader(file))).encode()
    elif path.parent.name == "rejected":
        for line in path.read_text().splitlines():
            yield base64.b64decode(json.loads(line).get("line_base64", ""))
    elif path.name == "state.db":
        with closing(sqlite3.connect(path)) as state:
            yield from (str(rows).encode() for rows in _letters(state.execute(_PAYLOADS)))


def _letters(payloads: Iterable[tuple[bytes]]) -> Iterator[list[dict[str, Any]]]:
    for (body,) in payloads:
        yield dead_letter_rows.unpack_rows(body).to_pylist()
