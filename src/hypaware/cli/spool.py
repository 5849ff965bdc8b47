"""`hyp ingest` and `hyp flush`: append rows to the spool, and commit them to the lake."""

from __future__ import annotations

from typing import BinaryIO

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import open_progress, run_job
from hypaware.home import Home
from hypaware.text import format_count

_MAX_SHOWN_REJECTS = 20


@click.command(
    "ingest",
    cls=Command,
    examples=[
        "hyp ingest ai_gateway_messages rows.ndjson",
        "my-producer | hyp ingest ai_gateway_messages - --json",
        "hyp ingest ai_gateway_messages rows.ndjson --strict",
    ],
)
@click.argument("dataset")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--strict", is_flag=True, help="Store nothing if any row is rejected.")
@json_option
def ingest(dataset: str, file: BinaryIO, strict: bool) -> None:
    """Append NDJSON rows from FILE, or from standard input, to the spool of DATASET.

    Rows that are reported as accepted are durable. A row that does not fit the dataset's columns is rejected with its
    line number and the reason; the valid rows are stored. `hyp flush` or the next query commits them to the lake.
    """
    from hypaware.spool.ingest import ingest as ingest_rows

    with open_progress() as bar:
        report = ingest_rows(Home.from_environment(), dataset, file, strict=strict, progress=bar.report)
    if not output.wants_json():
        output.emit(f"{format_count(report.accepted, 'row')} of {dataset} stored in the spool")
        for reject in report.rejected[:_MAX_SHOWN_REJECTS]:
            output.warn(f"line {reject.line}: {reject.reason}")
        if (more := len(report.rejected) - _MAX_SHOWN_REJECTS) > 0:
            output.warn(f"and {more} more lines")
    if count := len(report.rejected):
        what = "nothing was stored (--strict)" if strict else "the other rows were stored"
        raise output.PartialFailure(f"{count} rows were rejected; {what}", report.as_json(), kind="rows_rejected")
    output.emit_document(report.as_json())


@click.command("flush", cls=Command, examples=["hyp flush", "hyp flush ai_gateway_messages --json"])
@click.argument("dataset", required=False)
@json_option
def flush(dataset: str | None) -> None:
    """Commit all rows in the spool to the lake now.

    It is safe to run at any time, from any number of processes. An interrupted flush is first completed or undone.
    """
    from hypaware.lake import health
    from hypaware.model import datasets
    from hypaware.spool import segments
    from hypaware.state.home_opener import read_identity

    names = [datasets.get(dataset).name] if dataset else None
    home = Home.from_environment()
    read_identity(home)
    if health.has_pending_rows(home, names):
        report = run_job("flush", {"dataset": dataset})
    else:
        # Report the same datasets as a flush would.
        known = names or segments.list_spooled_datasets(home) or datasets.list_names()
        counts = ("segments", "rows_written", "rows_duplicate", "rows_rejected", "rows_settled", "rows_purged")
        empty = {**dict.fromkeys(counts, 0), **dict.fromkeys(("seq_after", "seq_last", "flush_id"))}
        report = {"datasets": [{"dataset": name, **empty} for name in known]}
    if output.emit_document(report):
        return
    keys = ("dataset", "rows_written", "rows_duplicate", "rows_rejected", "seq_last")
    rows = [[each[key] for key in keys] for each in report["datasets"]]
    output.emit_table(["dataset", "written", "duplicate", "rejected", "up to sequence"], rows)
    for each in report["datasets"]:
        name = each["dataset"]
        if count := each.get("rows_settled"):
            output.note(
                f"{name}: {count} rows match rows that were recorded live; the next `hyp maintain` applies their ids"
            )
        if count := each.get("rows_purged"):
            output.note(f"{name}: {count} previously purged rows were left out")
        if count := each["rows_rejected"]:
            output.warn(f"{count} rows were rejected; see the reasons in {home.spool / name / 'rejected'}")
