"""A home that is prepared once for many tests; each test gets it in its prepared state.

A home knows its directory by path and inode, and its tables name their files by path: a copy elsewhere is another home.
So the directory itself is kept, even if a test has renamed it, and its contents and neighbours are restored.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from hypaware.home import Home


class PreparedHome:
    def __init__(self, folder: Path, make: Callable[[Home], object], name: str = "home") -> None:
        """Prepare the home with `make`, which may also create neighbours of the home."""
        self._parent, self._original = folder / "around", folder / "original"
        self._parent.mkdir(parents=True)
        self._home = Home(self._parent / name)
        make(self._home)
        self._inode = self._home.root.stat().st_ino
        shutil.copytree(self._parent, self._original, symlinks=True)

    def restored(self) -> Home:
        """Return the home, restored with its neighbours to the prepared state."""
        neighbours = [path for path in self._parent.iterdir() if path.lstat().st_ino != self._inode]
        for path in neighbours:
            _remove(path)
        (folder,) = self._parent.iterdir()
        folder.rename(self._home.root)
        for path in list(self._home.root.iterdir()):
            _remove(path)
        shutil.copytree(self._original, self._parent, symlinks=True, dirs_exist_ok=True)
        return self._home


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
