"""`hyp daemon`: the collector of this home."""

from __future__ import annotations

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home

timeout_option = click.option(
    "--timeout", metavar="DURATION", default="60s", show_default=True, help="How long to wait for its end."
)
force_option = click.option("--force", is_flag=True, help="Kill it if it has not ended by then.")


@click.group("daemon", cls=Group, examples=["hyp daemon start", "hyp daemon status", "hyp daemon install"])
def daemon() -> None:
    """The collector: records, commits the spool, delivers to the sinks by their schedules, and keeps the lake."""


@daemon.command("run", examples=["hyp daemon run"])
@click.option("--quiet", is_flag=True, help="Log to the file only.")
def run(quiet: bool) -> None:
    """Run it in the foreground until it is stopped.

    What it does goes to logs/daemon.log in its home, and to stderr. One runs per home. It follows changes of the config
    by itself, and at once on SIGHUP.
    """
    from hypaware.daemon import log_files, service

    home = Home.from_environment()
    with log_files.logging_to(home, quiet=quiet):
        service.run(home)


@daemon.command("start", examples=["hyp daemon start", "hyp daemon start --json"])
@json_option
def start(as_json: bool) -> None:
    """Start it in the background and wait until it is ready; one that runs already stays.

    It outlives the terminal, but not the machine: `hyp daemon install` sees to it that it starts with every login.
    """
    from hypaware.daemon import instance, starting

    home = Home.from_environment()
    before = instance.running(home)
    pid = starting.start(home, starting.PATIENT_SECONDS, output.note)
    _tell_running(pid, started=pid != before, as_json=as_json)


@daemon.command("stop", examples=["hyp daemon stop", "hyp daemon stop --timeout 600"])
@timeout_option
@force_option
@json_option
def stop(timeout: str, force: bool, as_json: bool) -> None:
    """Stop it and wait for its end. Rounds under way are broken off, and nothing is lost by that.

    What it has recorded is durable then. It is committed too, if the engine runs and is quick; none is started for it.
    What is left in the spool is told, and the next commit takes it.
    """
    from hypaware.cli import daemon_summary

    home = Home.from_environment()
    daemon_summary.show_stopped(home, stopped=_stop(home, timeout, force), as_document=as_json)


@daemon.command("restart", examples=["hyp daemon restart"])
@timeout_option
@force_option
@json_option
def restart(timeout: str, force: bool, as_json: bool) -> None:
    """Stop it, if it runs, and start it: after an upgrade, for example. A new config needs no restart."""
    from hypaware.daemon import starting

    home = Home.from_environment()
    starting.check(home)  # one that runs is better than none
    _stop(home, timeout, force)
    _tell_running(starting.start(home, starting.PATIENT_SECONDS, output.note), started=True, as_json=as_json)


@daemon.command("install", examples=["hyp daemon install", "hyp daemon install --dry-run"])
@click.option("--dry-run", is_flag=True, help="Print what would be written, and write nothing.")
@json_option
def install(dry_run: bool, as_json: bool) -> None:
    """Start it now and with every login, and again when it dies: by systemd or launchd.

    Run it again after an upgrade, or when the home has moved. Where neither answers, it exits 3 and changes nothing.
    """
    from hypaware.cli import daemon_summary
    from hypaware.daemon import installing

    home = Home.from_environment()
    if dry_run:
        daemon_summary.show_plan(installing.plan(home), as_json)
        return
    pid = installing.install(home, tell=output.note)
    found = installing.installed(home)
    if as_json:
        output.emit_json({"pid": pid, "installed": daemon_summary.as_json(found)})
    else:
        output.emit(f"the daemon runs as process {pid}, and starts with every login")
    for hint in installing.hints(home):
        output.note(hint)


@daemon.command("uninstall", examples=["hyp daemon uninstall"])
@json_option
def uninstall(as_json: bool) -> None:
    """Stop it, and let nothing start it again. What it has recorded stays."""
    from hypaware.daemon import installing

    removed = installing.uninstall(Home.from_environment(), tell=output.note)
    if as_json:
        output.emit_json({"uninstalled": removed})
    else:
        output.emit("the daemon was stopped and is no longer installed" if removed else "the daemon was not installed")


@daemon.command("status", examples=["hyp daemon status", "hyp daemon status --json"])
@json_option
def status(as_json: bool) -> None:
    """Whether it runs, since when, and when each sink's next round is. Exits 3 when it does not run."""
    from hypaware.cli import daemon_summary
    from hypaware.daemon import condition, installing, instance

    home = Home.from_environment()
    pid, told, service = instance.running(home), condition.read(home), installing.installed(home)
    if service is not None and not service.is_current:
        output.warn(f"{service.path} starts another installation than this one: hyp daemon install")
    if pid is not None and told.get("version") not in (None, __version__):
        output.warn(f"it still runs version {told['version']}, this is {__version__}: hyp daemon restart")
    if pid is None:
        raise daemon_summary.down(home, told, service, installing.trouble(home))
    report = {
        "state": "running",
        **(told if told.get("pid") == pid else {"pid": pid}),
        "started_by": installing.started_by(home, pid),
        "installed": daemon_summary.as_json(service),
    }
    if as_json:
        output.emit_json(report)
    else:
        daemon_summary.show_running(report)


def _tell_running(pid: int, *, started: bool, as_json: bool) -> None:
    if as_json:
        output.emit_json({"pid": pid, "started": started})
    else:
        output.emit(f"the daemon {'runs' if started else 'ran already'}, as process {pid}")


def _stop(home: Home, timeout: str, force: bool) -> bool:
    from hypaware.daemon import stopping

    return stopping.stop(home, _seconds(timeout), force=force, tell=output.note)


def _seconds(text: str) -> float:
    from hypaware.config.values import DURATION
    from hypaware.errors import UsageError

    try:
        return float(text) if text.isdecimal() else float(DURATION.read(text))
    except ValueError:
        raise UsageError(f"--timeout {text!r}: expected {DURATION.expected}, such as 90s or 10m") from None
