"""A take-over and deliveries over a light lake: what the jobs do, without Spark."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hypaware import config as configuration
from hypaware.export.driver import Driver, Terms
from hypaware.export.lake_rows import LakeRows
from hypaware.home import Home
from hypaware.opening import open_home
from hypaware.takeover.request import Request
from hypaware.takeover.take_over import Means, take_over
from tests import light_life
from tests.light_lake import LightLake


def taken(home: Home, folder: Path, **args: Any) -> dict[str, Any]:
    """What the job `import-cache` reports."""
    opened = open_home(home)
    with closing(opened.store), closing(LightLake(home)) as lake:
        means = Means(
            opened,
            configuration.load(home),
            flush=lambda _dataset: (light_life.flush(home), None)[1],
            lake=lambda _dataset, _found: lake,
            told=lambda _dataset, _number, _total: None,
            check_cancelled=lambda: None,
        )
        return take_over(means, Request.of({"dir": str(folder), **args})).as_json()


def deliver(home: Home, sink: str) -> str:
    """What the job `export` does: how the sink came out of it."""
    opened = open_home(home)
    with closing(opened.store):
        driver = Driver(opened, configuration.load(home), LakeRows(home), Terms())
        (report,) = asyncio.run(driver.deliver([sink]))
    return str(report.as_json()["status"])


def arrived(folder: Path) -> list[str]:
    """The parts in a folder that a sink delivers to, in all its objects."""
    return [
        part
        for path in sorted(folder.rglob("*.parquet"))
        for part in pq.read_table(path, columns=["part_id"], partitioning=None).column(0).to_pylist()
    ]
