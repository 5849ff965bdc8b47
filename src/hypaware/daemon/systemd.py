"""The daemon as a service of the user's systemd: `~/.config/systemd/user/hypaware[-<home>].service`.

The engine is started by the daemon and outlives it, so only the daemon itself is signalled on a stop, and an engine
that ran out of memory takes nobody along. A daemon that fails is started again, after a longer pause each time where
systemd knows how (254 on); an older one gives up after twenty times in ten minutes.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hypaware.daemon import command_line, supervisor
from hypaware.home import Home

_MARK = "# Written by `hyp daemon install`, removed by `hyp daemon uninstall`."

# What `systemctl stop` says of a unit that it does not know yet, and so does not run.
_NOT_LOADED = 5

_UNIT = """\
{mark}
# Settings of your own belong beside it: systemctl --user edit {name}

[Unit]
Description=HypAware collector of {home}
StartLimitIntervalSec=600
StartLimitBurst=20

[Service]
Type=exec
ExecStart={command}
{environment}
WorkingDirectory=/
UMask=0077
Restart=on-failure
RestartSec=5
RestartSteps=8
RestartMaxDelaySec=300
TimeoutStopSec={stop_seconds}
KillMode=process
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


class Systemd:
    kind = "systemd"

    def __init__(self, home: Home) -> None:
        self._home = home
        suffix = supervisor.suffix(home)
        self.name = f"hypaware-{suffix}.service" if suffix else "hypaware.service"
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        self.path = Path(config).absolute() / "systemd" / "user" / self.name
        self.look = f"journalctl --user -u {self.name} -n 50"

    def text(self) -> bytes:
        # Java and git are found by PATH, and that of a service is not that of a shell.
        settings = {"HYP_HOME": str(self._home.root), "PATH": os.environ.get("PATH", ""), **command_line.folders()}
        unit = _UNIT.format(
            mark=_MARK,
            name=self.name,
            home=" ".join(str(self._home.root).split("\n")).replace("%", "%%"),
            command=" ".join(_quoted(word).replace("$", "$$") for word in command_line.hyp("daemon", "run")),
            environment="\n".join(f"Environment={_quoted(f'{key}={value}')}" for key, value in settings.items()),
            stop_seconds=supervisor.STOP_SECONDS,
        )
        return unit.encode(errors="surrogateescape")

    def command_in(self, text: bytes) -> tuple[str, ...] | None:
        lines = text.decode(errors="surrogateescape").splitlines()
        if _MARK not in lines or f"Environment={_quoted(f'HYP_HOME={self._home.root}')}" not in lines:
            return None
        for line in lines:
            if line.startswith("ExecStart="):
                words = shlex.split(line.removeprefix("ExecStart="))
                return tuple(word.replace("$$", "$").replace("%%", "%") for word in words)
        return ()

    def why_not(self) -> str | None:
        done = self._ask("show", "--property=UnitPath")
        if done.returncode:
            return done.stderr.strip() or "systemctl --user does not answer"
        # It has its own XDG_CONFIG_HOME, not that of the shell.
        folder = str(self.path.parent)
        return None if folder in done.stdout else f"systemd does not look for units in {folder}"

    def enable(self) -> None:
        self._tell("daemon-reload")
        self._tell("enable", self.name)

    def disable(self) -> None:
        self._tell("disable", self.name)

    def forget(self) -> None:
        (self.path.parent / "default.target.wants" / self.name).unlink(missing_ok=True)
        self._ask("daemon-reload")
        self._ask("reset-failed", self.name)

    def start(self) -> None:
        if self._show("LoadState") != "loaded" or self._show("NeedDaemonReload") == "yes":
            self._tell("daemon-reload")
        # One that failed too often is not started before it was forgiven.
        self._ask("reset-failed", self.name)
        self._tell("start", self.name)

    def stop(self) -> None:
        done = self._ask("stop", "--no-block", self.name)
        if done.returncode not in (0, _NOT_LOADED):
            self._tell("stop", "--no-block", self.name)

    def pid(self) -> int | None:
        return int(self._show("MainPID") or 0) or None

    def trouble(self) -> str | None:
        if self._show("ActiveState") != "failed" and self._show("SubState") != "auto-restart":
            return None
        said = supervisor.ask("journalctl", "--user", "-u", self.name, "-n", "20", "--no-pager", "-o", "cat")
        return f"{self._show('Result')}, {self._show('ExecMainStatus')}\n{said.stdout.strip()}".strip()

    def _show(self, name: str) -> str:
        return self._ask("show", f"--property={name}", "--value", self.name).stdout.strip()

    def _ask(self, *args: str) -> supervisor.Answer:
        return supervisor.ask("systemctl", "--user", *args)

    def _tell(self, *args: str) -> None:
        supervisor.tell("systemctl", "--user", *args)


def lingers() -> bool | None:
    """Whether the user's services run without a login; None where nobody can tell."""
    done = supervisor.ask("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value")
    return done.stdout.strip() == "yes" if done.returncode == 0 else None


def _quoted(text: str) -> str:
    """One word of a unit file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{escaped}"'
