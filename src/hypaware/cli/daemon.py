"""`hyp daemon`: the collector of this home."""

from __future__ import annotations

from collections.abc import Mapping

import click

from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home


@click.group("daemon", cls=Group, examples=["hyp daemon run", "hyp daemon status --json", "hyp daemon stop"])
def daemon() -> None:
    """The collector: delivers to the sinks by their schedules, commits the spool and maintains the lake."""


@daemon.command("run", examples=["hyp daemon run", "hyp daemon run 2>> daemon.log &"])
def run() -> None:
    """Run it in the foreground until it is stopped; what it does goes to stderr, a line each.

    One runs per home. It follows changes of the config by itself, and at once on SIGHUP.
    """
    import logging
    import sys
    import time

    from hypaware.daemon import service
    from hypaware.terminal import harmless

    class Harmless(logging.Formatter):
        """What a destination answered must not act on the terminal that shows it."""

        def format(self, record: logging.LogRecord) -> str:
            return harmless(super().format(record))

    handler = logging.StreamHandler(sys.stderr)
    lines = Harmless("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    lines.converter = time.gmtime
    handler.setFormatter(lines)
    log = logging.getLogger("hypaware.daemon")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        service.run(Home.from_environment())
    finally:
        log.removeHandler(handler)


@daemon.command("status", examples=["hyp daemon status", "hyp daemon status --json"])
@json_option
def status(as_json: bool) -> None:
    """Whether it runs, since when, and when each sink's next round is. Exits 3 when it does not run."""
    from hypaware.cli.failure import PartlyFailed
    from hypaware.daemon import condition, instance

    home = Home.from_environment()
    pid = instance.running(home)
    if pid is None:
        down = PartlyFailed(
            f"the daemon of {home.root} does not run",
            {"state": "stopped"},
            kind="daemon_not_running",
            repair="hyp daemon run",
        )
        down.exit_code = 3
        raise down
    found = condition.read(home)
    report = {"state": "running", **(found if found.get("pid") == pid else {"pid": pid})}
    if as_json:
        output.emit_json(report)
        return
    sinks = report.pop("sinks", {})
    flush, upkeep = report.pop("flush", {}), report.pop("maintain", {})
    shown = {"last_flush": flush.get("last_flush"), "last_maintenance": _maintained(upkeep)}
    output.emit_fields({**report, **shown, "next_maintenance": upkeep.get("next_look") or upkeep.get("waits")})
    if sinks:
        output.emit()
        output.emit_table(
            ["sink", "next round", "last round", "status"],
            [(name, each["next_round"], each["last_round"], each["last_status"]) for name, each in sinks.items()],
        )


def _maintained(upkeep: Mapping[str, str | None]) -> str | None:
    last = upkeep.get("last_run")
    return f"{last} ({upkeep.get('last_status')})" if last else None


@daemon.command("stop", examples=["hyp daemon stop"])
@json_option
def stop(as_json: bool) -> None:
    """Stop it and wait for its end. Rounds under way are broken off, and nothing is lost by that."""
    from hypaware.daemon import instance

    stopped = instance.stop(Home.from_environment())
    if as_json:
        output.emit_json({"stopped": stopped})
    else:
        output.emit("the daemon was stopped" if stopped else "no daemon was running")
