"""`hyp flush`: commits the spool to the lake now."""

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
    """Commit everything that waits in the spool to the lake now.

    Safe at any time and from any number of processes; a flush that was interrupted is finished or undone first.
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
        # As a flush tells it: of what has come in so far.
        known = names or segments.datasets_with_spool(home) or datasets.names()
        report = {"datasets": [_nothing(name) for name in known]}
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
                f"{each['dataset']}: {each['rows_settled']} rows told the ids of rows that were recorded live; "
                "those take them over at the next `hyp maintain`"
            )
        if each.get("rows_purged"):
            output.note(f"{each['dataset']}: {each['rows_purged']} rows were purged before and stay out")
        if each["rows_rejected"]:
            output.warn(
                f"{each['rows_rejected']} rows were refused; they are kept with the reason in "
                f"{home.spool / each['dataset'] / 'rejected'}"
            )


def _nothing(name: str) -> dict[str, Any]:
    counts = ("segments", "rows_written", "rows_duplicate", "rows_rejected", "rows_settled", "rows_purged")
    return {
        "dataset": name,
        **dict.fromkeys(counts, 0),
        "seq_after": None,
        "seq_last": None,
        "flush_id": None,
    }
