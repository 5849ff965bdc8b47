"""`hyp plugin`: list registered plugins and why one cannot be loaded."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option


@click.group("plugin", cls=Group, examples=["hyp plugin list"])
def plugin() -> None:
    """List plugins and their errors."""


@plugin.command("list", examples=["hyp plugin list", "hyp plugin list --json"])
@json_option
def list_(as_json: bool) -> None:
    """List all registered clients, sinks, encoders, datasets and materializers, including built-in ones."""
    from dataclasses import asdict

    from hypaware.plugins import list_plugins

    found = list_plugins()
    if as_json:
        output.emit_json({"plugins": [asdict(one) for one in found]})
        return
    output.emit_table(
        ["group", "name", "package", "status"],
        [(one.group, one.name, f"{one.distribution} {one.version}", one.status) for one in found],
    )
    for one in found:
        if one.error:
            output.warn(f"cannot load {one.name} ({one.distribution}): {one.error}")
