"""Supervisors start the daemon at login and restart it when it fails: systemd or launchd, with the same methods.

A supervisor has one service file per home and is controlled through its own command. If that command does not work, as
in a container or after a bare `su`, the supervisor is treated as absent.

The command that starts the daemon names the current interpreter by its path, so that it does not depend on PATH, a
symbolic link or the working directory.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hypaware import plugins
from hypaware.clients.client import Client
from hypaware.daemon import log_file
from hypaware.errors import Retryable
from hypaware.home import Home

Notify = Callable[[str], None]
CommandResult = subprocess.CompletedProcess[str]

# How long a supervisor waits for the daemon to end before it kills it; a clean stop takes less.
KILL_AFTER_SECONDS = 120
_CALL_SECONDS = 60.0
# Variables of a terminal or shell: wrong in a process that outlives both.
_TERMINAL_VARIABLES = frozenset(
    (
        *("TERM", "COLORTERM", "COLUMNS", "LINES", "WINDOWID", "VTE_VERSION", "TMUX", "TMUX_PANE", "STY"),
        *("SSH_TTY", "SSH_CLIENT", "SSH_CONNECTION", "SHLVL", "PWD", "OLDPWD", "_", "_HYP_COMPLETE"),
    )
)
_TERMINAL_PREFIXES = ("TERM_", "ITERM_", "KITTY_", "WEZTERM_")
# Variables that name folders. They are made absolute, because the daemon has another working directory.
_FOLDER_VARIABLES = ("HYP_CACHE", "JAVA_HOME")
_ATTEMPTS = 20
_PAUSE_SECONDS = 0.25
_PID = re.compile(r"^\s*pid = (\d+)$", re.MULTILINE)
_LAST_EXIT = re.compile(r"^\s*last exit code = ([1-9]\d*.*)$", re.MULTILINE)
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


def ignore_notice(_: str) -> None:
    pass


def service_suffix(home: Home) -> str:
    """Return a suffix that distinguishes the service files of several homes; empty for the default home."""
    if home.root == (Path.home() / ".hyp").resolve():
        return ""
    return hashlib.sha256(os.fsencode(home.root)).hexdigest()[:8]


def run_command(*command: str, check: bool = False) -> CommandResult:
    """Run a command in the C locale. A missing command or a timeout counts as a failed command.

    With `check`, a failed command raises Retryable.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError:
        done = subprocess.CompletedProcess(command, 127, "", f"{command[0]} is not installed")
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"{command[0]} does not answer")
    if check and done.returncode:
        reason = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise Retryable(f"`{' '.join(command)}` failed: {reason}", kind="supervisor_failed")
    return done


def hyp_command(*args: str) -> list[str]:
    """Return a `hyp` command line with this interpreter and this installation."""
    return [sys.executable, "-P", "-m", "hypaware.cli", *args]


def is_current_command(command: Sequence[str]) -> bool:
    """Return whether the command runs this program with this interpreter, under any of the interpreter's names."""
    expected = hyp_command()
    there, here = Path(command[0]) if command else Path(), Path(expected[0])
    try:
        return list(command[1:4]) == expected[1:] and there.parent == here.parent and there.samefile(here)
    except OSError:
        return False


def background_environment(home: Home) -> dict[str, str]:
    """Return this process's environment without the variables that belong to its terminal."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _TERMINAL_VARIABLES and not name.startswith(_TERMINAL_PREFIXES)
    }
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(_absolute(part) for part in path.split(os.pathsep) if part)
    return {**kept, **folder_variables(), "HYP_HOME": str(home.root)}


def folder_variables() -> dict[str, str]:
    """Return the variables that name folders and are set, as absolute paths: ours, Java's and those of the clients."""
    return {name: _absolute(value) for name in list_folder_variables() if (value := os.environ.get(name))}


def list_folder_variables() -> tuple[str, ...]:
    clients = (each.backfill for each in plugins.load_plugins(plugins.CLIENTS, Client) if each.backfill is not None)
    named = (name for provider in clients for name in provider.environment if name not in ("HOME", "HYP_HOME"))
    return tuple(dict.fromkeys((*_FOLDER_VARIABLES, *named)))


def service_variables(home: Home) -> dict[str, str]:
    """Return the variables of a service. It does not have the PATH of the user's shell, which finds Java and git."""
    return {"HYP_HOME": str(home.root), "PATH": os.environ.get("PATH", ""), **folder_variables()}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


