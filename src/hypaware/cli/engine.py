"""`hyp engine`: the Spark process that the other commands use."""

from __future__ import annotations

import click

from hypaware import config as configuration
from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.cli.jobs import event_handler
from hypaware.cli.progress import display
from hypaware.home import Home, cache_dir


@click.group("engine", cls=Group, examples=["hyp engine install", "hyp engine status --json"])
def engine() -> None:
    """The Spark process that the other commands use; they start it themselves."""


@engine.command("install", examples=["hyp engine install"])
@json_option
def install(as_json: bool) -> None:
    """Fetch the engine's jars and prepare a fast start. Once done, nothing needs the network."""
    from hypaware.engine import archive, jars, java

    shown = display()
    try:
        found = java.find()
        fetched = jars.install(cache_dir(), shown.report)
        archived = archive.ensure(cache_dir(), shown.report)
    finally:
        shown.clear()
    report = {
        "java": found.version,
        "jars": [path.name for path in fetched.paths],
        "fetched": fetched.fetched,
        "archive": archived is not None,
    }
    if as_json:
        output.emit_json(report)
    else:
        output.emit_fields(report)


@engine.command("start", examples=["hyp engine start"])
@json_option
def start(as_json: bool) -> None:
    """Start the engine of this home, if it does not run."""
    from hypaware.engine import client

    home = Home.from_environment()
    shown = display()
    try:
        client.start(home, configuration.load(home), event_handler(shown, output.write_bytes))
    finally:
        shown.clear()
    _report(home, as_json)


@engine.command("stop", examples=["hyp engine stop"])
@json_option
def stop(as_json: bool) -> None:
    """Stop the engine of this home; jobs in flight are given a moment, and nothing acknowledged is lost."""
    from hypaware.engine import client

    stopped = client.stop(Home.from_environment())
    if as_json:
        output.emit_json({"stopped": stopped})
    else:
        output.emit("the engine was stopped" if stopped else "no engine was running")


@engine.command("status", examples=["hyp engine status", "hyp engine status --json"])
@json_option
def status(as_json: bool) -> None:
    """Whether the engine runs, since when, and what it is doing."""
    _report(Home.from_environment(), as_json)


def _report(home: Home, as_json: bool) -> None:
    from hypaware.engine import client

    found = client.status(home)
    if as_json:
        output.emit_json(found)
        return
    if "jobs" in found:
        found = {**found, "jobs": ", ".join(str(each["job"]) for each in found["jobs"]) or "none"}
    output.emit_fields(found)
