"""Takeover and delivery over a light lake: the work of the jobs, without Spark."""

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
    """Take over the cache and return the report of the job `import-cache`."""
    opened = open_home(home)
    with closing(opened.store), closing(LightLake(home)) as lake:
        context = Means(
            opened,
            configuration.load(home),
            flush=lambda _dataset: (light_life.flush(home), None)[1],
            lake=lambda _dataset, _survey: lake,
            on_progress=lambda _dataset, _number, _total: None,
            check_cancelled=lambda: None,
        )
        return take_over(context, Request.from_args({"dir": str(folder), **args})).as_json()


def deliver(home: Home, sink: str) -> str:
    """Deliver to the sink, as the job `export` does, and return its status."""
    opened = open_home(home)
    with closing(opened.store):
        driver = Driver(opened, configuration.load(home), LakeRows(home), Terms())
        (report,) = asyncio.run(driver.deliver([sink]))
    return str(report.as_json()["status"])


def arrived(folder: Path) -> list[str]:
    """Return the part ids in all objects below a directory that a sink delivers to."""
    return [
        part
        for path in sorted(folder.rglob("*.parquet"))
        for part in pq.read_table(path, columns=["part_id"], partitioning=None).column(0).to_pylist()
    ]
