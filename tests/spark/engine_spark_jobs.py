"""A job module of small jobs on real Spark. `on_open` and the jobs leave a line each in `<home>/happened`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypaware.engine.jobs import Job, JobContext


def on_open(context: JobContext) -> None:
    _write_down(context, f"on_open {context.spark.range(3).count()}")


def count(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    found = context.spark.range(args.get("n", 10)).count()
    _write_down(context, "count")
    return {"count": found, **_who(context)}


def hold(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Has the lake until the file `until` is there."""
    who = _who(context)
    Path(args["began"]).touch()
    while not Path(args["until"]).exists():
        context.check_cancelled()
        time.sleep(0.01)
    return who


def spin(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Spark tasks that go on until the file `until` is there, in a job that never asks whether it was
    cancelled."""

    def for_ever(rows: Iterator[int]) -> Iterator[int]:
        Path(args["began"]).touch()
        while not Path(args["until"]).exists():
            time.sleep(0.01)
        yield from rows

    context.spark.sparkContext.parallelize(range(2), 2).mapPartitions(for_ever).count()
    return {}


def loop(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Spark tasks in a tight loop of generated code, which never checks whether it was cancelled."""
    query = "SELECT count(*) FROM range(4) a, range(300000) b, range(300000) c WHERE (a.id + b.id * c.id) % 7 = 3"
    return {"count": context.spark.sql(query).collect()[0][0]}


def look(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    spark = context.spark.sparkContext
    threads = [thread.getName() for thread in spark._jvm.java.lang.Thread.getAllStackTraces().keySet()]
    return {
        "active": list(spark.statusTracker().getActiveJobsIds()),
        "tasks": sum(executor.numRunningTasks() for executor in spark._jsc.sc().statusTracker().getExecutorInfos()),
        "group": spark.getLocalProperty("spark.jobGroup.id"),
        "connections": sum(name.startswith("Thread-") for name in threads),
        **_who(context),
    }


def _who(context: JobContext) -> dict[str, Any]:
    jvm = context.spark.sparkContext._jvm
    return {"pid": os.getpid(), "jvm_pid": jvm.java.lang.ProcessHandle.current().pid()}


def _write_down(context: JobContext, line: str) -> None:
    with (context.home.root / "happened").open("a") as happened:
        happened.write(f"{line}\n")


JOBS: dict[str, Job] = {"count": count, "hold": hold, "spin": spin, "loop": loop, "look": look}
