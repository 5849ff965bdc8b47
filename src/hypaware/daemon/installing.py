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
from hypaware import durable, faults
from hypaware.daemon import command_line, condition, starting, stopping, supervisor, systemd
from hypaware.daemon.supervisor import Supervisor, Tell, unheard
from hypaware.errors import HypError, NotReady
from hypaware.home import Home

before_write = faults.point("daemon.install.before-write", "the service file does not exist yet, or is the old one")
after_write = faults.point("daemon.install.after-write", "the service file is written; the supervisor has not read it")
before_remove = faults.point("daemon.uninstall.before-remove", "the service is disabled and stopped; its file exists")
after_remove = faults.point(
    "daemon.uninstall.after-remove", "the service file is removed; the supervisor has not noticed"
)


@dataclass(frozen=True)
class Installed:
    kind: str
    """`systemd` or `launchd`."""
    name: str
    path: Path
    command: tuple[str, ...]
    is_current: bool
    """False if the service starts another installation, or one that no longer exists: install it again."""


@dataclass(frozen=True)
class Plan:
    """What `install` would write, and why it could not."""

    path: Path
    text: str
    change: str
    """`new`, `replace` or `none`."""
    why_not: str | None


def installed(home: Home) -> Installed | None:
    """Return the installed service, read from its file alone; the supervisor is not called."""
    service = supervisor.of_this_machine(home)
    text = supervisor.text_of(service)
    if text is None or (command := service.parse_command(text)) is None:
        return None
    return Installed(service.kind, service.name, service.path, command, command_line.is_ours(command))


def plan(home: Home) -> Plan:
    """Return what `install` would write. Raise HypError if the existing file is not this home's."""
    service = supervisor.of_this_machine(home)
    before, text = _own_file(service), service.text()
    change = "none" if before == text else "replace" if before else "new"
    return Plan(service.path, text.decode(errors="replace"), change, service.unavailable_reason())


def install(home: Home, notify: Tell = unheard) -> int:
    """Install and start the service, and return the daemon's pid. Raise NotReady if there is no working supervisor."""
    service = supervisor.of_this_machine(home)
    before, text = _own_file(service), service.text()
    if (why := service.unavailable_reason()) is not None:
        raise NotReady(
            f"cannot install the daemon here: {why}. Nothing was written. Start it by hand, or add this line to your "
            f"crontab:\n{cron_line(home)}",
            kind="no_supervisor",
            repair="hyp daemon start",
        )
    starting.check(home)
    durable.make_dir(home.logs)
    if before != text:
        durable.make_dir(service.path.parent)
        before_write()
        durable.write_file(service.path, text)
        after_write()
    service.enable()
    running = service.pid()
    if running is None or running != starting.ready(home) or _is_older(home, service.path):
        stopping.stop(home, notify=notify)
    return starting.start(home, starting.PATIENT_SECONDS, notify)


def uninstall(home: Home, notify: Tell = unheard) -> bool:
    """Stop the daemon and remove its service. Return False if it was not installed."""
    service = supervisor.of_this_machine(home)
    if _own_file(service) is None:
        return False
    stopping.stop(home, notify=notify)
    if service.unavailable_reason() is None:
        service.disable()
    before_remove()
    durable.remove(service.path)
    after_remove()
    service.clean_up()
    return True


def started_by(home: Home, pid: int) -> str:
    """Return what started the running daemon: `systemd`, `launchd` or `hand`."""
    service = supervisor.in_charge(home, unheard)
    return service.kind if service is not None and service.pid() == pid else "hand"


def trouble(home: Home) -> str | None:
    """Return what the supervisor reports about a daemon that failed, or None."""
    service = supervisor.in_charge(home, unheard)
    return service.failure() if service is not None else None


def hints(home: Home) -> list[str]:
    """Return what a user may not expect of a daemon that runs as a service."""
    messages = []
    if supervisor.of_this_machine(home).kind == "systemd" and systemd.lingers() is False:
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
    line = f"HYP_HOME={shlex.quote(str(home.root))} {shlex.join(command_line.hyp('daemon', 'start'))}"
    return "@reboot " + line.replace("%", "\\%")  # cron treats a bare % as the end of the command


def _is_older(home: Home, path: Path) -> bool:
    """Return whether the running daemon was started before the service file was last written."""
    started_at = condition.read(home).get("started_at")
    return started_at is None or datetime.fromisoformat(started_at).timestamp() < path.stat().st_mtime


def _own_file(service: Supervisor) -> bytes | None:
    """Return the contents of the service file, or None. Raise HypError if we did not write it for this home."""
    text = supervisor.text_of(service)
    if text is not None and service.parse_command(text) is None:
        raise HypError(
            f"{service.path} was not written by `hyp daemon install` for this home; move it away, then install again",
            kind="service_not_ours",
        )
    return text
