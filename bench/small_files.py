"""Make a lake of many small files quickly: `python -m bench.small_files HOME FILES`, for a home that has none yet.

The lake looks as if many flushes had made it: 500 rows of about 1 KB in each file, of two sources over some days. But
twenty files are committed at a time, without a spool. At the end, lake and state look as after real flushes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bench import rows
from hypaware.engine.session import open_session
from hypaware.home import Home
from hypaware.lake.build import BuildResult, BuildSettings, build_rows
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.spark_table import SparkLake
from hypaware.model import datasets
from hypaware.model.datasets import Dataset, Row, coerce_row
from hypaware.model.row_counts import RowCounts
from hypaware.state import flushes, mirror
from hypaware.state.flushes import FlushOutcome
from hypaware.state.home_opener import open_home

DATASET = "ai_gateway_messages"
ROWS = 500
_SOURCES = ("claude", "codex")
_FILES_A_COMMIT = 20
_FILES_A_DAY = 100


@dataclass(frozen=True)
class SmallFile:
    """The rows of one file."""

    number: int
    first_seq: int
    gateway_id: str

    def rows(self, dataset: Dataset) -> Iterator[tuple[int, Row]]:
        source = self.number % len(_SOURCES)
        for place in range(ROWS):
            number = (self.number // len(_SOURCES) * ROWS + place) * len(_SOURCES) + source
            at = rows.START + timedelta(days=self.number // _FILES_A_DAY, seconds=number % 80_000)
            raw = {**rows.row(number), "message_created_at": at.isoformat()}
            yield self.first_seq + place, coerce_row(dataset, raw, self.gateway_id)


def main(home: Home, files: int) -> None:
    began = time.perf_counter()
    opened = open_home(home)
    session = open_session(home)
    dataset = datasets.get(DATASET)
    try:
        with closing(opened.store) as store:
            lake = SparkLake(home, session.spark, opened.identity, lambda: None)
            for first in range(0, files, _FILES_A_COMMIT):
                count = min(_FILES_A_COMMIT, files - first)
                table = lake.table(dataset)
                with store.transaction() as connection:
                    flush = flushes.reserve_range(connection, DATASET, count * ROWS, above=table.floor)
                pieces = [SmallFile(first + n, flush.after + 1 + n * ROWS, opened.gateway_id) for n in range(count)]
                settings = BuildSettings(DATASET, flush.id, table.data_root, table.field_ids)
                built = [build_rows(settings, piece.first_seq, piece.rows(dataset), BuildResult()) for piece in pieces]
                table.commit(flush, [file for result in built for file in result.files])
                with store.transaction() as connection:
                    flushes.record_flush(connection, flush, _outcome(built))
            mirror.write_mirror(home.mirror, store)
            # Without the key index: only flushes need it, and no row here is repeated.
            with closing(KeyIndex(home.keys)) as index:
                index.add(DATASET, table.uuid, flush.last, ())
    finally:
        session.close()
    print(json.dumps({"files": files, "seconds": time.perf_counter() - began}))


def _outcome(built: list[BuildResult]) -> FlushOutcome:
    high_water: dict[str, int] = {}
    for file in (file for result in built for file in result.files):
        high_water[file.source] = max(file.max_seq, high_water.get(file.source, 0))
    return FlushOutcome(high_water, RowCounts(sum(result.rows for result in built)))


if __name__ == "__main__":
    main(Home(Path(sys.argv[1])), int(sys.argv[2]))
