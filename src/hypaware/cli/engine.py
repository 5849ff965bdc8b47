"""`hyp engine`: install and control the Spark process."""

from __future__ import annotations

import click

from hypaware import config
from hypaware.cli import output
from hypaware.cli.command import Group, json_option
from hypaware.cli.jobs import event_handler, open_progress
from hypaware.home import Home, cache_dir


@click.group("engine", cls=Group, examples=["hyp engine install", "hyp engine status --json"])
def engine() -> None:
    """Install, start and stop the engine.

    The engine is the background process that runs Spark. Other commands start it when they need it.
    """


@engine.command("install", examples=["hyp engine install"])
@json_option
def install(as_json: bool) -> None:
    """Download the engine's jars and prepare a fast start. Afterwards the engine needs no network."""
    from hypaware.engine import class_archive, jars, jvm

    with open_progress() as bar:
        found = jvm.find_java()
        fetched = jars.install_jars(cache_dir(), bar.report)
        archived = class_archive.ensure_archive(cache_dir(), bar.report)
    report = {
        "java": found.version,
        "jars": [path.name for path in fetched.paths],
        "fetched": fetched.fetched,
        "archive": archived is not None,
    }
    output.emit_report(report, as_json)


@engine.command("start", examples=["hyp engine start"])
@json_option
def start(as_json: bool) -> None:
    """Start the engine of this home, if it is not running."""
    from hypaware.engine import client

    home = Home.from_environment()
    with open_progress() as bar:
        client.start_engine(home, config.load(home), event_handler(bar))
    _print_status(home, as_json)


@engine.command("stop", examples=["hyp engine stop"])
@json_option
def stop(as_json: bool) -> None:
    """Stop the engine of this home.

    Running jobs get a moment to finish. Acknowledged rows are never lost.
    """
    from hypaware.engine import client

    stopped = client.stop_engine(Home.from_environment())
    output.emit_result({"stopped": stopped}, "the engine is stopped" if stopped else "no engine was running", as_json)


@engine.command("status", examples=["hyp engine status", "hyp engine status --json"])
@json_option
def status(as_json: bool) -> None:
    """Show whether the engine is running, since when, and its current jobs."""
    _print_status(Home.from_environment(), as_json)


def _print_status(home: Home, as_json: bool) -> None:
    from hypaware.engine import client

    found = client.engine_status(home)
    if as_json:
        output.emit_json(found)
        return
    if "jobs" in found:
        found = {**found, "jobs": ", ".join(str(each["job"]) for each in found["jobs"]) or "none"}
    output.emit_fields(found)
