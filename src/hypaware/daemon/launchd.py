"""The daemon as a launchd agent: `~/Library/LaunchAgents/io.hypaware.daemon[.<home>].plist`.

launchd starts it at login and restarts it at least ten seconds after a failure, but not after a clean exit. Its stdout
and stderr go to the start log, like those of a daemon in the background.
"""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import time
from pathlib import Path

from hypaware.daemon import log_file, supervisor
from hypaware.home import Home

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.25
_PID = re.compile(r"^\s*pid = (\d+)$", re.MULTILINE)
_LAST_EXIT = re.compile(r"^\s*last exit code = ([1-9]\d*.*)$", re.MULTILINE)


class Launchd:
    kind = "launchd"

    def __init__(self, home: Home) -> None:
        self._home = home
        suffix = supervisor.service_suffix(home)
        self.name = f"io.hypaware.daemon.{suffix}" if suffix else "io.hypaware.daemon"
        self.path = Path.home() / "Library" / "LaunchAgents" / f"{self.name}.plist"
        self.log_command = f"tail -n 50 {shlex.quote(str(log_file.start_log_path(home)))}"
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{self.name}"

    def text(self) -> bytes:
        output = str(log_file.start_log_path(self._home))
        # An agent does not have the PATH of the user's shell, which finds Java and git.
        settings = {
            "HYP_HOME": str(self._home.root),
            "PATH": os.environ.get("PATH", ""),
            **supervisor.folder_variables(),
        }
        return plistlib.dumps(
            {
                "Label": self.name,
                "ProgramArguments": supervisor.hyp_command("daemon", "run", "--quiet"),
                "EnvironmentVariables": settings,
                "WorkingDirectory": "/",
                "Umask": 0o077,
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": 10,
                "ExitTimeOut": supervisor.KILL_AFTER_SECONDS,
                # The daemon starts the engine, which outlives it.
                "AbandonProcessGroup": True,
                "StandardOutPath": output,
                "StandardErrorPath": output,
            }
        )

    def parse_command(self, text: bytes) -> tuple[str, ...] | None:
        try:
            plist = plistlib.loads(text)
            command = tuple(plist["ProgramArguments"])
            is_ours = (plist["Label"], plist["EnvironmentVariables"]["HYP_HOME"]) == (self.name, str(self._home.root))
        except (plistlib.InvalidFileException, ValueError, KeyError, TypeError):
            return None
        return command if is_ours and "hypaware.cli" in command else None

    def unavailable_reason(self) -> str | None:
        done = supervisor.run_command("launchctl", "print", self._domain)
        return None if done.returncode == 0 else done.stderr.strip() or "launchctl does not answer"

    def enable(self) -> None:
        """Enable the agent. launchd loads it from its folder at each login."""
        supervisor.require_command("launchctl", "enable", self._service)

    def disable(self) -> None:
        self._call("bootout")

    def clean_up(self) -> None:
        """Do nothing: an agent that is not loaded leaves nothing behind."""

    def start(self) -> None:
        if self._call("print").returncode == 0:
            supervisor.require_command("launchctl", "kickstart", self._service)
            return
        # An agent that is still being unloaded cannot be loaded yet.
        for _ in range(_ATTEMPTS):
            if supervisor.run_command("launchctl", "bootstrap", self._domain, str(self.path)).returncode == 0:
                return
            time.sleep(_PAUSE_SECONDS)
        supervisor.require_command("launchctl", "bootstrap", self._domain, str(self.path))

    def stop(self) -> None:
        """Unload the agent. An "operation in progress" answer is not a failure."""
        self._call("bootout")

    def pid(self) -> int | None:
        match = _PID.search(self._call("print").stdout)
        return int(match[1]) if match else None

    def failure(self) -> str | None:
        description = self._call("print").stdout
        match = _LAST_EXIT.search(description)
        if match is None or _PID.search(description):
            return None
        return f"exit code {match[1]}\n{log_file.read_tail(log_file.start_log_path(self._home))}".strip()

    def _call(self, verb: str) -> supervisor.CommandResult:
        return supervisor.run_command("launchctl", verb, self._service)
