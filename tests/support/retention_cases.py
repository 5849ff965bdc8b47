"""A home with a light lake whose days expire, and sinks that may lag behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from hypaware.config import Config, RetentionConfig, SinkConfig
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake.read import LakeRowReader
from hypaware.lake.table import TableChange
from hypaware.maintain import retention as maintain_retention
from hypaware.maintain.context import MaintenanceContext, MaintenanceReport
from hypaware.model import datasets
from hypaware.state import retention as state_retention
from hypaware.state.home_opener import open_home
from hypaware.state.retention import RetentionDrop
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.rows import row

NOW = datetime.now(UTC)
TODAY = NOW.date()


def days_ago(days: int) -> date:
    return TODAY - timedelta(days=days)


def later(days: int) -> datetime:
    return NOW + timedelta(days=days)


@dataclass
class RetentionSite:
    home: Home
    retention: RetentionConfig = field(default_factory=lambda: RetentionConfig(default_days=30))
    notes: list[str] = field(default_factory=list)
    numbers: int = 0

    sinks: dict[str, SinkConfig] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        return Config(retention=self.retention, sinks=self.sinks)

    def declare(
        self, name: str, directory: str | None = None, datasets: tuple[str, ...] = (DATASET,)
    ) -> FolderDestination:
        """Add a sink to the config that delivers into a directory of its own."""
        destination = FolderDestination(self.home.root.parent / (directory or name))
        self.sinks[name] = SinkConfig(FOLDER.name, "* * * * *", datasets, {"folder": str(destination.folder)})
        return destination

    def configure(self, **settings: Any) -> None:
        self.retention = replace(self.retention, **settings)

    def commit(self, *ages: int, source: str = "claude") -> list[str]:
        """Flush a row of each age in days and return the message ids."""
        rows = []
        for age in ages:
            created_at = (NOW - timedelta(days=age)).isoformat()
            rows.append(row(self.numbers, message_created_at=created_at, client_name=source))
            self.numbers += 1
        append(self.home, rows)
        flush(self.home)
        return [each["message_id"] for each in rows]

    def deliver(self, *sinks: str, budget: int | None = None) -> list[SinkReport]:
        opened = open_home(self.home)
        with closing(opened.store):
            driver = Driver(opened, self.config, LakeRowReader(self.home), DeliveryOptions(0.0, budget))
            return asyncio.run(gather_all(map(driver.deliver, sinks or self.config.sinks)))

    def record_incarnation(self) -> None:
        """Record the incarnation in the lake, as an engine does before a delivery."""
        opened = open_home(self.home)
        opened.store.close()
        with closing(LightLake(self.home)) as lake:
            table = lake.table(datasets.get(DATASET))
            table.replace_files(
                TableChange("retain", (), properties={metadata.INCARNATION_PROPERTY: opened.identity.incarnation})
            )

    def retain(
        self, now: datetime = NOW, step: Callable[..., None] = maintain_retention.apply_retention, **options: Any
    ) -> MaintenanceReport:
        report = MaintenanceReport(DATASET)
        with closing(open_home(self.home).store) as store, closing(LightLake(self.home)) as lake:
            context = MaintenanceContext(
                self.home, self.config, store, lake, datasets.get(DATASET), now, note=self.notes.append, **options
            )
            step(context, report)
        return report

    def messages(self) -> list[str]:
        return sorted((each["message_id"] for each in read_lake(self.home, DATASET)), key=_number)

    @property
    def table(self) -> metadata.TableMetadata:
        entry = metadata.find_table(self.home, DATASET)
        assert entry
        return metadata.read_metadata(entry.metadata)

    @property
    def retained_from(self) -> str | None:
        return metadata.read_retention_start(self.home, DATASET)

    def drops(self) -> Sequence[RetentionDrop]:
        with closing(open_home(self.home).store) as store, store.reading() as connection:
            return state_retention.list_drops(connection)

    def data_files(self) -> dict[Path, int]:
        """Return the data files on disk with their modification times."""
        return {path: path.stat().st_mtime_ns for path in self.home.warehouse.rglob("*.parquet")}


def _number(message: str) -> int:
    return int(message.removeprefix("message-"))
