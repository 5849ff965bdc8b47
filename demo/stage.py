"""The temporary folder of the demo, with a user, the home of HypAware and the home of a server.

    <folder>/user/.claude, user/.codex     the folders of the clients
    <folder>/home, <folder>/server         HYP_HOME of the user and of the server

Every process of the demo has only these folders in its environment. If the user's own history is used, a symbolic link
points to it. The settings that a setup changes are next to the link, so nothing is written to the real history. At the
end, all processes are stopped by their pid.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from demo import console
from hypaware.gateway import handover
from hypaware.home import Home, cache_dir, locks

History = Literal["sample", "own"]
ROOT = Path(__file__).parents[1]
HYP = Path(sys.executable).with_name("hyp")
SAMPLE = Path(__file__).parent / "history"
# The history folder of each client, and the environment variable that overrides the client's folder.
_PLACES = {"claude": ("projects", "CLAUDE_CONFIG_DIR"), "codex": ("sessions", "CODEX_HOME")}
_ONE_DAY = 86_400.0
_TIMEOUT = 60.0


@dataclass(frozen=True)
class Place:
    """A home, and commands that run with it."""

    home: Path
    user: Path
    setting: tuple[str, ...] = ()
    """The variables to type before a command to use this home."""

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HYP_", "OTEL_"))}
        return {
            **kept,
            "HOME": str(self.user),
            "HYP_HOME": str(self.home),
            "HYP_CACHE": str(cache_dir()),
            "CLAUDE_CONFIG_DIR": str(self.user / ".claude"),
            "CODEX_HOME": str(self.user / ".codex"),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def run(self, *args: str, crash_at: str = "") -> int:
        setting = {"HYP_CRASH_AT": crash_at} if crash_at else {}
        words = (*self.setting, *(f"{name}={value}" for name, value in setting.items()), "hyp", *args)
        return console.run(words, [HYP, *args], {**self.environment(), **setting}, ROOT)

    def run_ok(self, *args: str) -> None:
        console.expect(self.run(*args) == 0, f"`hyp {args[0]}` succeeds")

    def query_json(self, *args: str) -> Any:
        """Run a command silently and return its JSON."""
        return json.loads(self.output(*args, "--json"))

    def output(self, *args: str) -> str:
        done = self._run_silently(*args)
        console.expect(done.returncode == 0, f"`hyp {args[0]}` succeeds, but it printed: {done.stderr.decode()[-300:]}")
        return done.stdout.decode().strip()

    def stop(self) -> None:
        """Stop every process of this home."""
        if not self.home.exists():
            return
        self._run_silently("daemon", "stop", "--timeout", "30s", "--force")
        self._run_silently("engine", "stop")
        path = handover.fallback_lock_path(Home(self.home.resolve()))
        if (pid := locks.lock_holder(path)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not locks.is_locked(path), "the process that holds the gateway's address stops")

    def _run_silently(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([HYP, *args], env=self.environment(), cwd=ROOT, capture_output=True, check=False)


@contextmanager
def temporary_folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hyp-demo-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            console.say(
                "",
                f"The folder with all logs is kept: {folder}",
                f"   HYP_HOME={folder}/home .venv/bin/hyp query overview",
            )
        else:
            shutil.rmtree(folder)


@contextmanager
def places(folder: Path) -> Iterator[tuple[Place, Place]]:
    """Yield the places of the user and the server, and stop all their processes at the end."""
    user = Place(folder / "home", folder / "user")
    server = Place(folder / "server", folder / "user", ("HYP_HOME=$SERVER",))
    with ExitStack() as ending:
        ending.callback(user.stop)
        ending.callback(server.stop)
        # Ignore Ctrl-C during clean-up, so that no process is left behind.
        ending.callback(ignore_signals)
        yield user, server


def ignore_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def own_history() -> dict[str, Path]:
    """Return the history folders of the user who runs the demo, by client."""
    found = {}
    for client, (below, variable) in _PLACES.items():
        folder = Path(os.environ.get(variable) or Path.home() / f".{client}") / below
        if folder.is_dir() and any(folder.rglob("*.jsonl")):
            found[client] = folder.resolve()
    return found


def create_history(user: Path, history: History) -> None:
    """Create the history of the clients in the user's home."""
    own = own_history()
    for client, (below, _) in _PLACES.items():
        place = user / f".{client}" / below
        place.parent.mkdir(parents=True)
        if history == "sample":
            shutil.copytree(SAMPLE / client / below, place)
            for path in place.rglob("*.jsonl"):
                # The import holds back the end of a transcript that was written to recently.
                os.utime(path, (time.time() - _ONE_DAY,) * 2)
        elif client in own:
            place.symlink_to(own[client])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _TIMEOUT
    while not condition():
        console.expect(time.monotonic() < end, what)
        time.sleep(0.1)
