"""A full disk: a small tmpfs, if this process may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._filler = root / "filler"

    def fill(self, leave: int = 0) -> None:
        """Fill the disk except for `leave` bytes, in whole pages."""
        with open(self._filler, "ab") as file:
            room = os.statvfs(self.root).f_bavail * os.statvfs(self.root).f_frsize
            file.write(bytes(max(0, room - leave)))

    def make_room(self) -> None:
        self._filler.unlink()


@contextmanager
def mounted(at: Path, size: str = "4m") -> Iterator[SmallDisk]:
    """Mount a small disk, or skip the test. Other tests inject the errors of a full disk into each step."""
    at.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield SmallDisk(at)
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)