class Launchd:
    """The daemon as a launchd agent: `~/Library/LaunchAgents/io.hypaware.daemon[.<home>].plist`.

    launchd starts it at login and restarts it at least ten seconds after a failure, but not after a clean exit. Its
    stdout and stderr go to the start log, like those of a daemon in the background.
    """

    kind = "launchd"

    def __init__(self, home: Home) -> None:
        self._home = home
        suffix = service_suffix(home)
        self.name = f"io.hypaware.daemon.{suffix}" if suffix else "io.hypaware.daemon"
        self.path = Path.home() / "Library" / "LaunchAgents" / f"{self.name}.plist"
        self.log_command = f"tail -n 50 {shlex.quote(str(log_file.start_log_path(home)))}"
        self._domain = f"gui/{os.getuid()}"
        self._service = f"{self._domain}/{self.name}"

    def text(self) -> bytes:
        output = str(log_file.start_log_path(self._home))
        return plistlib.dumps(
            {
                "Label": self.name,
                "ProgramArguments": hyp_command("daemon", "run", "--quiet"),
                "EnvironmentVariables": service_variables(self._home),
                "WorkingDirectory": "/",
                "Umask": 0o077,
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": 10,
                "ExitTimeOut": KILL_AFTER_SECONDS,
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
        done = run_command("launchctl", "print", self._domain)
        return None if done.returncode == 0 else done.stderr.strip() or "launchctl does not answer"

    def enable(self) -> None:
        """Enable the agent. launchd loads it from its folder at each login."""
        run_command("launchctl", "enable", self._service, check=True)

    def disable(self) -> None:
        self.stop()

    def clean_up(self) -> None:
        """Do nothing: an agent that is not loaded leaves nothing behind."""

    def start(self) -> None:
        if self._call("print").returncode == 0:
            run_command("launchctl", "kickstart", self._service, check=True)
            return
        # An agent that is still being unloaded cannot be loaded yet.
        for _ in range(_ATTEMPTS):
            if run_command("launchctl", "bootstrap", self._domain, str(self.path)).returncode == 0:
                return
            time.sleep(_PAUSE_SECONDS)
        run_command("launchctl", "bootstrap", self._domain, str(self.path), check=True)

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

    def _call(self, verb: str) -> CommandResult:
        return run_command("launchctl", verb, self._service)


class Systemd:
    """The daemon as a service of the user's systemd: `~/.config/systemd/user/hypaware[-<home>].service`.

    The daemon starts the engine, which outlives it. So a stop signals only the daemon (`KillMode=process`), and an
    engine that runs out of memory does not take the daemon down (`OOMPolicy=continue`). systemd restarts a daemon that
    fails: version 254 and later wait longer each time, older versions give up after 20 failures in ten minutes.
    """

    kind = "systemd"

    def __init__(self, home: Home) -> None:
        self._home = home
        suffix = service_suffix(home)
        self.name = f"hypaware-{suffix}.service" if suffix else "hypaware.service"
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        self.path = Path(config).absolute() / "systemd" / "user" / self.name
        self.log_command = f"journalctl --user -u {self.name} -n 50"

    def text(self) -> bytes:
        variables = service_variables(self._home)
        unit = _UNIT.format(
            mark=_HEADER,
            name=self.name,
            home=" ".join(str(self._home.root).split("\n")).replace("%", "%%"),
            command=" ".join(_quote(word).replace("$", "$$") for word in hyp_command("daemon", "run")),
            environment="\n".join(f"Environment={_quote(f'{key}={value}')}" for key, value in variables.items()),
            stop_seconds=KILL_AFTER_SECONDS,
        )
        return unit.encode(errors="surrogateescape")

    def parse_command(self, text: bytes) -> tuple[str, ...] | None:
        """Return the command in a service file, or None if we did not write it for this home."""
        lines = text.decode(errors="surrogateescape").splitlines()
        if _HEADER not in lines or f"Environment={_quote(f'HYP_HOME={self._home.root}')}" not in lines:
            return None
        for line in lines:
            if line.startswith("ExecStart="):
                words = shlex.split(line.removeprefix("ExecStart="))
                return tuple(word.replace("$$", "$").replace("%%", "%") for word in words)
        return ()

    def unavailable_reason(self) -> str | None:
        """Return why the supervisor cannot be used, or None if it can."""
        done = self._call("show", "--property=UnitPath")
        if done.returncode:
            return done.stderr.strip() or "systemctl --user does not answer"
        # systemd has its own XDG_CONFIG_HOME, which may differ from the shell's.
        folder = str(self.path.parent)
        return None if folder in done.stdout else f"systemd does not look for units in {folder}"

    def enable(self) -> None:
        self._call("daemon-reload", check=True)
        self._call("enable", self.name, check=True)

    def disable(self) -> None:
        self._call("disable", self.name, check=True)

    def clean_up(self) -> None:
        """Remove the leftovers of a removed service file, even if the supervisor does not answer."""
        (self.path.parent / "default.target.wants" / self.name).unlink(missing_ok=True)
        self._call("daemon-reload")
        self._call("reset-failed", self.name)

    def start(self) -> None:
        if self._show("LoadState") != "loaded" or self._show("NeedDaemonReload") == "yes":
            self._call("daemon-reload", check=True)
        # systemd does not start a unit that failed too often before its failure count is reset.
        self._call("reset-failed", self.name)
        self._call("start", self.name, check=True)

    def stop(self) -> None:
        """Ask the daemon to end without waiting for it; it is not restarted until `start`."""
        done = self._call("stop", "--no-block", self.name)
        if done.returncode not in (0, _NOT_LOADED):
            self._call("stop", "--no-block", self.name, check=True)

    def pid(self) -> int | None:
        return int(self._show("MainPID") or 0) or None

    def failure(self) -> str | None:
        """Return how the daemon failed, or None if the supervisor knows of no failure."""
        if self._show("ActiveState") != "failed" and self._show("SubState") != "auto-restart":
            return None
        journal = run_command("journalctl", "--user", "-u", self.name, "-n", "20", "--no-pager", "-o", "cat")
        return f"{self._show('Result')}, {self._show('ExecMainStatus')}\n{journal.stdout.strip()}".strip()

    def _show(self, name: str) -> str:
        return self._call("show", f"--property={name}", "--value", self.name).stdout.strip()

    def _call(self, *args: str, check: bool = False) -> CommandResult:
        return run_command("systemctl", "--user", *args, check=check)


Supervisor = Launchd | Systemd


def _quote(text: str) -> str:
    """Quote one word for a unit file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{escaped}"'
