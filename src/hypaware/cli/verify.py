"""`hyp verify` and `hyp doctor`: check the recorded data, and the machine that it is recorded on."""

from __future__ import annotations

from contextlib import closing

import click

from hypaware.cli import output
from hypaware.cli.command import Command, json_option
from hypaware.cli.jobs import run_job
from hypaware.cli.progress import open_progress
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
        failed = [check for check in report["checks"] if not check["ok"]]
        findings = "; ".join(f"{check['name']}: {check['detail']}" for check in failed)
        raise output.PartialFailure(f"verification failed: {findings}", report, kind="verify_failed")
    if as_json:
        output.emit_json(report)


def _has_data(home: Home) -> bool:
    """Return whether there is anything to check; never create a home."""
    from hypaware.iceberg import metadata
    from hypaware.lake import health
    from hypaware.state.home_opener import open_home

    if not home.root.is_dir():
        return False
    with closing(open_home(home).store) as store:
        return bool(
            metadata.list_tables(home) or health.list_unfinished_datasets(store) or health.has_committed_rows(store)
        )


@click.command("doctor", cls=Command, examples=["hyp doctor", "hyp doctor --json"])
@json_option
def doctor(as_json: bool) -> None:
    """Check everything that HypAware needs: Java, jars, disk, permissions, databases, ports, clients, clocks, sinks.

    This takes a few seconds. It contacts the destinations of the sinks, and writes a small file to the home and removes
    it. Exits 1 if a check fails.
    """
    from hypaware.status.doctor import read_input, run_checks

    with open_progress() as bar:
        found = list(run_checks(read_input(Home.from_environment()), bar.report))
    failed = [check for check in found if check.status == "failed"]
    if not as_json:
        output.emit_table(
            ["", "check", "detail"],
            [
                (check.status if check.status == "ok" else check.status.upper(), check.name, check.detail)
                for check in found
            ],
        )
        for check in found:
            for command in check.repair:
                output.note(f"{check.name}: try {command}")
    report = {"ok": not failed, "checks": [check.as_json() for check in found]}
    if failed:
        findings = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        raise output.PartialFailure(f"a check failed: {findings}", report, kind="check_failed")
    if as_json:
        output.emit_json(report)
