"""`python -m hypaware.cli`: the command `hyp` by its interpreter's path, for whoever starts it without a shell."""

from __future__ import annotations

import sys

from hypaware.cli.entry import run

if __name__ == "__main__":
    sys.exit(run())
