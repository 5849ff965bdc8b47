"""`hyp daemon`: run, control and install the background recorder of a home."""

from __future__ import annotations

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.cli.group import Group, json_option
from hypaware.home import Home

timeout_option = click.option(
    "--timeout", metavar="DURATION", default="60s", show_default=True, help="How long to wait until it has stopped."
)
force_option = click.option("--force", is_flag=True, help="Kill it if it has not stopped by then.")


@click.group("daemon", cls=Group, examples=["hyp daemon start", "hyp daemon status", "hyp daemon install"])
def daemon() -> None:
    """Run and control the daemon.

    The daemon records live sessions, imports transcripts, commits spooled rows to the lake, delivers to the sinks on
    their schedules, and maintains the lake.
    """


@daemon.command("run", examples=["hyp daemon run"])
@click.option("--quiet", is_flag=True, help="Do not log to stderr.")
def run(quiet: bool) -> None:
    """Run the daemon in the foreground until it is stopped.

    It logs to logs/daemon.log in the home and to stderr. Only one daemon runs per home. Changes of the config take
    effect without a restart; send SIGHUP to apply them immediately.
    """
    from hypaware.daemon import log_files, service

    home = Home.from_environment()
    with log_files.logging_to(home, quiet=quiet):
        service.run(home)


@daemon.command("start", examples=["hyp daemon start", "hyp daemon start --json"])
@json_option
def start(as_json: bool) -> None:
    """Start the daemon in the background, if it is not running, and wait until it is ready.

    It keeps running when you close the terminal, but does not start again after a reboot. Use `hyp daemon install` to
    start it with every login.
    """
    from hypaware.daemon import instance, starting

    home = Home.from_environment()
    before = instance.running(home)
    pid = starting.start(home, starting.PATIENT_SECONDS, output.note)
    _print_running(pid, started=pid != before, as_json=as_json)


@daemon.command("stop", examples=["hyp daemon stop", "hyp daemon stop --timeout 600"])
@timeout_option
@force_option
@json_option
def stop(timeout: str, force: bool, as_json: bool) -> None:
    """Stop the daemon and wait until it has stopped.

    Deliveries in progress are interrupted and resumed later; nothing is lost. All recorded rows are durable. If the
    engine is running, the daemon commits them to the lake before it stops; otherwise they stay in the spool until the
    next flush.
    """
    from hypaware.cli import daemon_summary

    home = Home.from_environment()
    daemon_summary.show_stopped(home, stopped=_stop(home, timeout, force), as_document=as_json)


@daemon.command("restart", examples=["hyp daemon restart"])
@timeout_option
@force_option
@json_option
def restart(timeout: str, force: bool, as_json: bool) -> None:
    """Restart the daemon, for example after an upgrade. A changed config needs no restart."""
    from hypaware.daemon import starting

    home = Home.from_environment()
    starting.check(home)  # Do not stop a running daemon if a new one cannot start.
    _stop(home, timeout, force)
    _print_running(starting.start(home, starting.PATIENT_SECONDS, output.note), started=True, as_json=as_json)


@daemon.command("install", examples=["hyp daemon install", "hyp daemon install --dry-run"])
@click.option("--dry-run", is_flag=True, help="Print the service file without writing it.")
@json_option
def install(dry_run: bool, as_json: bool) -> None:
    """Install the daemon as a systemd or launchd service and start it.

    The service starts with every login and restarts after a crash. Run this command again after an upgrade or after
    moving the home. If neither systemd nor launchd is available, it exits 3 and changes nothing.
    """
    from hypaware.cli import daemon_summary
    from hypaware.daemon import installing

    home = Home.from_environment()
    if dry_run:
        daemon_summary.show_plan(installing.plan(home), as_json)
        return
    pid = installing.install(home, notify=output.note)
    found = installing.installed(home)
    if as_json:
        output.emit_json({"pid": pid, "installed": daemon_summary.as_json(found)})
    else:
        output.emit(f"the daemon is running as process {pid} and starts with every login")
    for hint in installing.hints(home):
        output.note(hint)


@daemon.command("uninstall", examples=["hyp daemon uninstall"])
@json_option
def uninstall(as_json: bool) -> None:
    """Stop the daemon and remove its service. Recorded data is kept."""
    from hypaware.daemon import installing

    removed = installing.uninstall(Home.from_environment(), notify=output.note)
    if as_json:
        output.emit_json({"uninstalled": removed})
    else:
        output.emit("the daemon is stopped and no longer installed" if removed else "the daemon was not installed")


@daemon.command("status", examples=["hyp daemon status", "hyp daemon status --json"])
@json_option
def status(as_json: bool) -> None:
    """Show whether the daemon is running, since when, and the next delivery of each sink.

    Exits 3 if it is not running.
    """
    from hypaware.cli import daemon_summary
    from hypaware.daemon import condition, installing, instance

    home = Home.from_environment()
    pid, last_status, service = instance.running(home), condition.read(home), installing.installed(home)
    if service is not None and not service.is_current:
        output.warn(f"{service.path} starts a different installation of HypAware; to replace it: hyp daemon install")
    if pid is not None and last_status.get("version") not in (None, __version__):
        version = last_status["version"]
        output.warn(f"the daemon runs version {version}, but {__version__} is installed: hyp daemon restart")
    if pid is None:
        raise daemon_summary.down(home, last_status, service, installing.trouble(home))
    report = {
        "state": "running",
        **(last_status if last_status.get("pid") == pid else {"pid": pid}),
        "started_by": installing.started_by(home, pid),
        "installed": daemon_summary.as_json(service),
    }
    if as_json:
        output.emit_json(report)
    else:
        daemon_summary.show_running(report)


def _print_running(pid: int, *, started: bool, as_json: bool) -> None:
    if as_json:
        output.emit_json({"pid": pid, "started": started})
    else:
        output.emit(f"the daemon is {'running' if started else 'already running'} as process {pid}")


def _stop(home: Home, timeout: str, force: bool) -> bool:
    from hypaware.daemon import stopping

    return stopping.stop(home, _seconds(timeout), force=force, notify=output.note)


def _seconds(text: str) -> float:
    from hypaware.config.values import DURATION
    from hypaware.errors import UsageError

    try:
        return float(text) if text.isdecimal() else float(DURATION.read(text))
    except ValueError:
        raise UsageError(f"--timeout {text!r}: expected {DURATION.expected}, such as 90s or 10m") from None
