"""A home that takes long to make, made once for many tests: each of them finds it as it was made.

A home knows its folder by path and inode, and its tables name their files by path: a copy elsewhere is another home. So
the folder itself is kept, whatever a test has renamed it to, and what was in it and beside it is put back.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from hypaware.home import Home


class KeptHome:
    def __init__(self, folder: Path, make: Callable[[Home], object], name: str = "home") -> None:
        """`make` may put other things beside the home, too."""
        self._around, self._original = folder / "around", folder / "original"
        self._around.mkdir(parents=True)
        self._home = Home(self._around / name)
        make(self._home)
        self._inode = self._home.root.stat().st_ino
        shutil.copytree(self._around, self._original, symlinks=True)

    def as_made(self) -> Home:
        """The home as it was made, and beside it only what was made with it."""
        beside = [path for path in self._around.iterdir() if path.lstat().st_ino != self._inode]
        for path in beside:
            _remove(path)
        (folder,) = self._around.iterdir()
        folder.rename(self._home.root)
        for path in list(self._home.root.iterdir()):
            _remove(path)
        shutil.copytree(self._original, self._around, symlinks=True, dirs_exist_ok=True)
        return self._home


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
