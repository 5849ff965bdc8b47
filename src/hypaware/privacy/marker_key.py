"""The key of the markers that replace secrets: `<HYP_HOME>/redaction.key`, 32 random bytes.

It is created when it is first needed and durable before the first marker is made with it, so a secret has the same
marker in all rows of a home, and in its backups. It never leaves the machine otherwise. If it is lost, a new one is
created: later markers differ from the earlier ones.
"""

from __future__ import annotations

import os
import secrets
import shlex

from hypaware import faults
from hypaware.errors import Retryable, StateError
from hypaware.home import Home, durable_files
from hypaware.home.locks import locked

_KEY_BYTES = 32
_before_write = faults.crash_point("privacy.marker-key.before-write", "the key of the markers does not exist yet")
_after_write = faults.crash_point("privacy.marker-key.after-write", "the key of the markers is durable and unused")


def load_marker_key(home: Home, *, is_dry_run: bool = False) -> bytes:
    """Return the home's key. A dry run does not create a missing one: its markers are never stored."""
    path = home.root / "redaction.key"
    try:
        if not path.exists():
            if is_dry_run:
                return secrets.token_bytes(_KEY_BYTES)
            durable_files.make_dir(home.root)
            with locked(home.root):
                if not path.exists():
                    _before_write()
                    durable_files.write_atomic(path, secrets.token_bytes(_KEY_BYTES))
                    _after_write()
        key = path.read_bytes()
    except OSError as error:
        problem = f"{path} cannot be read or written: {os.strerror(error.errno or 0)}"
        raise Retryable(problem, kind="redaction_key_unusable") from error
    if len(key) != _KEY_BYTES:
        raise StateError(
            f"{path} is damaged: it does not hold {_KEY_BYTES} bytes. Remove it; the next command creates a new key, "
            "and later markers differ from the earlier ones",
            kind="redaction_key_damaged",
            repair=f"rm {shlex.quote(str(path))}",
        )
    return key
