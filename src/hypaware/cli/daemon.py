"""`hyp daemon`: run, control and install the background recorder of a home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hypaware import __version__
from hypaware.cli import output
from hypaware.cli.command import Group, json_option, parse_duration
from hypaware.home import Home
from hypaware.text import format_count

if TYPE_CHECKING:
    from hypaware.daemon.lifecycle import InstalledService

timeout_option = click.option(
    "--timeout",
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="Wait at most this long until it has stopped.",
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
    from hypaware.daemon import log_file, service

    home = Home.from_environment()
    with log_file.log_to_file(home, quiet=quiet):
        service.run_daemon(home)


@daemon.command("start", examples=["hyp daemon start", "hyp daemon start --json"])
@json_option
def start() -> None:
    """Start the daemon in the background, if it is not running, and wait until it is ready.

    It keeps running when you close the terminal, but does not start again after a reboot. Use `hyp daemon install` to
    start it with every login.
    """
    from hypaware.daemon import lifecycle
    from hypaware.home import daemon_process

    home = Home.from_environment()
    before = daemon_process.running_daemon(home)
    pid = lifecycle.start_daemon(home, lifecycle.PATIENT_SECONDS, output.note)
    _print_running(pid, started=pid != before)


@daemon.command("stop", examples=["hyp daemon stop", "hyp daemon stop --timeout 600"])
@timeout_option
@force_option
@json_option
def stop(timeout: str, force: bool) -> None:
    """Stop the daemon and wait until it has stopped.

    Deliveries in progress are interrupted and resumed later; nothing is lost. All recorded rows are durable. If the
    engine is running, the daemon commits them to the lake before it stops; otherwise they stay in the spool until the
    next flush.
    """
    home = Home.from_environment()
    show_stopped(home, stopped=_stop(home, timeout, force))


@daemon.command("restart", examples=["hyp daemon restart"])
@timeout_option
@force_option
@json_option
def restart(timeout: str, force: bool) -> None:
    """Restart the daemon, for example after an upgrade. A changed config needs no restart."""
    from hypaware.daemon import lifecycle

    home = Home.from_environment()
    lifecycle.check_can_start(home)  # Do not stop a running daemon if a new one cannot start.
    _stop(home, timeout, force)
    _print_running(lifecycle.start_daemon(home, lifecycle.PATIENT_SECONDS, output.note), started=True)


@daemon.command("install", examples=["hyp daemon install", "hyp daemon install --dry-run"])
@click.option("--dry-run", is_flag=True, help="Print the service file without writing it.")
@json_option
def install(dry_run: bool) -> None:
    """Install the daemon as a systemd or launchd service and start it.

    The service starts with every login and restarts after a crash. Run this command again after an upgrade or after
    moving the home. If neither systemd nor launchd is available, it exits 3 and changes nothing.
    """
    from hypaware.daemon import lifecycle

    home = Home.from_environment()
    if dry_run:
        plan = lifecycle.plan_service(home)
        if plan.why_not:
            output.warn(f"the service cannot be installed: {plan.why_not}")
        words = {"new": "would be written", "replace": "would be replaced by", "none": "is up to date"}
        document = {"path": plan.path, "change": plan.change, "why_not": plan.why_not, "text": plan.text}
        if not output.emit_document({**document, "dry_run": True}):
            output.note(f"{plan.path} {words[plan.change]}:")
            output.emit(plan.text.rstrip("\n"))
        return
    pid = lifecycle.install_service(home, notify=output.note)
    found = lifecycle.find_installed_service(home)
    output.emit_result(
        {"pid": pid, "installed": service_json(found)},
        f"the daemon is running as process {pid} and starts with every login",
    )
    for hint in lifecycle.service_hints(home):
        output.note(hint)


@daemon.command("uninstall", examples=["hyp daemon uninstall"])
@json_option
def uninstall() -> None:
    """Stop the daemon and remove its service. Recorded data is kept."""
    from hypaware.daemon import lifecycle

    removed = lifecycle.uninstall_service(Home.from_environment(), notify=output.note)
    output.emit_result(
        {"uninstalled": removed},
        "the daemon is stopped and no longer installed" if removed else "the daemon was not installed",
    )


@daemon.command("status", examples=["hyp daemon status", "hyp daemon status --json"])
@json_option
def status() -> None:
    """Show whether the daemon is running, since when, and the next delivery of each sink.

    Exits 3 if it is not running.
    """
    from hypaware.daemon import lifecycle
    from hypaware.home import daemon_process

    home = Home.from_environment()
    pid, last_status = daemon_process.running_daemon(home), daemon_process.read_daemon_status(home)
    service = lifecycle.find_installed_service(home)
    if service is not None and not service.is_current:
        output.warn(f"{service.path} starts a different installation of HypAware; to replace it: hyp daemon install")
    if pid is not None and last_status.get("version") not in (None, __version__):
        version = last_status["version"]
        output.warn(f"the daemon runs version {version}, but {__version__} is installed: hyp daemon restart")
    if pid is None:
        # The daemon removes its status on a clean stop, so its presence means a crash.
        died = {key: last_status[key] for key in ("pid", "started_at") if key in last_status} or None
        how = f": process {died['pid']} was killed or ended with the machine" if died else ""
        if service is not None and (problem := lifecycle.service_failure(home)):
            how += f"; {service.kind} reports: {problem}"
        failure = output.PartialFailure(
            f"the daemon of {home.root} is not running{how}",
            {"state": "stopped", "died": died, "installed": service_json(service)},
            kind="daemon_not_running",
            repair="hyp daemon start",
        )
        failure.exit_code = 3
        raise failure
    report = {
        "state": "running",
        **(last_status if last_status.get("pid") == pid else {"pid": pid}),
        "started_by": lifecycle.started_by(home, pid),
        "installed": service_json(service),
    }
    if not output.emit_document(report):
        show_running(report)


def _print_running(pid: int, *, started: bool) -> None:
    output.emit_result(
        {"pid": pid, "started": started},
        f"the daemon is {'running' if started else 'already running'} as process {pid}",
    )


def _stop(home: Home, timeout: str, force: bool) -> bool:
    from hypaware.daemon import lifecycle

    return lifecycle.stop_daemon(
        home, parse_duration("--timeout", timeout, bare_seconds=True), force=force, notify=output.note
    )


def service_json(service: InstalledService | None) -> dict[str, Any] | None:
    if service is None:
        return None
    return {name: getattr(service, name) for name in ("kind", "name", "path", "command", "is_current")}


def show_stopped(home: Home, *, stopped: bool) -> None:
    from hypaware.engine import client
    from hypaware.status import storage

    left = storage.count_spooled(home)
    if output.emit_document({"stopped": stopped, "spool": {"rows": left.rows, "segments": left.segments}}):
        return
    output.emit("the daemon was stopped" if stopped else "no daemon was running")
    if left.rows:
        no_engine = client.engine_status(home)["state"] != "running"
        why = " because the engine is not running" if no_engine and stopped else ""
        verb = "is" if left.rows == 1 else "are"
        output.emit(
            f"{format_count(left.rows, 'row')} {verb} still in the spool{why}, safe on disk; "
            "to commit now: hyp flush (otherwise the daemon does it after its next start)"
        )


def show_running(report: dict[str, Any]) -> None:
    sinks, service, gateway = report.pop("sinks", {}), report.pop("installed"), report.pop("gateway", {})
    flush, maintenance, imports = report.pop("flush", {}), report.pop("maintain", {}), report.pop("catch_up", {})
    shown = {
        "installed": service["path"] if service else None,
        "gateway": _describe_address(gateway),
        "page": _describe_address(report.pop("page", {})),
        "last_exchange": gateway.get("last_exchange_at"),
        "last_flush": flush.get("last_flush"),
        "last_import": _last_run(imports),
        "last_maintenance": _last_run(maintenance),
        "next_maintenance": maintenance.get("next_look") or maintenance.get("waits"),
    }
    output.emit_fields({**report, **shown})
    if sinks:
        output.emit()
        output.emit_table(
            ["sink", "next delivery", "last delivery", "status"],
            [(name, each["next_round"], each["last_round"], each["last_status"]) for name, each in sinks.items()],
        )


def _describe_address(part: Mapping[str, Any]) -> str | None:
    state = part.get("state")
    if state == "listening":
        return f"listening on {part.get('listen')}"
    return f"{state}: {part['error']}" if part.get("error") else state


def _last_run(part: Mapping[str, str | None]) -> str | None:
    last = part.get("last_run")
    return f"{last} ({part.get('last_status')})" if last else None
