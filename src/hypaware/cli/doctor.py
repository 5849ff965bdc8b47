"""`hyp doctor`: the deeper checks."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.home import Home


@click.command("doctor", cls=Command, examples=["hyp doctor", "hyp doctor --json"])
@json_option
def doctor(as_json: bool) -> None:
    """Check what HypAware stands on: Java, jars, disk, permissions, databases, ports, clients, clocks, sinks.

    Takes a few seconds and asks the sinks' servers whether they are there. A small file is written to the home and
    removed again. Exits 1 if a check failed.
    """
    from hypaware.cli.progress import display
    from hypaware.status.checks import run

    shown = display()
    try:
        found = list(run.run(run.begin(Home.from_environment()), shown.report))
    finally:
        shown.clear()
    bad = [check for check in found if check.status == "failed"]
    if not as_json:
        output.emit_table(["", "check", "detail"], [(_word(check.status), check.name, check.detail) for check in found])
        for check in found:
            for command in check.repair:
                output.note(f"{check.name}: try {command}")
    report = {"ok": not bad, "checks": [check.as_json() for check in found]}
    if bad:
        from hypaware.cli.failure import PartlyFailed

        said = "; ".join(f"{check.name}: {check.detail}" for check in bad)
        raise PartlyFailed(f"a check failed: {said}", report, kind="check_failed")
    if as_json:
        output.emit_json(report)


def _word(status: str) -> str:
    """What needs a look stands out."""
    return status if status == "ok" else status.upper()
