"""`hyp status`: show what is recorded and delivered, and any problems."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.home import Home


@click.command("status", cls=Command, examples=["hyp status", "hyp status --json", "hyp status --check && echo fine"])
@click.option("--check", is_flag=True, help='Exit 1 unless the status is "ok"; for scripts.')
@json_option
def status(check: bool, as_json: bool) -> None:
    """Show what is recorded, pending, delivered and retained, and the command that fixes each problem.

    It only reads: it starts no Spark, changes nothing and creates no home. "down" means that nothing is being recorded,
    "degraded" that there is a problem or a decision for you to make.
    """
    import gc
    import sys
    from datetime import UTC, datetime

    # The status consists of thousands of small objects that all stay alive: garbage collection would only cost time.
    gc.disable()
    try:
        from hypaware.cli.status_page import Look, draw
        from hypaware.status.gathering import gather

        now = datetime.now(UTC)
        found = gather(Home.from_environment(), now=now)
        document = found.as_json()
        if not as_json:
            page = "".join(f"{line}\n" for line in draw(document, now, Look.of(sys.stdout)))
            output.write_bytes(page.encode(sys.stdout.encoding, "backslashreplace"))
    finally:
        gc.enable()
    if check and found.overall != "ok":
        from hypaware.cli.failure import PartlyFailed

        problems = "; ".join(each.message for each in found.diagnostics if each.severity != "info")
        raise PartlyFailed(f"{found.overall}: {problems}", document, kind=found.overall)
    if as_json:
        output.emit_json(document)
