"""`hyp verify`: check the integrity of the recorded data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.cli.jobs import run_job

if TYPE_CHECKING:
    from hypaware.home import Home


@click.command("verify", cls=Command, examples=["hyp verify", "hyp verify --deep --json", "hyp verify --repair"])
@click.option("--deep", is_flag=True, help="Read every row instead of a sample.")
@click.option(
    "--repair", is_flag=True, help="Repair derived data: the key index, recorded high waters, leftover files."
)
@click.option("--accept-rollback", is_flag=True, help="Accept the loss of recorded rows that the lake no longer has.")
@json_option
def verify(deep: bool, repair: bool, accept_rollback: bool, as_json: bool) -> None:
    """Check that every row is stored exactly once and that the lake, its state, index and files agree.

    Exits 1 if a check fails, and prints the finding.
    """
    from hypaware.home import Home

    if _has_data(Home.from_environment()):
        report = run_job("verify", {"deep": deep, "repair": repair, "accept_rollback": accept_rollback})
    else:
        report = {"ok": True, "checks": [{"name": "lake", "ok": True, "detail": "the lake is empty"}]}
    if not as_json:
        rows = [
            ("ok" if check["ok"] else "FAILED", check.get("dataset", ""), check["name"], check["detail"])
            for check in report["checks"]
        ]
        output.emit_table(["", "dataset", "check", "detail"], rows)
    if not report["ok"]:
        from hypaware.cli.failure import PartlyFailed

        failed = [check for check in report["checks"] if not check["ok"]]
        findings = "; ".join(f"{check['name']}: {check['detail']}" for check in failed)
        raise PartlyFailed(f"verification failed: {findings}", report, kind="verify_failed")
    if as_json:
        output.emit_json(report)


def _has_data(home: Home) -> bool:
    """Return whether there is anything to check; never create a home."""
    from contextlib import closing

    from hypaware.lake import metadata, pending
    from hypaware.opening import open_home

    if not home.root.is_dir():
        return False
    with closing(open_home(home).store) as store:
        return bool(metadata.entries(home) or pending.unfinished(store) or pending.recorded(store))
