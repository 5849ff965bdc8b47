"""The daemon as a service of the user's systemd: `~/.config/systemd/user/hypaware[-<home>].service`.

The daemon starts the engine, which outlives it. So a stop signals only the daemon (`KillMode=process`), and an engine
that runs out of memory does not take the daemon down (`OOMPolicy=continue`). systemd restarts a daemon that fails:
version 254 and later wait longer each time, older versions give up after 20 failures in ten minutes.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from hypaware.daemon import supervisor
from hypaware.home import Home

_HEADER = "# Written by `hyp daemon install`, removed by `hyp daemon uninstall`."
# The exit code of `systemctl stop` for a unit that is not loaded, and so does not run.
_NOT_LOADED = 5
_UNIT = """\
{mark}
# To change settings, run: systemctl --user edit {name}

[Unit]
Description=HypAware daemon of {home}
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
        suffix = supervisor.service_suffix(home)
        self.name = f"hypaware-{suffix}.service" if suffix else "hypaware.service"
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        self.path = Path(config).absolute() / "systemd" / "user" / self.name
        self.log_command = f"journalctl --user -u {self.name} -n 50"

    def text(self) -> bytes:
        # A service does not have the PATH of the user's shell, which finds Java and git.
        settings = {
            "HYP_HOME": str(self._home.root),
            "PATH": os.environ.get("PATH", ""),
            **supervisor.folder_variables(),
        }
        unit = _UNIT.format(
            mark=_HEADER,
            name=self.name,
            home=" ".join(str(self._home.root).split("\n")).replace("%", "%%"),
            command=" ".join(_quote(word).replace("$", "$$") for word in supervisor.hyp_command("daemon", "run")),
            environment="\n".join(f"Environment={_quote(f'{key}={value}')}" for key, value in settings.items()),
            stop_seconds=supervisor.KILL_AFTER_SECONDS,
        )
        return unit.encode(errors="surrogateescape")

    def parse_command(self, text: bytes) -> tuple[str, ...] | None:
        lines = text.decode(errors="surrogateescape").splitlines()
        if _HEADER not in lines or f"Environment={_quote(f'HYP_HOME={self._home.root}')}" not in lines:
            return None
        for line in lines:
            if line.startswith("ExecStart="):
                words = shlex.split(line.removeprefix("ExecStart="))
                return tuple(word.replace("$$", "$").replace("%%", "%") for word in words)
        return ()

    def unavailable_reason(self) -> str | None:
        done = self._call("show", "--property=UnitPath")
        if done.returncode:
            return done.stderr.strip() or "systemctl --user does not answer"
        # systemd has its own XDG_CONFIG_HOME, which may differ from the shell's.
        folder = str(self.path.parent)
        return None if folder in done.stdout else f"systemd does not look for units in {folder}"

    def enable(self) -> None:
        self._require("daemon-reload")
        self._require("enable", self.name)

    def disable(self) -> None:
        self._require("disable", self.name)

    def clean_up(self) -> None:
        (self.path.parent / "default.target.wants" / self.name).unlink(missing_ok=True)
        self._call("daemon-reload")
        self._call("reset-failed", self.name)

    def start(self) -> None:
        if self._show("LoadState") != "loaded" or self._show("NeedDaemonReload") == "yes":
            self._require("daemon-reload")
        # systemd does not start a unit that failed too often before its failure count is reset.
        self._call("reset-failed", self.name)
        self._require("start", self.name)

    def stop(self) -> None:
        done = self._call("stop", "--no-block", self.name)
        if done.returncode not in (0, _NOT_LOADED):
            self._require("stop", "--no-block", self.name)

    def pid(self) -> int | None:
        return int(self._show("MainPID") or 0) or None

    def failure(self) -> str | None:
        if self._show("ActiveState") != "failed" and self._show("SubState") != "auto-restart":
            return None
        journal = supervisor.run_command("journalctl", "--user", "-u", self.name, "-n", "20", "--no-pager", "-o", "cat")
        return f"{self._show('Result')}, {self._show('ExecMainStatus')}\n{journal.stdout.strip()}".strip()

    def _show(self, name: str) -> str:
        return self._call("show", f"--property={name}", "--value", self.name).stdout.strip()

    def _call(self, *args: str) -> supervisor.CommandResult:
        return supervisor.run_command("systemctl", "--user", *args)

    def _require(self, *args: str) -> None:
        supervisor.require_command("systemctl", "--user", *args)


def is_lingering() -> bool | None:
    """Return whether the user's services run without a login, or None if that is unknown."""
    done = supervisor.run_command("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value")
    return done.stdout.strip() == "yes" if done.returncode == 0 else None


def _quote(text: str) -> str:
    """Quote one word for a unit file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{escaped}"'
