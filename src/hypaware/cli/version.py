"""`hyp version`: the versions for a bug report, found without importing Spark or starting Java."""

from __future__ import annotations

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.errors import NotReady


@click.command("version", cls=Command, examples=["hyp version", "hyp version --json"])
@json_option
def version(as_json: bool) -> None:
    """Show the versions of HypAware, Python, Java, Spark and Iceberg. "-" means not installed."""
    import platform

    found = {
        "hypaware": __version__,
        "python": platform.python_version(),
        "java": _java(),
        "spark": _spark(),
        "iceberg": _iceberg(),
        "platform": platform.platform(),
    }
    if as_json:
        output.emit_json(found)
    else:
        output.emit_fields(found)


def _java() -> str | None:
    from hypaware.engine import java

    try:
        return java.find().version
    except NotReady:
        return None


def _spark() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyspark")
    except PackageNotFoundError:
        return None


def _iceberg() -> str | None:
    """Return the pinned version; the engine loads no other."""
    from hypaware.engine import jars

    return next((jar.version for jar in jars.locked() if jar.name.startswith("iceberg-spark-runtime")), None)
