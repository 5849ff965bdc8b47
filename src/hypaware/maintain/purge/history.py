"""Removing a table's history: older snapshots, and statistics of removed files in manifests.

A manifest from which a file was deleted keeps the file's statistics, which contain the beginnings of its texts. Such
manifests are rewritten without the file, in Iceberg's own commit for rewriting manifests; their other entries stay as
they are.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from pyspark.sql import SparkSession

from hypaware.lake import metadata
from hypaware.lake.committer import LakeTable
from hypaware.lake.spark_table import SparkTable

_FORMAT = 2


class SparkHistory:
    """The history of a table, changed through Iceberg's Java API."""

    def __init__(self, spark: SparkSession) -> None:
        self._manifests: Any = spark._jvm.org.apache.iceberg.ManifestFiles

    def describe_live_files_only(self, table: LakeTable) -> bool:
        assert isinstance(table, SparkTable)
        iceberg: Any = table.iceberg
        snapshot = iceberg.currentSnapshot()
        manifests = (
            [each for each in snapshot.dataManifests(iceberg.io()) if each.hasDeletedFiles()] if snapshot else []
        )
        if not manifests:
            return False
        added_by = {file.location: file.snapshot_id for file in metadata.live_files(table.metadata)}
        change = iceberg.rewriteManifests()
        for manifest in manifests:
            change = change.deleteManifest(manifest)
            if manifest.hasAddedFiles() or manifest.hasExistingFiles():
                change = change.addManifest(self._without_deleted(iceberg, manifest, added_by))
        change.commit()
        iceberg.refresh()
        return True

    def expire(self, table: LakeTable) -> None:
        assert isinstance(table, SparkTable)
        table.expire(time.time() + 1)

    def _without_deleted(self, iceberg: Any, manifest: Any, added_by: dict[str, int | None]) -> Any:
        path = f"{iceberg.location()}/metadata/{secrets.token_hex(16)}-m0.avro"
        spec = iceberg.specs().get(manifest.partitionSpecId())
        writer = self._manifests.write(_FORMAT, spec, iceberg.io().newOutputFile(path), None)
        reader = self._manifests.read(manifest, iceberg.io(), iceberg.specs())
        try:
            files = reader.iterator()
            while files.hasNext():
                file = files.next().copy()
                added = added_by[str(file.location())]
                writer.existing(file, added, file.dataSequenceNumber(), file.fileSequenceNumber())
        finally:
            reader.close()
            writer.close()
        return writer.toManifestFile()
