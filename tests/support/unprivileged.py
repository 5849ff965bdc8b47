"""Less than root: without the capabilities that ignore file permissions, or as another user."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION_3 = 0x20080522
# CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: ignoring file permissions.
_OVERRIDE = (1 << 1) | (1 << 2)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Apply file permissions to this thread, even if it runs as root."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root may read everything here")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    held = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0, os.strerror(ctypes.get_errno())
    # Effective, permitted and inheritable, for the lower 32 capabilities and the upper ones. Only the first changes.
    without = (ctypes.c_uint32 * 6)(held[0] & ~_OVERRIDE, *held[1:])
    assert libc.capset(header, without) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0, os.strerror(ctypes.get_errno())


_BECOME_NOBODY = """
import encodings.idna, os, socket, struct, sys
os.chdir("/")
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
"""


def run_as_other_user(script: str, *arguments: str) -> str:
    """Run a script of the standard library as a user who can reach the ports of this machine, and return its output.

    Only root can become another user. The interpreter may be in root's home, so it is loaded first.
    """
    done = subprocess.run(
        [sys.executable, "-I", "-c", _BECOME_NOBODY + script, *arguments],
        capture_output=True,
        text=True,
        env={},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
