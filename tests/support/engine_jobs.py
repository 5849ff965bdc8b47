"""A job module like `hypaware.jobs`, with jobs that do not use Spark and leave files and results."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from hypaware import errors, faults, telemetry
from hypaware.engine.jobs import Job, JobContext
from hypaware.model.datasets import SEQ

reach_the_point = faults.crash_point("engine_jobs.step.before-nothing", "a place for tests to die at")


class OddLakeError(errors.LakeError):
    """An error class outside hypaware.errors."""

    kind = "odd"


def on_open(context: JobContext) -> None:
    raise AssertionError("these jobs ask for no Spark")


def echo(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    return {"args": args, "pid": os.getpid()}


def talk(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    context.progress("one", done=1, total=3, file=Path("a"))
    context.note("two")
    context.emit(b"\x00\xff" * 1_500_000)
    context.progress("four")
    return {"five": 5}


def fail(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    raise getattr(errors, args["error"])("it did not work")


def fail_in_detail(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    raise OddLakeError("the table is odd", repair=["hyp verify", "hyp verify --repair"])


def blow_up(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    return {"result": 1 // 0}


def say_what_json_cannot(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    return {"result": object()}


def leave(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    raise SystemExit(0)


def wait(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run until the file `until` exists or the job is cancelled."""
    Path(args["began"]).touch()
    try:
        while not Path(args["until"]).exists():
            context.check_cancelled()
            time.sleep(0.005)
    except errors.Cancelled:
        Path(args["cancelled"]).touch()
        if kept := args.get("kept"):
            raise errors.Cancelled(kept) from None
        raise
    return {"waited": True, "pid": os.getpid()}


def persist(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Run until the file `until` exists, even if the job is cancelled."""
    Path(args["began"]).touch()
    while not Path(args["until"]).exists():
        try:
            context.check_cancelled()
        except errors.Cancelled:
            Path(args["cancelled"]).touch()
        time.sleep(0.005)
    Path(args["ended"]).touch()
    return {}


def pour(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Send bytes until the job is cancelled."""
    try:
        while True:
            context.emit(bytes(1_000_000))
    except errors.Cancelled:
        Path(args["cancelled"]).touch()
        raise


def read(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    """Emit pages of ten rows, up to sequence 30, and leave a file for each. The page after `until` fails."""
    since = args["since"]
    (context.home.root / f"read-{since}").touch()
    if since > (args["until"] or since):
        raise errors.LakeError("a data file is missing", kind="lake_damaged")
    page = pa.table({SEQ: range(since + 1, since + 11), "session_id": [str(since)] * 10})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, page.schema) as writer:
        writer.write_table(page)
    context.emit(sink.getvalue().to_pybytes())
    return {"rows": 10, "next": since + 10 if since < 20 else None}


def surroundings(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "cwd": str(Path.cwd()),
        "umask": os.umask(0o077),
        "leads_session": os.getsid(0) == os.getpid(),
        "environment": dict(os.environ),
        "reads_nothing": os.fstat(0).st_rdev == Path(os.devnull).stat().st_rdev,
        "run_id": telemetry.dev_run_id(),
        "days": context.config.retention.default_days,
    }


def reach(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    for _ in range(args.get("times", 1)):
        reach_the_point()
    return {"survived": os.getpid()}


JOBS: dict[str, Job] = {
    job.__name__: job
    for job in (
        *(echo, talk, surroundings, reach),
        *(fail, fail_in_detail, blow_up, say_what_json_cannot, leave),
        *(wait, persist, pour, read),
    )
}
