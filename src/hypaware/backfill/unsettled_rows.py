"""Live rows that a transcript on this machine could still improve, although it was imported.

An import reads each part of a transcript once. A live row that was recorded later, or that an older version did not
settle, keeps what the gateway knew. Without the transcript's checkpoint, the next import reads it from the beginning:
the key index drops what the lake has, and the remaining native rows settle their live rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from hypaware.backfill.batches import ImportBatch, make_tasks
from hypaware.backfill.dry_run import count_rows
from hypaware.backfill.request import ImportPolicy
from hypaware.backfill.source_rows import ImportContext
from hypaware.backfill.survey import DueSource, clip_to_retention, encode_path
from hypaware.clients.client import Source
from hypaware.clients.reader import SourceSnapshot, TimeWindow, get_inode
from hypaware.config import Config
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import prepare, tombstones
from hypaware.lake.build import BuildSettings
from hypaware.lake.key_lookup import ExistingKeys
from hypaware.lake.row_keys import unpack_keys
from hypaware.model.datasets import Dataset
from hypaware.state.flushes import SourceCheckpoint

_ID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class UnsettledSource:
    """An imported transcript, and how many live rows of the lake its native rows would settle."""

    checkpoint: SourceCheckpoint
    rows: int


def select_checkpoints(
    checkpoints: Sequence[SourceCheckpoint], conversations: AbstractSet[str]
) -> list[SourceCheckpoint]:
    """Return the checkpoints of transcripts that are named after one of the conversations, the newest first.

    Transcripts whose end is held back are left out: their next import may settle the rows.
    """
    named = (
        each
        for each in checkpoints
        if not each.held and not conversations.isdisjoint(_ID.findall(Path(each.path).name))
    )
    return sorted(named, key=lambda each: each.mtime_ns, reverse=True)


def find_unsettled(
    home: Home, config: Config, dataset: Dataset, gateway_id: str, checkpoints: Sequence[SourceCheckpoint]
) -> list[UnsettledSource]:
    """Read the imported part of the transcripts; return those that could still improve rows. Changes nothing."""
    existing, stones = ExistingKeys(home, dataset, gateway_id), tombstones.read_tombstones(home)
    policy = ImportPolicy.from_config(home, config, remembers=False)
    settings = BuildSettings(dataset.name, "verify", home.lake, {}, gateway_id, stones, match_native=True)
    found = []
    for checkpoint in checkpoints if existing.may_match else ():
        due = _pin_imported_part(home, dataset, checkpoint)
        if due is None:
            continue
        environment = {**os.environ, "HYP_HOME": str(home.root)}
        context = ImportContext(checkpoint.provider, dataset.name, environment, gateway_id, policy)
        (task,) = make_tasks(ImportBatch((due,)), context, settings, 0)
        built = count_rows(task).built
        purged = prepare.find_purged(stones, dataset, gateway_id, [built]).written
        pairs = [pair for pair in unpack_keys(built.keys, built.seqs) if pair[1] not in purged]
        if rows := len(existing.settled([built], existing.duplicates(pairs), purged)):
            found.append(UnsettledSource(checkpoint, rows))
    return found


def _pin_imported_part(home: Home, dataset: Dataset, checkpoint: SourceCheckpoint) -> DueSource | None:
    path = Path(checkpoint.path)
    try:
        status = path.stat()
    except OSError:
        return None
    if encode_path(path) != checkpoint.path or status.st_size < checkpoint.consumed:
        return None
    imported = TimeWindow(checkpoint.since, checkpoint.until)
    window = clip_to_retention(imported, metadata.read_retention_start(home, dataset.name))
    size = min(status.st_size, checkpoint.consumed)
    snapshot = SourceSnapshot(path, get_inode(status), size, status.st_mtime_ns, window=window)
    return DueSource(Source(path), snapshot, "")
