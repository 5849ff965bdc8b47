"""`hyp flush`: commit spooled rows to the lake now."""

from __future__ import annotations

from typing import Any

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.cli.jobs import run_job


@click.command("flush", cls=Command, examples=["hyp flush", "hyp flush ai_gateway_messages --json"])
@click.argument("dataset", required=False)
@json_option
def flush(dataset: str | None, as_json: bool) -> None:
    """Commit all rows in the spool to the lake now.

    It is safe to run at any time, from any number of processes. An interrupted flush is first completed or undone.
    """
    from hypaware.home import Home
    from hypaware.lake import pending
    from hypaware.model import datasets
    from hypaware.opening import identify
    from hypaware.spool import segments

    names = [datasets.get(dataset).name] if dataset else None
    home = Home.from_environment()
    identify(home)
    if pending.waits(home, names):
        report = run_job("flush", {"dataset": dataset})
    else:
        # Report the same datasets as a flush would.
        known = names or segments.datasets_with_spool(home) or datasets.names()
        report = {"datasets": [_empty_report(name) for name in known]}
    if as_json:
        output.emit_json(report)
        return
    rows = [
        (
            each["dataset"],
            each["rows_written"],
            each["rows_duplicate"],
            each["rows_rejected"],
            each["seq_last"],
        )
        for each in report["datasets"]
    ]
    output.emit_table(["dataset", "written", "duplicate", "rejected", "up to sequence"], rows)
    for each in report["datasets"]:
        if each.get("rows_settled"):
            output.note(
                f"{each['dataset']}: {each['rows_settled']} rows match rows that were recorded live; "
                "the next `hyp maintain` applies their ids"
            )
        if each.get("rows_purged"):
            output.note(f"{each['dataset']}: {each['rows_purged']} previously purged rows were left out")
        if each["rows_rejected"]:
            output.warn(
                f"{each['rows_rejected']} rows were rejected; see the reasons in "
                f"{home.spool / each['dataset'] / 'rejected'}"
            )


def _empty_report(name: str) -> dict[str, Any]:
    counts = ("segments", "rows_written", "rows_duplicate", "rows_rejected", "rows_settled", "rows_purged")
    return {
        "dataset": name,
        **dict.fromkeys(counts, 0),
        "seq_after": None,
        "seq_last": None,
        "flush_id": None,
    }
