"""Run `hyp` as `python -m hypaware.cli`, for callers that start it by the interpreter's path."""

from __future__ import annotations

import sys

from hypaware.cli.entry import run

if __name__ == "__main__":
    sys.exit(run())
