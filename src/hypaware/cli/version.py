"""`hyp version`: what to put into a bug report. It looks, but imports no Spark and starts no Java."""

from __future__ import annotations

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.cli.group import Command, json_option
from hypaware.errors import NotReady


@click.command("version", cls=Command, examples=["hyp version", "hyp version --json"])
@json_option
def version(as_json: bool) -> None:
    """Versions of HypAware and of what it runs on; what is not there is shown as "-"."""
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
    """The pinned one: no other is ever loaded."""
    from hypaware.engine import jars

    return next((jar.version for jar in jars.locked() if jar.name.startswith("iceberg-spark-runtime")), None)
