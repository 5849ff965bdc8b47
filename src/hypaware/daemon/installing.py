"""Installs the daemon as a service of the user: one file for the supervisor, which then starts it with each login.

The file names the interpreter and the home, and holds no secret. It is replaced in one step, only where it is our own;
nothing else is written. Everything may be done again: what is so already stays as it is.
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

before_write = faults.point("daemon.install.before-write", "the service's file is not there yet, or still the old one")
after_write = faults.point("daemon.install.after-write", "the service's file is there; the supervisor was not told yet")
before_remove = faults.point("daemon.uninstall.before-remove", "the service is off and stopped; its file is there")
after_remove = faults.point("daemon.uninstall.after-remove", "the service's file is gone; the supervisor was not told")


@dataclass(frozen=True)
class Installed:
    kind: str
    """`systemd` or `launchd`."""
    name: str
    path: Path
    command: tuple[str, ...]
    is_current: bool
    """False when it starts another installation than this one, or one that is gone: install it again."""


@dataclass(frozen=True)
class Plan:
    """What an installation would write, and whether it could."""

    path: Path
    text: str
    change: str
    """`new`, `replace` or `none`."""
    why_not: str | None


def installed(home: Home) -> Installed | None:
    """Reads one file, and asks nobody."""
    found = supervisor.of_this_machine(home)
    text = supervisor.text_of(found)
    if text is None or (command := found.command_in(text)) is None:
        return None
    return Installed(found.kind, found.name, found.path, command, command_line.is_ours(command))


def plan(home: Home) -> Plan:
    """Raises where the file there is somebody else's."""
    found = supervisor.of_this_machine(home)
    before, text = _ours(found), found.text()
    change = "none" if before == text else "replace" if before else "new"
    return Plan(found.path, text.decode(errors="replace"), change, found.why_not())


def install(home: Home, tell: Tell = unheard) -> int:
    """Installed, and running under the supervisor: the daemon's pid. Raises NotReady where none answers."""
    found = supervisor.of_this_machine(home)
    before, text = _ours(found), found.text()
    if (why := found.why_not()) is not None:
        raise NotReady(
            f"the daemon cannot be installed here: {why}. Nothing was written. It can be started by hand, or by cron "
            f"with this line:\n{cron_line(home)}",
            kind="no_supervisor",
            repair="hyp daemon start",
        )
    starting.check(home)
    durable.make_dir(home.logs)
    if before != text:
        durable.make_dir(found.path.parent)
        before_write()
        durable.write_file(found.path, text)
        after_write()
    found.enable()
    running = found.pid()
    if running is None or running != starting.ready(home) or _is_older(home, found.path):
        stopping.stop(home, tell=tell)
    return starting.start(home, starting.PATIENT_SECONDS, tell)


def uninstall(home: Home, tell: Tell = unheard) -> bool:
    """Stopped, and no longer started by anybody. False when it was not installed."""
    found = supervisor.of_this_machine(home)
    if _ours(found) is None:
        return False
    stopping.stop(home, tell=tell)
    if found.why_not() is None:
        found.disable()
    before_remove()
    durable.remove(found.path)
    after_remove()
    found.forget()
    return True


def started_by(home: Home, pid: int) -> str:
    """Who has started the daemon that runs: `systemd`, `launchd` or `hand`."""
    through = supervisor.in_charge(home, unheard)
    return through.kind if through is not None and through.pid() == pid else "hand"


def trouble(home: Home) -> str | None:
    """What its supervisor knows of a daemon that died; None if it knows nothing, or there is none."""
    through = supervisor.in_charge(home, unheard)
    return through.trouble() if through is not None else None


def hints(home: Home) -> list[str]:
    """What the user should know of a daemon that runs as a service, and may not expect."""
    found = []
    if supervisor.of_this_machine(home).kind == "systemd" and systemd.lingers() is False:
        found.append("it ends when you log out; `loginctl enable-linger` lets it run from the machine's start on")
    variables = sorted(
        str(value)
        for sink in configuration.load(home).sinks.values()
        for key, value in sink.options.items()
        if key.endswith("_env") and value
    )
    if variables:
        found.append(
            f"a service does not see the variables of your shell: the sinks want {', '.join(variables)}. "
            "Name a file in the config instead"
        )
    return found


def cron_line(home: Home) -> str:
    line = f"HYP_HOME={shlex.quote(str(home.root))} {shlex.join(command_line.hyp('daemon', 'start'))}"
    return "@reboot " + line.replace("%", "\\%")  # a bare % ends a command of cron


def _is_older(home: Home, path: Path) -> bool:
    """Whether the daemon that runs was started by what the file held before."""
    began = condition.read(home).get("started_at")
    return began is None or datetime.fromisoformat(began).timestamp() < path.stat().st_mtime


def _ours(found: Supervisor) -> bytes | None:
    """What the file holds; None if there is none. One that we did not write, for this home, is left alone."""
    text = supervisor.text_of(found)
    if text is not None and found.command_in(text) is None:
        raise HypError(
            f"{found.path} was not written by `hyp daemon install` for this home, so it is left alone: move it away",
            kind="service_not_ours",
        )
    return text
