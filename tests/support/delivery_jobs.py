"""A job table like that of the engine, over a light lake: the real driver and the real sinks, without Spark.

Files in the home control the job `export`: while `wait-<sink>` exists it runs until it is cancelled; if `die-<sink>`
exists it removes the file and kills its engine. It appends its arguments to `rounds` when it starts, and creates
`cancelled-<sink>` when it is cancelled. The job `maintain` does the same with `maintain` as the sink and `maintenances`
instead of `rounds`; a file `fail-maintain` makes a part of it fail. The job `backfill` imports nothing: it appends its
arguments to `imports` and fails if `fail-backfill` exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypaware.engine.jobs import Job, JobContext
from hypaware.errors import Cancelled
from hypaware.export import status
from hypaware.export.delivery import DeliveryOptions, Driver, gather_all, replay_letter
from hypaware.home import Home
from hypaware.lake.flush import FlushReport
from hypaware.lake.read import LakeRowReader
from hypaware.lake.table import commit_lock
from hypaware.maintain import retention
from hypaware.maintain.context import MaintenanceContext
from hypaware.maintain.context import MaintenanceReport as Kept
from hypaware.model import datasets
from hypaware.state.home_opener import open_home
from tests.support import light_home
from tests.support.light_lake import LightLake


def on_open(context: JobContext) -> None:
    raise AssertionError("these jobs ask for no Spark")


def export(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    chosen = status.select_sinks(context.config, args["sinks"] or ())
    with (context.home.root / "rounds").open("a") as rounds:
        rounds.write(json.dumps(args) + "\n")
    for sink in chosen:
        _behave(context, sink)
    _flushed(context)
    opened = open_home(context.home)
    with closing(opened.store):
        driver = Driver(
            opened, context.config, LakeRowReader(context.home), DeliveryOptions(args["max_wait"], args["budget"])
        )
        reports = asyncio.run(gather_all(map(driver.deliver, chosen)))
    context.progress(f"delivering to {chosen[0]}", 1, 1, unit="rows", mb_per_s=1.0)
    return {"sinks": [report.as_json() for report in reports]}


def replay(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    opened = open_home(context.home)
    with closing(opened.store):
        driver = Driver(opened, context.config, LakeRowReader(context.home), DeliveryOptions(1.0))
        return asyncio.run(replay_letter(driver, args["id"]))


def flush(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    report = _flushed(context)
    return {"datasets": [{"dataset": report.dataset, "rows_written": report.rows.written}]}


def _flushed(context: JobContext) -> FlushReport:
    """Run one job at a time, as in a real engine."""
    with commit_lock(light_home.DATASET, context.check_cancelled):
        return light_home.flush(context.home)


def read(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    lake = LakeRowReader(context.home)
    found = lake.page(args["dataset"], args["source"], args["since"], args["until"]).rows
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, found.schema) as writer:
        writer.write_table(found)
    context.emit(out.getvalue().to_pybytes())
    return {"rows": found.num_rows, "next": None}


def backfill(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    with (context.home.root / "imports").open("a") as begun:
        begun.write(json.dumps(args) + "\n")
    failed = (context.home.root / "fail-backfill").exists()
    status = {"status": "failed", "error": {"message": "nobody can read it"}} if failed else {"status": "ok"}
    return {"providers": [{"provider": name, "rows_written": 3, **status} for name in args["providers"]]}


def maintain(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run retention of the dataset."""
    with (context.home.root / "maintenances").open("a") as begun:
        begun.write(json.dumps(args) + "\n")
    _behave(context, "maintain")
    dataset = datasets.get(light_home.DATASET)
    report = Kept(dataset.name)
    with closing(open_home(context.home).store) as store, closing(LightLake(context.home)) as lake:
        work = MaintenanceContext(
            context.home, context.config, store, lake, dataset, datetime.now(UTC), note=context.note
        )
        report.files_before = len(work.files())
        retention.apply_retention(work, report)
        report.files_after = len(work.files())
    if (context.home.root / "fail-maintain").exists():
        report.errors.append("a part of it went wrong")
    return {"datasets": [report.as_json()]}


def _behave(context: JobContext, sink: str) -> None:
    dies = context.home.root / f"die-{sink}"
    if dies.exists():
        dies.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while (context.home.root / f"wait-{sink}").exists():
            context.check_cancelled()
            time.sleep(0.005)
    except Cancelled:
        (context.home.root / f"cancelled-{sink}").touch()
        raise


def rounds_of(home: Home) -> list[dict[str, Any]]:
    """Return the arguments of every started job `export`."""
    return _lines(home.root / "rounds")


def imports_of(home: Home) -> list[dict[str, Any]]:
    """Return the arguments of every started import."""
    return _lines(home.root / "imports")


def maintenances_of(home: Home) -> list[dict[str, Any]]:
    """Return the arguments of every started job `maintain`."""
    return _lines(home.root / "maintenances")


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


JOBS: dict[str, Job] = {
    "export": export, "replay": replay, "flush": flush, "read": read, "maintain": maintain,
    "backfill": backfill,
}  # fmt: skip
