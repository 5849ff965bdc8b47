"""The demo's beginning and end: which history, where it plays, what came of it, what to do next."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from demo import stage, story
from demo.telling import NotAsPromised, bold, say

NEXT = """
   source .venv/bin/activate
   hyp setup --yes --dry-run    # what a set-up would do on this machine; changes nothing
   hyp setup                    # asks, and does it
   hyp --help

README.md is one page, docs/getting-started.md goes on from there, and `make test` runs every test."""


def main() -> int:
    options = _options()
    history = options.history or _offered()
    if history == "own" and not stage.own_history():
        sys.exit("error: neither Claude Code nor Codex has a history here; make demo shows the sample sessions")
    signal.signal(signal.SIGTERM, _ended)
    began = time.monotonic()
    try:
        with stage.temporary_folder(options.keep) as folder:
            held = _play(folder, history)
    except NotAsPromised as promise:
        say("", f"{bold('The demo failed.')} This should be true, and is not: {promise}.")
        held = False
    except KeyboardInterrupt:
        say("", "Cancelled; what had been started is stopped.")
        return 130
    except BrokenPipeError:
        # Nobody listens any more; the interpreter shall not complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if not held:
        say("", "`make test` may say more; `make demo DEMO_KEEP=1` keeps the folder, with the logs of what ran in it.")
        return 1
    say("", f"{bold('That was it')}, in {time.monotonic() - began:.0f} seconds. What to do next:", NEXT)
    return 0


def _play(folder: Path, history: stage.History) -> bool:
    say(
        bold("HypAware, from nothing to a delivered history, in a minute or two."),
        "Lines with a $ are commands that you can type; `hyp` is .venv/bin/hyp. Everything happens in a",
        "temporary folder, so your own files and your clients' settings stay as they are:",
        "",
        f"   $ export HOME={folder}/user HYP_HOME={folder}/home SERVER={folder}/server",
    )
    with stage.places(folder) as (user, server):
        story.tell(user, server, folder, history)
        return story.judge(user, server, history)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Shows HypAware in a temporary home.")
    parser.add_argument(
        "--history", choices=("sample", "own"), help="the sample sessions, or your own of the last 30 days, only read"
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    return parser.parse_args()


def _offered() -> stage.History:
    """Asked only where somebody can answer, and has something to choose."""
    watched = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
    if not watched or not (own := stage.own_history()):
        return "sample"
    say(
        f"You have sessions of {' and '.join(sorted(own))} here. The demo can take the last 30 days of them instead of",
        "its samples: they are only read, the copy goes with the temporary folder, and nothing leaves this machine.",
    )
    sys.stdout.write("Sample sessions, or your own? [SAMPLE/own] ")
    sys.stdout.flush()
    return "own" if sys.stdin.readline().strip().lower() in ("o", "own") else "sample"


def _ended(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
