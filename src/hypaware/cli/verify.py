"""`hyp verify`: audits every promise on the data at hand."""

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
@click.option("--repair", is_flag=True, help="Mend what is derived: key index, high water, left-over files.")
@click.option("--accept-rollback", is_flag=True, help="Give recorded rows up that the lake no longer has.")
@json_option
def verify(deep: bool, repair: bool, accept_rollback: bool, as_json: bool) -> None:
    """Check that every row is in the lake once, under one sequence, and that state, index and files agree.

    Exits 1 if anything is wrong, and says what.
    """
    from hypaware.home import Home

    if _holds_anything(Home.from_environment()):
        report = run_job("verify", {"deep": deep, "repair": repair, "accept_rollback": accept_rollback})
    else:
        report = {"ok": True, "checks": [{"name": "lake", "ok": True, "detail": "there is nothing in the lake yet"}]}
    if not as_json:
        rows = [
            ("ok" if check["ok"] else "FAILED", check.get("dataset", ""), check["name"], check["detail"])
            for check in report["checks"]
        ]
        output.emit_table(["", "dataset", "check", "detail"], rows)
    if not report["ok"]:
        from hypaware.cli.failure import PartlyFailed

        failed = [check for check in report["checks"] if not check["ok"]]
        said = "; ".join(f"{check['name']}: {check['detail']}" for check in failed)
        raise PartlyFailed(f"not all is as promised: {said}", report, kind="verify_failed")
    if as_json:
        output.emit_json(report)


def _holds_anything(home: Home) -> bool:
    """A home that is not there does not come to be by being looked at."""
    from contextlib import closing

    from hypaware.lake import metadata, pending
    from hypaware.opening import open_home

    if not home.root.is_dir():
        return False
    with closing(open_home(home).store) as store:
        return bool(metadata.entries(home) or pending.unfinished(store) or pending.recorded(store))
