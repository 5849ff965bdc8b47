"""Takeover and delivery over a light lake: the work of the jobs, without Spark."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from hypaware import config
from hypaware.export.delivery import DeliveryOptions, Driver
from hypaware.home import Home
from hypaware.lake.read import LakeRowReader
from hypaware.state.home_opener import open_home
from hypaware.takeover.plan import TakeoverRequest
from hypaware.takeover.run import TakeoverContext, take_over_cache
from tests.support import light_home
from tests.support.light_lake import LightLake


def take_over(home: Home, folder: Path, **args: Any) -> dict[str, Any]:
    """Take over the cache and return the report of the job `import-cache`."""
    opened = open_home(home)
    with closing(opened.store), closing(LightLake(home)) as lake:
        context = TakeoverContext(
            opened,
            config.load(home),
            flush=lambda _dataset: (light_home.flush(home), None)[1],
            lake=lambda _dataset, _survey: lake,
            on_progress=lambda _dataset, _number, _total: None,
            check_cancelled=lambda: None,
        )
        return take_over_cache(context, TakeoverRequest.from_args({"dir": str(folder), **args})).as_json()


def deliver(home: Home, sink: str) -> str:
    """Deliver to the sink, as the job `export` does, and return its status."""
    opened = open_home(home)
    with closing(opened.store):
        driver = Driver(opened, config.load(home), LakeRowReader(home), DeliveryOptions())
        report = asyncio.run(driver.deliver(sink))
    return str(report.as_json()["status"])


def arrived(folder: Path) -> list[str]:
    """Return the part ids in all objects below a directory that a sink delivers to."""
    return [
        part
        for path in sorted(folder.rglob("*.parquet"))
        for part in pq.read_table(path, columns=["part_id"], partitioning=None).column(0).to_pylist()
    ]
