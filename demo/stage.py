"""Where the demo plays: a temporary folder with a user, a home of HypAware and one of a server.

    <folder>/user/.claude, user/.codex     what the clients would have in the user's home
    <folder>/home, <folder>/server         HYP_HOME of the user, and of the server

Every process of the demo has only these folders in its environment. The user's own history, where it is wanted, is
linked to: settings that a set-up changes lie beside the link, so that nothing can be written where the history is.
Whatever runs at the end is stopped, by its pid.
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

from demo import telling
from hypaware import lock_file
from hypaware.capture import handover
from hypaware.home import Home, cache_dir

History = Literal["sample", "own"]
ROOT = Path(__file__).parents[1]
HYP = Path(sys.executable).with_name("hyp")
SAMPLE = Path(__file__).parent / "history"
# Where a client keeps its history, below its own folder; and who tells where that is, if not the user's home.
_PLACES = {"claude": ("projects", "CLAUDE_CONFIG_DIR"), "codex": ("sessions", "CODEX_HOME")}
_LONG_AGO = 86_400.0
_PATIENCE = 60.0


@dataclass(frozen=True)
class Place:
    """One home, and the commands of whoever has it."""

    home: Path
    user: Path
    setting: tuple[str, ...] = ()
    """What one would have to type in front of a command to mean this home."""

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
        return telling.perform(words, [HYP, *args], {**self.environment(), **setting}, ROOT)

    def must(self, *args: str) -> None:
        telling.expect(self.run(*args) == 0, f"`hyp {args[0]}` succeeds")

    def ask(self, *args: str) -> Any:
        """For the demo's own eyes."""
        return json.loads(self.output(*args, "--json"))

    def output(self, *args: str) -> str:
        done = self._quietly(*args)
        telling.expect(done.returncode == 0, f"`hyp {args[0]}` succeeds, which said: {done.stderr.decode()[-300:]}")
        return done.stdout.decode().strip()

    def stop(self) -> None:
        """Nothing of this home runs any more."""
        if not self.home.exists():
            return
        self._quietly("daemon", "stop", "--timeout", "30s", "--force")
        self._quietly("engine", "stop")
        path = handover.lock_path(Home(self.home.resolve()))
        if (pid := lock_file.holder(path)) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not lock_file.is_taken(path), "the process that holds the gateway's address ends")

    def _quietly(self, *args: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([HYP, *args], env=self.environment(), cwd=ROOT, capture_output=True, check=False)


@contextmanager
def temporary_folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="hyp-demo-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            telling.say("", f"Kept, with its logs: {folder}", f"   HYP_HOME={folder}/home .venv/bin/hyp query overview")
        else:
            shutil.rmtree(folder)


@contextmanager
def places(folder: Path) -> Iterator[tuple[Place, Place]]:
    """The user's and the server's; what they have started is stopped at the end."""
    user = Place(folder / "home", folder / "user")
    server = Place(folder / "server", folder / "user", ("HYP_HOME=$SERVER",))
    with ExitStack() as ending:
        ending.callback(user.stop)
        ending.callback(server.stop)
        # Whoever loses patience now shall not leave processes behind.
        ending.callback(_be_deaf)
        yield user, server


def _be_deaf() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def own_history() -> dict[str, Path]:
    """By client, of whoever runs the demo."""
    found = {}
    for client, (below, variable) in _PLACES.items():
        folder = Path(os.environ.get(variable) or Path.home() / f".{client}") / below
        if folder.is_dir() and any(folder.rglob("*.jsonl")):
            found[client] = folder.resolve()
    return found


def lay_out(user: Path, history: History) -> None:
    """What the clients would have left in the user's home."""
    own = own_history()
    for client, (below, _) in _PLACES.items():
        place = user / f".{client}" / below
        place.parent.mkdir(parents=True)
        if history == "sample":
            shutil.copytree(SAMPLE / client / below, place)
            for path in place.rglob("*.jsonl"):
                # A transcript that was written to just now may still grow; its end would be left for later.
                os.utime(path, (time.time() - _LONG_AGO,) * 2)
        elif client in own:
            place.symlink_to(own[client])


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        telling.expect(time.monotonic() < end, what)
        time.sleep(0.1)
