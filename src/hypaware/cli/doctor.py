"""`hyp doctor`: diagnose the machine, the home, clients and sinks."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.home import Home


@click.command("doctor", cls=Command, examples=["hyp doctor", "hyp doctor --json"])
@json_option
def doctor(as_json: bool) -> None:
    """Check everything that HypAware needs: Java, jars, disk, permissions, databases, ports, clients, clocks, sinks.

    This takes a few seconds. It contacts the destinations of the sinks, and writes a small file to the home and removes
    it. Exits 1 if a check fails.
    """
    from hypaware.cli.progress import display
    from hypaware.status.checks import run

    bar = display()
    try:
        found = list(run.run(run.begin(Home.from_environment()), bar.report))
    finally:
        bar.clear()
    failed = [check for check in found if check.status == "failed"]
    if not as_json:
        output.emit_table(
            ["", "check", "detail"], [(_status_label(check.status), check.name, check.detail) for check in found]
        )
        for check in found:
            for command in check.repair:
                output.note(f"{check.name}: try {command}")
    report = {"ok": not failed, "checks": [check.as_json() for check in found]}
    if failed:
        from hypaware.cli.failure import PartlyFailed

        findings = "; ".join(f"{check.name}: {check.detail}" for check in failed)
        raise PartlyFailed(f"a check failed: {findings}", report, kind="check_failed")
    if as_json:
        output.emit_json(report)


def _status_label(status: str) -> str:
    """Return the status in capitals unless it is "ok"."""
    return status if status == "ok" else status.upper()
