"""Measure the reading commands next to the programs that users would choose instead, on the same made-up history.

    python -m bench.peers [--scale 0.2] [--folder FOLDER] [--ccusage VERSION]

agentsview (PyPI) and ccusage (npm) are installed into FOLDER. A peer that cannot be installed or does not run is named
with the reason, and the others are measured. Commands run in turns; the least wall time of each counts, because other
work on the machine only adds to it. agentsview answers from its own server, which runs while it is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench import transcripts
from bench.history import Histories, Importing, temporary_home
from bench.measure import HYP, Measured, seconds

_TURNS = 9
WORK = ("list 20 sessions", "usage by day", "search for a word of a prompt")


@dataclass(frozen=True)
class Peer:
    """A program and its commands for `WORK`, in that order; None where it has no such command."""

    name: str
    commands: tuple[list[str] | None, ...]
    environment: Mapping[str, str]
    times: dict[str, float] = field(default_factory=dict, compare=False)


class PeerMissing(Exception):
    """A peer cannot be installed, or does not run here."""


def compare(folder: Path, scale: float, ccusage: str = "") -> tuple[list[Peer], list[str]]:
    """Return the programs with their times, ours first, and the reasons why others are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    histories = Histories(folder, scale)
    history, made = histories.large()
    with temporary_home(folder, "peers") as commands:
        importing = Importing(commands)
        importing.add((history, made))
        commands.build_index()
        word = _choose_word(history)
        arguments = (["sessions", "--limit", "20"], ["usage"], ["search", word])
        ours = Peer("hyp", tuple([str(HYP), *each] for each in arguments), commands.environment)
        missing: list[str] = []
        with _agentsview(folder, history, word, missing) as viewer:
            peers = [ours, *viewer, *_ccusage(folder, history, ccusage, missing)]
            _take_turns(peers)
    return peers, missing


def _choose_word(history: Path) -> str:
    """Return the longest word of a prompt: every program indexes prompts, so every program finds it."""
    for path in sorted(transcripts.files(history)):
        for line in path.read_text().splitlines():
            content = json.loads(line).get("message", {}).get("content")
            if isinstance(content, str):
                return str(max(re.findall(r"[a-z]+", content), key=len))
    raise SystemExit(f"no prompt in {history}")


def _take_turns(peers: list[Peer]) -> None:
    for place, work in enumerate(WORK):
        for _ in range(_TURNS):
            for peer in peers:
                if command := peer.commands[place]:
                    spent = seconds(lambda peer=peer, command=command: _run(command, peer.environment))  # type: ignore[misc]
                    peer.times[work] = min(spent, peer.times.get(work, spent))


@contextmanager
def _agentsview(folder: Path, history: Path, word: str, missing: list[str]) -> Iterator[list[Peer]]:
    """Install agentsview, import the history into it, and run its server."""
    home = folder / "agentsview-home"
    program = folder / "agentsview" / "bin" / "agentsview"
    environment = {**os.environ, "HOME": str(home)}
    try:
        if not program.exists():
            _run([sys.executable, "-m", "venv", str(folder / "agentsview")])
            _run([str(program.with_name("python")), "-m", "pip", "install", "--quiet", "agentsview"])
        (home / ".claude").mkdir(parents=True, exist_ok=True)
        link = home / ".claude" / "projects"
        link.unlink(missing_ok=True)
        link.symlink_to(history / "projects")
        _run([str(program), "daemon", "start"], environment)
        _run([str(program), "sync"], environment)
    except PeerMissing as reason:
        missing.append(f"agentsview: {reason}")
        yield []
        return
    try:
        arguments = (
            ["session", "list", "--limit", "20", "--include-one-shot", "--include-automated"],
            ["usage", "daily"],
            ["session", "search", "--fts", "--include-one-shot", "--include-automated", word],
        )
        version = _run([str(program), "version"], environment).split()[1]
        yield [Peer(f"agentsview {version}", tuple([str(program), *each] for each in arguments), environment)]
    finally:
        _run([str(program), "daemon", "stop"], environment)


def _ccusage(folder: Path, history: Path, version: str, missing: list[str]) -> list[Peer]:
    package = f"ccusage@{version}" if version else "ccusage"
    program = folder / "node" / "node_modules" / ".bin" / "ccusage"
    environment = {**os.environ, "CLAUDE_CONFIG_DIR": str(history)}
    try:
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder / "node"), package])
        found = _run([str(program), "--version"], environment).split()[-1]
        command = [str(program), "daily", "--offline"]
        _run(command, environment)
    except PeerMissing as reason:
        missing.append(f"ccusage: {reason}")
        return []
    return [Peer(f"ccusage {found}", (None, command, None), environment)]


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise PeerMissing(f"{command[0]} is not installed") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise PeerMissing(lines[-1])
    return done.stdout


def measure(folder: Path, scale: float, ccusage: str = "") -> Iterator[Measured]:
    peers, missing = compare(folder, scale, ccusage)
    ours, *others = peers
    for work in WORK:
        for peer in others:
            if work in peer.times:
                mine, theirs = ours.times[work], peer.times[work]
                value = f"{mine / theirs:.2f} × ({mine * 1e3:.0f} ms, {theirs * 1e3:.0f} ms)"
                yield Measured(f"{work}, against {peer.name}", "≤ 1 ×", value, mine <= theirs)
    for reason in missing:
        yield Measured("not compared", "–", reason)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the reading commands next to other programs.")
    parser.add_argument("--scale", type=float, default=0.2, help="of the history; 1 is 500 MB")
    parser.add_argument("--folder", type=Path, help="where the programs and the history are kept for the next time")
    parser.add_argument("--ccusage", default="", metavar="VERSION", help="the version of ccusage; default: the newest")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-peers-") as folder:
        for found in measure(args.folder or Path(folder), args.scale, args.ccusage):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
