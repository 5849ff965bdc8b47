"""Install the daemon as a user service: one service file, with which systemd or launchd starts it at login.

The file names the interpreter and the home and holds no secret. It is replaced atomically, and only if `hyp daemon
install` wrote it for this home; nothing else is written. Installing and uninstalling are idempotent.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hypaware import config as configuration
from hypaware import faults
from hypaware.daemon import lifecycle, supervisor
from hypaware.daemon.supervisor import Notify, Supervisor, ignore_notice
from hypaware.errors import HypError, NotReady
from hypaware.home import Home, daemon_process, durable_files

_before_write = faults.crash_point(
    "daemon.install.before-write", "the service file does not exist yet, or is the old one"
)
_after_write = faults.crash_point(
    "daemon.install.after-write", "the service file is written; the supervisor has not read it"
)
_before_remove = faults.crash_point(
    "daemon.uninstall.before-remove", "the service is disabled and stopped; its file exists"
)
_after_remove = faults.crash_point(
    "daemon.uninstall.after-remove", "the service file is removed; the supervisor has not noticed"
)


@dataclass(frozen=True)
class InstalledService:
    kind: str
    """`systemd` or `launchd`."""
    name: str
    path: Path
    command: tuple[str, ...]
    is_current: bool
    """False if the service starts another installation, or one that no longer exists: install it again."""


@dataclass(frozen=True)
class ServicePlan:
    """What `install` would write, and why it could not."""

    path: Path
    text: str
    change: str
    """`new`, `replace` or `none`."""
    why_not: str | None


def find_installed_service(home: Home) -> InstalledService | None:
    """Return the installed service, read from its file alone; the supervisor is not called."""
    service = lifecycle.find_supervisor(home)
    text = lifecycle.read_service_file(service)
    if text is None or (command := service.parse_command(text)) is None:
        return None
    return InstalledService(service.kind, service.name, service.path, command, supervisor.is_current_command(command))


def plan_service(home: Home) -> ServicePlan:
    """Return what `install` would write. Raise HypError if the existing file is not this home's."""
    service = lifecycle.find_supervisor(home)
    before, text = _own_file(service), service.text()
    change = "none" if before == text else "replace" if before else "new"
    return ServicePlan(service.path, text.decode(errors="replace"), change, service.unavailable_reason())


def install_service(home: Home, notify: Notify = ignore_notice) -> int:
    """Install and start the service, and return the daemon's pid. Raise NotReady if there is no working supervisor."""
    service = lifecycle.find_supervisor(home)
    before, text = _own_file(service), service.text()
    if (why := service.unavailable_reason()) is not None:
        raise NotReady(
            f"cannot install the daemon here: {why}. Nothing was written. Start it by hand, or add this line to your "
            f"crontab:\n{cron_line(home)}",
            kind="no_supervisor",
            repair="hyp daemon start",
        )
    lifecycle.check_can_start(home)
    durable_files.make_dir(home.logs)
    if before != text:
        durable_files.make_dir(service.path.parent)
        _before_write()
        durable_files.write_atomic(service.path, text)
        _after_write()
    service.enable()
    running = service.pid()
    if running is None or running != lifecycle.ready_pid(home) or _is_older(home, service.path):
        lifecycle.stop_daemon(home, notify=notify)
    return lifecycle.start_daemon(home, lifecycle.PATIENT_SECONDS, notify)


def uninstall_service(home: Home, notify: Notify = ignore_notice) -> bool:
    """Stop the daemon and remove its service. Return False if it was not installed."""
    service = lifecycle.find_supervisor(home)
    if _own_file(service) is None:
        return False
    lifecycle.stop_daemon(home, notify=notify)
    if service.unavailable_reason() is None:
        service.disable()
    _before_remove()
    durable_files.remove_durably(service.path)
    _after_remove()
    service.clean_up()
    return True


def started_by(home: Home, pid: int) -> str:
    """Return what started the running daemon: `systemd`, `launchd` or `hand`."""
    service = lifecycle.find_installed_supervisor(home, ignore_notice)
    return service.kind if service is not None and service.pid() == pid else "hand"


def service_failure(home: Home) -> str | None:
    """Return what the supervisor reports about a daemon that failed, or None."""
    service = lifecycle.find_installed_supervisor(home, ignore_notice)
    return service.failure() if service is not None else None


def service_hints(home: Home) -> list[str]:
    """Return what a user may not expect of a daemon that runs as a service."""
    messages = []
    if lifecycle.find_supervisor(home).kind == "systemd" and supervisor.is_lingering() is False:
        messages.append("the daemon ends when you log out; run `loginctl enable-linger` to keep it running")
    variables = sorted(
        str(value)
        for sink in configuration.load(home).sinks.values()
        for key, value in sink.options.items()
        if key.endswith("_env") and value
    )
    if variables:
        messages.append(
            f"a service does not see the variables of your shell, and the sinks need {', '.join(variables)}; "
            "name a file in the config instead"
        )
    return messages


def cron_line(home: Home) -> str:
    line = f"HYP_HOME={shlex.quote(str(home.root))} {shlex.join(supervisor.hyp_command('daemon', 'start'))}"
    return "@reboot " + line.replace("%", "\\%")  # cron treats a bare % as the end of the command


def _is_older(home: Home, path: Path) -> bool:
    """Return whether the running daemon was started before the service file was last written."""
    started_at = daemon_process.read_daemon_status(home).get("started_at")
    return started_at is None or datetime.fromisoformat(started_at).timestamp() < path.stat().st_mtime


def _own_file(service: Supervisor) -> bytes | None:
    """Return the contents of the service file, or None. Raise HypError if we did not write it for this home."""
    text = lifecycle.read_service_file(service)
    if text is not None and service.parse_command(text) is None:
        raise HypError(
            f"{service.path} was not written by `hyp daemon install` for this home; move it away, then install again",
            kind="service_not_ours",
        )
    return text
