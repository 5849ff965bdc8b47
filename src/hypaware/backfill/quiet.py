"""While plugins run in a command's own process: what they print must not get into its document."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """Whatever is written to stdout meanwhile, also past Python, goes to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
