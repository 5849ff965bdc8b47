"""`hyp dev`: tools for developing HypAware."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option


@click.group("dev", cls=Group, examples=["hyp dev crash-points"])
def dev() -> None:
    """Use tools for developing HypAware."""


@dev.command(
    "crash-points",
    examples=["hyp dev crash-points", "HYP_CRASH_AT=<point>[:n] hyp flush"],
    any_crash_point=True,
)
@json_option
def crash_points(as_json: bool) -> None:
    """List the crash points: places before and after each durable step where HYP_CRASH_AT can kill the process."""
    from hypaware import crash_points as known

    points = known.all_points()
    if as_json:
        output.emit_json({"points": [{"name": one.name, "package": one.package, "about": one.about} for one in points]})
    else:
        output.emit_table(["point", "about"], [(one.name, one.about) for one in points])
