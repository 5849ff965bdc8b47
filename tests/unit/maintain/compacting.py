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
from hypaware.home import Home
from hypaware.lake import expiry, metadata, turns
from hypaware.lake.metadata import DataFile, Metadata
from hypaware.maintain import compact, expire
from hypaware.maintain.due import all_due
from hypaware.maintain.report import Report
from hypaware.maintain.work import Work
from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.opening import open_home
from tests.kept_home import KeptHome
from tests.light_lake import LightLake, read_lake
from tests.light_life import DATASET, append, flush
from tests.rows import row

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
    def work(self, **options: Any) -> Iterator[Work]:
        with (
            closing(open_home(self.home).store) as store,
            closing(LightLake(self.home)) as lake,
            turns.running(),
            turns.keeping(DATASET, lambda: None),
        ):
            arguments = {"note": self.notes.append, **options}
            yield Work(self.home, Config(), store, lake, datasets.get(DATASET), datetime.now(UTC), **arguments)

    def compact(self, **options: Any) -> Report:
        return self._run(compact.run, options)

    def expire(self, **options: Any) -> Report:
        """Expire, treating all commits as finished long ago."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(expiry, "COMMIT_TAKES", 0.0)
            return self._run(expire.run, options)

    def _run(self, step: Any, options: dict[str, Any]) -> Report:
        report = Report(DATASET)
        with self.work(**options) as context:
            report.set_before(context.files())
            step(context, report)
            report.set_after(context.files())
        return report

    @property
    def entry(self) -> metadata.TableEntry:
        found = metadata.entry(self.home, DATASET)
        assert found
        return found

    @property
    def table_metadata(self) -> Metadata:
        return metadata.read(self.entry.metadata)

    def files(self) -> list[DataFile]:
        return list(metadata.live_files(self.table_metadata))

    def rows(self) -> list[dict[str, Any]]:
        """Return every row with its internal columns, by sequence, from an independent reader."""
        return sorted(read_lake(self.home, DATASET), key=lambda each: each[SEQ])

    def on_disk(self, pattern: str = "*.parquet") -> set[Path]:
        return set(self.home.warehouse.rglob(pattern))


class KeptSmallFiles:
    """Small files made once for many tests."""

    def __init__(self, folder: Path, make: Callable[[SmallFiles], None]) -> None:
        self._numbers = 0

        def made(home: Home) -> None:
            found = SmallFiles(home)
            make(found)
            self._numbers = found.numbers

        self._kept = KeptHome(folder, made)

    def as_made(self) -> SmallFiles:
        return SmallFiles(self._kept.as_made(), numbers=self._numbers)


def due_now(home: Home) -> list[str]:
    """Return the datasets that are due, as a daemon with an empty config finds them."""
    with closing(open_home(home).store) as store:
        return all_due(home, Config(), store, datetime.now(UTC))
