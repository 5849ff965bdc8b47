"""`hyp version`, `hyp plugin` and `hyp dev`: facts about this installation.

The versions are found without importing Spark or starting Java.
"""

from __future__ import annotations

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.cli.command import Command, Group, json_option
from hypaware.errors import NotReady


@click.command("version", cls=Command, examples=["hyp version", "hyp version --json"])
@json_option
def version(as_json: bool) -> None:
    """Show the versions of HypAware, Python, Java, Spark and Iceberg. "-" means not installed."""
    import platform

    from hypaware.engine import jars

    # The engine loads only the pinned version.
    iceberg = next((jar.version for jar in jars.locked_jars() if jar.name.startswith("iceberg-spark-runtime")), None)
    found = {
        "hypaware": __version__,
        "python": platform.python_version(),
        "java": _java(),
        "spark": _spark(),
        "iceberg": iceberg,
        "platform": platform.platform(),
    }
    output.emit_report(found, as_json)


def _java() -> str | None:
    from hypaware.engine import jvm

    try:
        return jvm.find_java().version
    except NotReady:
        return None


def _spark() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None


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
    from hypaware import faults

    points = faults.list_crash_points()
    if as_json:
        output.emit_json({"points": [{"name": one.name, "package": one.package, "about": one.about} for one in points]})
    else:
        output.emit_table(["point", "about"], [(one.name, one.about) for one in points])
