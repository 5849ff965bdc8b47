"""`hyp config`: show, validate, locate and change the configuration."""

from __future__ import annotations

import click

from hypaware import config as configuration
from hypaware.cli import output
from hypaware.cli.command import Group, json_option
from hypaware.home import Home


@click.group("config", cls=Group, examples=["hyp config show", "hyp config set flush.interval 5m"])
def config() -> None:
    """Show, validate and change the configuration."""


@config.command("show", examples=["hyp config show", "hyp config show --json"])
@json_option
def show() -> None:
    """Print the effective configuration, including defaults."""
    from hypaware.config.edit import to_table, to_toml

    home = Home.from_environment()
    found = configuration.load(home)
    output.emit_result(
        {"path": home.config, "exists": home.config.exists(), "config": to_table(found)}, to_toml(found).rstrip("\n")
    )


@config.command("validate", examples=["hyp config validate"])
@json_option
def validate() -> None:
    """Check the configuration file.

    Exits 1 if it is invalid, and prints the key, the line and the accepted values.
    """
    home = Home.from_environment()
    configuration.load(home)
    exists = home.config.exists()
    output.emit_result(
        {"path": home.config, "exists": exists, "ok": True},
        f"{home.config}: {'valid' if exists else 'file not found, defaults apply'}",
    )


@config.command("path", examples=["hyp config path", '"$EDITOR" "$(hyp config path)"'])
@json_option
def path() -> None:
    """Print the path of the configuration file, even if it does not exist."""
    home = Home.from_environment()
    output.emit_result({"path": home.config, "exists": home.config.exists()}, str(home.config))


@config.command(
    "set",
    examples=[
        "hyp config set flush.interval 5m",
        "hyp config set retention.datasets.ai_gateway_messages 365",
        'hyp config set sinks.archive \'{ kind = "blob", destination = "s3://bucket/prefix" }\'',
    ],
)
@click.argument("key")
@click.argument("value")
@json_option
def set_(key: str, value: str) -> None:
    """Set KEY to VALUE, written as TOML or as plain text. Comments and order of the file are kept."""
    from hypaware.config.edit import set_value

    change = set_value(Home.from_environment(), key, value)
    fields = {"key": change.key, "before": change.before, "after": change.after}
    if not output.emit_document({"path": change.path, **fields}):
        output.emit_fields(fields)
