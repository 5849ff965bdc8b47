"""A home with a light lake of many small files, and the maintenance steps on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.engine import jobs as engine_jobs
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import DataFile, TableMetadata
from hypaware.lake import snapshots
from hypaware.lake.table import maintenance_lock
from hypaware.maintain import compact, expire
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.maintain.task import find_due_datasets
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.state.home_opener import open_home
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.prepared_home import PreparedHome
from tests.support.rows import row

BEGIN = datetime(2026, 11, 2, 7, 0, tzinfo=UTC)


@dataclass
class SmallFiles:
    home: Home
    notes: list[str] = field(default_factory=list)
    numbers: int = 0

    def commit(self, day: int = 0, rows: int = 3, source: str = "claude", times: int = 1) -> None:
        """Flush `times` times; each flush writes one file of that (source, day)."""
        self.commit_each([(source, day)], rows, times)

    def commit_each(self, partitions: Sequence[tuple[str, int]], rows: int = 3, times: int = 1) -> None:
        """Flush `times` times; each flush writes one file of each (source, day)."""
        for _ in range(times):
            append(self.home, [self._row(*partition) for partition in partitions for _ in range(rows)])
            flush(self.home)

    def _row(self, source: str, day: int) -> dict[str, Any]:
        self.numbers += 1
        created_at = (BEGIN + timedelta(days=day, seconds=self.numbers)).isoformat()
        return row(self.numbers, message_created_at=created_at, client_name=source)

    @contextmanager
    def work(self, **options: Any) -> Iterator[MaintenanceContext]:
        with (
            closing(open_home(self.home).store) as store,
            closing(LightLake(self.home)) as lake,
            engine_jobs.track_job(),
            maintenance_lock(DATASET, lambda: None),
        ):
            arguments = {"note": self.notes.append, **options}
            yield MaintenanceContext(
                self.home, Config(), store, lake, datasets.get(DATASET), datetime.now(UTC), **arguments
            )

    def compact(self, **options: Any) -> MaintenanceReport:
        return self._run(compact.compact_dataset, options)

    def expire(self, **options: Any) -> MaintenanceReport:
        """Expire, treating all commits as finished long ago."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshots, "COMMIT_SECONDS", 0.0)
            return self._run(expire.expire_dataset, options)

    def _run(self, step: Any, options: dict[str, Any]) -> MaintenanceReport:
        report = MaintenanceReport(DATASET)
        with self.work(**options) as context:
            report.files_before = len(context.files())
            step(context, report)
            report.files_after = len(context.files())
        return report

    @property
    def entry(self) -> metadata.CatalogEntry:
        found = metadata.find_table(self.home, DATASET)
        assert found
        return found

    @property
    def table_metadata(self) -> TableMetadata:
        return metadata.read_metadata(self.entry.metadata)

    def files(self) -> list[DataFile]:
        return list(metadata.iter_live_files(self.table_metadata))

    def rows(self) -> list[dict[str, Any]]:
        """Return every row with its internal columns, by sequence, from an independent reader."""
        return sorted(read_lake(self.home, DATASET), key=lambda each: each[SEQ])

    def on_disk(self, pattern: str = "*.parquet") -> set[Path]:
        return set(self.home.warehouse.rglob(pattern))


class PreparedSmallFiles:
    """Small files made once for many tests."""

    def __init__(self, folder: Path, make: Callable[[SmallFiles], None]) -> None:
        self._numbers = 0

        def made(home: Home) -> None:
            found = SmallFiles(home)
            make(found)
            self._numbers = found.numbers

        self._kept = PreparedHome(folder, made)

    def restored(self) -> SmallFiles:
        return SmallFiles(self._kept.restored(), numbers=self._numbers)


def due_now(home: Home) -> list[str]:
    """Return the datasets that are due, as a daemon with an empty config finds them."""
    with closing(open_home(home).store) as store:
        return find_due_datasets(home, Config(), store, datetime.now(UTC))
