"""Measure setup, from nothing to a searchable history: `python -m bench.setup [--scale 1] [--folder FOLDER]`.

The history is the one of `bench.history`. Jars and class archive exist, the engine is not running. The import's floor
and every other step of `hyp setup` are measured too.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.history import Histories, measure_floor, temporary_home
from bench.measure import HYP, Commands, Measured, seconds
from hypaware.gateway import handover
from hypaware.home import Home, cache_dir, locks

_TARGET = 40.0


def measure(folder: Path, scale: float) -> Iterator[Measured]:
    folder.mkdir(parents=True, exist_ok=True)
    made = Histories(folder, scale).large()
    size = f"{made[1].bytes / 1e6:,.0f} MB"
    with temporary_home(folder, "setup") as commands:
        floor = measure_floor(commands, folder, made)
        _stage(commands, made[0])
        try:
            looking = seconds(lambda: commands.hyp("backfill", "plan"))
            reports: list[dict[str, Any]] = []
            whole = seconds(lambda: reports.append(commands.hyp("setup", "--yes")))
            written = sum(each["rows_written"] for each in reports[0]["backfill"]["providers"])
            if written != made[1].rows:
                raise SystemExit(f"{made[1].rows} rows are there and {written} were written: not a measurement")
            again = seconds(lambda: commands.hyp("setup", "--yes"))
        finally:
            _leave(commands)
    yield Measured(f"what there is to import, of {size}", "–", f"{looking:.2f} s")
    against = f"{whole:.1f} s ({whole / floor:.2f} × the import's floor, {floor:.1f} s)"
    yield Measured(f"`hyp setup --yes` with {size} of history, cold", f"≤ {_TARGET:.0f} s", against, whole <= _TARGET)
    yield Measured("the same again, nothing to do", "–", f"{again:.1f} s")


def _stage(commands: Commands, history: Path) -> None:
    """Prepare a user with this history and a free port for the gateway."""
    user = commands.home.parent / "user"
    (user / ".claude").mkdir(parents=True)
    (user / ".claude" / "projects").symlink_to(history / "projects")
    # Name the cache: it is otherwise found through the real user's HOME.
    named = {"HYP_CACHE": str(cache_dir()), "HOME": str(user), "CLAUDE_CONFIG_DIR": "", "CODEX_HOME": ""}
    commands.environment |= named
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        port = found.getsockname()[1]
    commands.home.mkdir(mode=0o700, exist_ok=True)
    (commands.home / "config.toml").write_text(f'version = 1\n[gateway]\nlisten = "127.0.0.1:{port}"\n')


def _leave(commands: Commands) -> None:
    for words in (("client", "detach"), ("daemon", "stop")):
        commands.run([str(HYP), *words])
    # The fallback would keep the address for an hour, for running sessions.
    if (pid := locks.lock_holder(handover.fallback_lock_path(Home(commands.home)))) is not None:
        os.kill(pid, signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the set-up with a large history.")
    parser.add_argument("--scale", type=float, default=1.0, help="1 is 500 MB in 376,036 lines")
    parser.add_argument("--folder", type=Path, help="where histories are kept for the next time")
    args = parser.parse_args()
    print("| work | target | measured | |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="hyp-setup-") as folder:
        for found in measure(args.folder or Path(folder), args.scale):
            print(found.line(), flush=True)


if __name__ == "__main__":
    main()
