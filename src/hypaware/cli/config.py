"""`hyp config`: show, validate, locate and change the configuration."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import click

from hypaware import config as configuration
from hypaware.cli import output
from hypaware.cli.command import Group, json_option
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.config.edit import ConfigChange


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
    _require_separate_destinations(home, configuration.load(home))
    exists = home.config.exists()
    output.emit_result(
        {"path": home.config, "exists": exists, "ok": True},
        f"{home.config}: {'valid' if exists else 'file not found, defaults apply'}",
    )
    _warn_of_risks()


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
    """Set KEY to VALUE, written as TOML or as plain text. The comments and the order of the file are kept."""
    from hypaware.config.edit import set_value

    home = Home.from_environment()
    _show_change(set_value(home, key, value, partial(_require_separate_destinations, home)))


@config.command("get", examples=["hyp config get flush.interval", "hyp config get retention --json"])
@click.argument("key")
@json_option
def get(key: str) -> None:
    """Print the effective value of KEY: the one in the file, or the default."""
    from hypaware.config.edit import get_value

    value = get_value(configuration.load(Home.from_environment()), key)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    output.emit_result({"key": key, "value": value}, text)


@config.command("unset", examples=["hyp config unset flush.interval", "hyp config unset sinks.archive"])
@click.argument("key")
@json_option
def unset(key: str) -> None:
    """Remove KEY from the file, so that its default applies. The comments and the order of the file are kept."""
    from hypaware.config.edit import unset_value

    _show_change(unset_value(Home.from_environment(), key))


def _require_separate_destinations(home: Home, config: Config) -> None:
    if len(config.sinks) > 1:
        from hypaware.export.sink_registry import require_separate_destinations

        require_separate_destinations(home, config)


def _show_change(change: ConfigChange) -> None:
    fields = {"key": change.key, "before": change.before, "after": change.after}
    if not output.emit_document({"path": change.path, **fields}):
        output.emit_fields(fields)
    _warn_of_risks(change.key)


def _warn_of_risks(key: str = "") -> None:
    """Warn if the setting, or any without `key`, gives others access to rows or tokens."""
    from hypaware.config.validation import find_risks

    for risk in find_risks(configuration.load(Home.from_environment())):
        if risk.key.startswith(key) or key.startswith(risk.key):
            output.warn(f"{risk.message}; to change that: {risk.repair}")
