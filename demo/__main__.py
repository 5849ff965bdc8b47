"""Run the demo: choose the history, play the chapters, print the verdict and the next steps."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from demo import stage, story
from demo.console import PromiseBroken, bold, say

NEXT = """
   source .venv/bin/activate
   hyp setup --yes --dry-run    # show what a setup would do on this machine, without changing anything
   hyp setup                    # ask questions, then set up HypAware
   hyp --help

Read README.md first, then docs/getting-started.md. `make test` runs every test."""


def main() -> int:
    options = _options()
    history = options.history or _choose_history()
    if history == "own" and not stage.own_history():
        sys.exit("error: no history of Claude Code or Codex on this machine; run make demo for the sample sessions")
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    try:
        with stage.temporary_folder(options.keep) as folder:
            is_kept = _play(folder, history)
    except PromiseBroken as promise:
        say("", f"{bold('The demo failed.')} This should be true, but is not: {promise}.")
        is_kept = False
    except KeyboardInterrupt:
        say("", "Cancelled. All started processes are stopped.")
        return 130
    except BrokenPipeError:
        # The output is closed: prevent an error at the exit of the interpreter.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if not is_kept:
        say("", "Run `make test` for details, or `make demo DEMO_KEEP=1` to keep the folder with all logs.")
        return 1
    say("", f"{bold('Done')} in {time.monotonic() - began:.0f} seconds. Next steps:", NEXT)
    return 0


def _play(folder: Path, history: stage.History) -> bool:
    say(
        bold("HypAware, from setup to a delivered history, in a minute or two."),
        "Lines with a $ are commands that you can type; `hyp` is .venv/bin/hyp. Everything happens in a",
        "temporary folder; your own files and the settings of your clients are not changed:",
        "",
        f"   $ export HOME={folder}/user HYP_HOME={folder}/home SERVER={folder}/server",
    )
    with stage.places(folder) as (user, server):
        story.play(user, server, folder, history)
        return story.verify(user, server, history)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description="Demonstrate HypAware in a temporary home.")
    parser.add_argument(
        "--history",
        choices=("sample", "own"),
        help="sample sessions, or your own of the last 30 days (read-only)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    return parser.parse_args()


def _choose_history() -> stage.History:
    """Ask for the history, if there is a terminal and a choice."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
    if not interactive or not (own := stage.own_history()):
        return "sample"
    say(
        f"You have sessions of {' and '.join(sorted(own))} here. The demo can use the last 30 days of them instead of",
        "its samples. They are only read; the copy is deleted with the temporary folder; nothing leaves this machine.",
    )
    sys.stdout.write("Sample sessions, or your own? [SAMPLE/own] ")
    sys.stdout.flush()
    return "own" if sys.stdin.readline().strip().lower() in ("o", "own") else "sample"


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
