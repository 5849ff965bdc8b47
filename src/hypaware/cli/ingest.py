"""`hyp ingest`: append rows from a file or a pipe to the spool."""

from __future__ import annotations

from typing import BinaryIO

import click

from hypaware.cli import output
from hypaware.cli.failure import PartlyFailed
from hypaware.cli.group import Command, json_option

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
def ingest(dataset: str, file: BinaryIO, strict: bool, as_json: bool) -> None:
    """Append NDJSON rows from FILE, or from standard input, to the spool of DATASET.

    Rows that are reported as accepted are durable. A row that does not fit the dataset's columns is rejected with its
    line number and the reason; the valid rows are stored. `hyp flush` or the next query commits them to the lake.
    """
    from hypaware.cli.progress import display
    from hypaware.home import Home
    from hypaware.spool.ingest import ingest as run

    bar = display()
    try:
        report = run(Home.from_environment(), dataset, file, strict=strict, progress=bar.report)
    finally:
        bar.clear()
    if not as_json:
        rows = "1 row" if report.accepted == 1 else f"{report.accepted:,} rows"
        output.emit(f"{rows} of {dataset} stored in the spool")
        for reject in report.rejected[:_MAX_SHOWN_REJECTS]:
            output.warn(f"line {reject.line}: {reject.reason}")
        if (more := len(report.rejected) - _MAX_SHOWN_REJECTS) > 0:
            output.warn(f"and {more} more lines")
    if report.rejected:
        count = len(report.rejected)
        what = "nothing was stored (--strict)" if strict else "the other rows were stored"
        raise PartlyFailed(f"{count} rows were rejected; {what}", report.as_json(), kind="rows_rejected")
    if as_json:
        output.emit_json(report.as_json())
