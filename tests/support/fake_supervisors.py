"""Fake systemctl and launchctl programs that record their calls and really run the daemon.

They keep the state of the real ones: the files they have loaded (`daemon-reload`, `bootstrap`), the services that start
at login, and the process they started. They return the same output and exit codes.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

_SHARED = """#!{python} -IS
import json, os, plistlib, shlex, signal, subprocess, sys
from pathlib import Path

STATE = Path({state!r})
with (STATE / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\n")


def fail(code, message):
    print(message, file=sys.stderr)
    sys.exit(code)


def spawn(name, command, environment):
    with (STATE / "journal").open("ab") as message:
        streams = dict(stdin=subprocess.DEVNULL, stdout=message, stderr=message)
        process = subprocess.Popen(command, env=environment, cwd="/", start_new_session=True, **streams)
    (STATE / (name + ".pid")).write_text(str(process.pid))


def started(name):
    path = STATE / (name + ".pid")
    return int(path.read_text()) if path.exists() else 0


def lives(pid):
    try:
        return pid > 0 and Path("/proc/%d/stat" % pid).read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


if (STATE / "down").exists():
    fail(1, "Failed to connect to bus: No medium found")
"""

_SYSTEMCTL = (
    _SHARED
    + """
args = [arg for arg in sys.argv[1:] if arg not in ("--user", "--value", "--no-block")]
verb, rest = args[0], args[1:]
folder = Path(os.environ["HOME"], ".config", "systemd", "user")
name = rest[-1] if rest else ""
loaded = STATE / (name + ".loaded")
wants = folder / "default.target.wants" / name

if verb == "daemon-reload":
    for old in STATE.glob("*.loaded"):
        old.unlink()
    for unit in folder.glob("*.service"):
        (STATE / (unit.name + ".loaded")).write_bytes(unit.read_bytes())
elif verb == "enable":
    if not (folder / name).exists():
        fail(1, "Failed to enable unit: Unit file %s does not exist." % name)
    wants.parent.mkdir(exist_ok=True)
    wants.unlink(missing_ok=True)
    wants.symlink_to(folder / name)
elif verb == "disable":
    wants.unlink(missing_ok=True)
elif verb == "start":
    if not loaded.exists():
        fail(5, "Failed to start %s: Unit %s not found." % (name, name))
    if not lives(started(name)):
        lines = [line.partition("=")[::2] for line in loaded.read_text().splitlines()]
        read = lambda value: [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(value)]
        environment = dict(word.split("=", 1) for key, value in lines if key == "Environment" for word in read(value))
        command = next(read(value) for key, value in lines if key == "ExecStart")
        spawn(name, command, {{**environment, "HOME": os.environ["HOME"]}})
elif verb == "stop":
    if not loaded.exists():
        fail(5, "Failed to stop %s: Unit %s not loaded." % (name, name))
    if lives(started(name)):
        os.kill(started(name), signal.SIGTERM)
elif verb == "show":
    expected = rest[0].removeprefix("--property=")
    up = lives(started(name)) if expected != "UnitPath" else False
    print({{
        "UnitPath": "UnitPath=/etc/systemd/user %s /usr/lib/systemd/user" % folder,
        "MainPID": str(started(name) if up else 0),
        "LoadState": "loaded" if loaded.exists() else "not-found",
        "NeedDaemonReload": "no",
        "ActiveState": "active" if up else "failed" if started(name) else "inactive",
        "SubState": "running" if up else "failed" if started(name) else "dead",
        "Result": "exit-code",
        "ExecMainStatus": "9",
    }}[expected])
elif verb == "reset-failed":
    if not lives(started(name)):
        (STATE / (name + ".pid")).unlink(missing_ok=True)
else:
    fail(1, "Unknown command verb %s." % verb)
"""
)

_JOURNALCTL = """#!/bin/sh
cat {state}/journal
"""

_LOGINCTL = """#!/bin/sh
cat {state}/linger
"""

_LAUNCHCTL = (
    _SHARED
    + """
verb, target, *rest = sys.argv[1:]
name = target.split("/")[-1]
loaded = STATE / (name + ".loaded")


def run():
    found = plistlib.loads(loaded.read_bytes())
    spawn(found["Label"], found["ProgramArguments"], {{**found["EnvironmentVariables"], "HOME": os.environ["HOME"]}})


if verb == "print":
    if target == "gui/%d" % os.getuid():
        sys.exit(0)
    if not loaded.exists():
        fail(113, "Could not find service in domain")
    print("%s = {{\\n\\tstate = running" % target)
    if lives(started(name)):
        print("\\tpid = %d" % started(name))
    print("\\tlast exit code = (never exited)\\n}}")
elif verb == "bootstrap":
    label = Path(rest[0]).stem
    loaded = STATE / (label + ".loaded")
    if loaded.exists():
        fail(5, "Bootstrap failed: 5: Input/output error")
    loaded.write_bytes(Path(rest[0]).read_bytes())
    run()
elif verb == "bootout":
    if not loaded.exists():
        fail(3, "Boot-out failed: 3: No such process")
    loaded.unlink()
    if lives(started(name)):
        os.kill(started(name), signal.SIGTERM)
        fail(36, "Boot-out failed: 36: Operation now in progress")
elif verb == "kickstart":
    run()
elif verb != "enable":
    fail(1, "Unrecognized subcommand: %s" % verb)
"""
)


@dataclass(frozen=True)
class FakeSupervisors:
    state: Path
    bin: Path

    def __post_init__(self) -> None:
        self.state.mkdir()
        self.bin.mkdir()
        (self.state / "linger").write_text("no\n")
        programs = {
            "systemctl": _SYSTEMCTL,
            "journalctl": _JOURNALCTL,
            "loginctl": _LOGINCTL,
            "launchctl": _LAUNCHCTL,
        }
        for name, text in programs.items():
            (self.bin / name).write_text(text.format(python=sys.executable, state=str(self.state)))
            (self.bin / name).chmod(0o755)

    @property
    def calls(self) -> list[str]:
        path = self.state / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def go_down(self) -> None:
        """Stop answering, as in a container or without a user session."""
        (self.state / "down").touch()

    def come_up(self) -> None:
        (self.state / "down").unlink()
