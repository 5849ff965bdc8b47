"""`hyp status`: how everything is, and why not."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.home import Home


@click.command("status", cls=Command, examples=["hyp status", "hyp status --json", "hyp status --check && echo fine"])
@click.option("--check", is_flag=True, help="Exit 1 unless all is well, for scripts.")
@json_option
def status(check: bool, as_json: bool) -> None:
    """What is recorded, kept, waiting and delivered, and where something is not: why, and what to do.

    It only looks: no Spark is started, nothing is changed, and a home that does not exist is not made. "down" means
    that nothing records, "degraded" that something is wrong or waits for you.
    """
    import gc
    import sys
    from datetime import UTC, datetime

    # Thousands of small values are made and nearly all of them are kept: to look for garbage would only take time.
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

        said = "; ".join(each.message for each in found.diagnostics if each.severity != "info")
        raise PartlyFailed(f"{found.overall}: {said}", document, kind=found.overall)
    if as_json:
        output.emit_json(document)
