"""`hyp plugin`: what is registered, and why a plugin does not work."""

from __future__ import annotations

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option


@click.group("plugin", cls=Group, examples=["hyp plugin list"])
def plugin() -> None:
    """What is registered, and what is broken."""


@plugin.command("list", examples=["hyp plugin list", "hyp plugin list --json"])
@json_option
def list_(as_json: bool) -> None:
    """List clients, sinks, encoders, datasets and materializers, the built-in ones too."""
    from dataclasses import asdict

    from hypaware.plugins import list_plugins

    found = list_plugins()
    if as_json:
        output.emit_json({"plugins": [asdict(one) for one in found]})
        return
    output.emit_table(
        ["group", "name", "from", "status"],
        [(one.group, one.name, f"{one.distribution} {one.version}", one.status) for one in found],
    )
    for one in found:
        if one.error:
            output.warn(f"{one.name} ({one.distribution}) is broken: {one.error}")
