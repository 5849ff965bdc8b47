"""`hyp ingest`: rows from a file or a pipe into the spool."""

from __future__ import annotations

from typing import BinaryIO

import click

from hypaware.cli import output
from hypaware.cli.failure import PartlyFailed
from hypaware.cli.group import Command, json_option

_SHOWN_REJECTS = 20


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
@click.option("--strict", is_flag=True, help="Store nothing at all if any row is refused.")
@json_option
def ingest(dataset: str, file: BinaryIO, strict: bool, as_json: bool) -> None:
    """Append NDJSON rows to the spool; what is reported as accepted is durable.

    A row that does not fit the dataset's columns is refused with its line number and the reason; the valid rest is
    stored. `hyp flush` or the next query commits the rows to the lake.
    """
    from hypaware.cli.progress import display
    from hypaware.home import Home
    from hypaware.spool.ingest import ingest as run

    shown = display()
    try:
        report = run(Home.from_environment(), dataset, file, strict=strict, progress=shown.report)
    finally:
        shown.clear()
    if not as_json:
        what = "1 row of {} is" if report.accepted == 1 else f"{report.accepted:,} rows of {{}} are"
        output.emit(f"{what.format(dataset)} durable in the spool")
        for reject in report.rejected[:_SHOWN_REJECTS]:
            output.warn(f"line {reject.line}: {reject.reason}")
        if (more := len(report.rejected) - _SHOWN_REJECTS) > 0:
            output.warn(f"and {more} more lines")
    if report.rejected:
        count = len(report.rejected)
        what = "nothing was stored (--strict)" if strict else "the rest was stored"
        raise PartlyFailed(f"{count} rows were refused; {what}", report.as_json(), kind="rows_rejected")
    if as_json:
        output.emit_json(report.as_json())
