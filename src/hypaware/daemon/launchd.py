"""The daemon as an agent of launchd: `~/Library/LaunchAgents/io.hypaware.daemon[.<home>].plist`.

Started with the login, and again at least ten seconds after it failed; not after it ended in peace. What it says
outside its log goes to the same file as that of one in the background.
"""

from __future__ import annotations

import os
import plistlib
import re
import shlex
import time
from pathlib import Path

from hypaware.daemon import command_line, detached, supervisor
from hypaware.home import Home

_ATTEMPTS = 20
_PAUSE_SECONDS = 0.25
_PID = re.compile(r"^\s*pid = (\d+)$", re.MULTILINE)
_LAST_EXIT = re.compile(r"^\s*last exit code = ([1-9]\d*.*)$", re.MULTILINE)


class Launchd:
    kind = "launchd"

    def __init__(self, home: Home) -> None:
        self._home = home
        suffix = supervisor.suffix(home)
        self.name = f"io.hypaware.daemon.{suffix}" if suffix else "io.hypaware.daemon"
        self.path = Path.home() / "Library" / "LaunchAgents" / f"{self.name}.plist"
        self.look = f"tail -n 50 {shlex.quote(str(detached.start_log(home)))}"
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{self.name}"

    def text(self) -> bytes:
        said = str(detached.start_log(self._home))
        # Java and git are found by PATH, and that of an agent is not that of a shell.
        settings = {"HYP_HOME": str(self._home.root), "PATH": os.environ.get("PATH", ""), **command_line.folders()}
        return plistlib.dumps(
            {
                "Label": self.name,
                "ProgramArguments": command_line.hyp("daemon", "run", "--quiet"),
                "EnvironmentVariables": settings,
                "WorkingDirectory": "/",
                "Umask": 0o077,
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": 10,
                "ExitTimeOut": supervisor.STOP_SECONDS,
                # The engine is started by the daemon and outlives it.
                "AbandonProcessGroup": True,
                "StandardOutPath": said,
                "StandardErrorPath": said,
            }
        )

    def command_in(self, text: bytes) -> tuple[str, ...] | None:
        try:
            found = plistlib.loads(text)
            command = tuple(found["ProgramArguments"])
            ours = (found["Label"], found["EnvironmentVariables"]["HYP_HOME"]) == (self.name, str(self._home.root))
        except (plistlib.InvalidFileException, ValueError, KeyError, TypeError):
            return None
        return command if ours and "hypaware.cli" in command else None

    def why_not(self) -> str | None:
        done = supervisor.ask("launchctl", "print", self._domain)
        return None if done.returncode == 0 else done.stderr.strip() or "launchctl does not answer"

    def enable(self) -> None:
        """Agents are taken from their folder at each login."""
        supervisor.tell("launchctl", "enable", self._service)

    def disable(self) -> None:
        self._ask("bootout")

    def forget(self) -> None:
        """Nothing is left of one that is not loaded."""

    def start(self) -> None:
        if self._ask("print").returncode == 0:
            supervisor.tell("launchctl", "kickstart", self._service)
            return
        # One that is just going away cannot be loaded yet.
        for _ in range(_ATTEMPTS):
            if supervisor.ask("launchctl", "bootstrap", self._domain, str(self.path)).returncode == 0:
                return
            time.sleep(_PAUSE_SECONDS)
        supervisor.tell("launchctl", "bootstrap", self._domain, str(self.path))

    def stop(self) -> None:
        """It may answer that this is under way, which is no failure."""
        self._ask("bootout")

    def pid(self) -> int | None:
        found = _PID.search(self._ask("print").stdout)
        return int(found[1]) if found else None

    def trouble(self) -> str | None:
        said = self._ask("print").stdout
        found = _LAST_EXIT.search(said)
        if found is None or _PID.search(said):
            return None
        return f"exit code {found[1]}\n{detached.last_words(self._home)}".strip()

    def _ask(self, verb: str) -> supervisor.Answer:
        return supervisor.ask("launchctl", verb, self._service)
