"""Simulates a power cut: rebuilds a home as the disk may contain it, given the fsyncs before.

    disk = ShadowDisk(tmp_path / "shadow")     # on the home's file system, outside the home
    with disk.watching():                      # this process and its forked children
        ...                                    # work, crash, SIGKILL
    disk.power_cut(home.root, choose)          # the home as it may be after the power cut, in place

While it watches, each fsync through `hypaware.home.durable_files` is recorded on disk: the bytes of a file by its
inode, and the listing of a folder (name → inode) by the folder's inode. The power cut keeps the recorded data. For
anything else, `choose()` decides, one item at a time, whether it had reached the disk:

- a name that was created, moved or removed since the fsync of its folder. A move is atomic, as on every journaling file
  system: the file is under its old name or under its new one, never under both or neither;
- bytes that were written since the fsync of the file: all of them, some of them, or zeros instead.

The home's own folder counts as durable. SQLite fsyncs its files itself, so they stay unchanged. A recorded file keeps a
second link in the shadow, so that its inode is not reused and a removal can be undone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hypaware.home import durable_files

Choose = Callable[[], bool]
Place = tuple[int, str]
"""A name in a folder: the folder's inode, and the name."""

_SQLITE = re.compile(r".*\.db(-wal|-shm|-journal)?")


@dataclass
class _Tree:
    """The path of each inode: now, as of the fsyncs, or after the power cut."""

    places: dict[int, Place] = field(default_factory=dict)
    folders: set[int] = field(default_factory=set)
    once: set[int] = field(default_factory=set)
    """Inodes that had a durable name at some time."""
    paths: dict[int, Path] = field(default_factory=dict)


class ShadowDisk:
    def __init__(self, store: Path) -> None:
        """Open the shadow, or create it. Another process can continue with it."""
        self.store = store
        self._bytes, self._links, self._listings = store / "bytes", store / "links", store / "listings"
        for folder in (self._bytes, self._links, self._listings):
            folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def watching(self) -> Iterator[ShadowDisk]:
        """Record fsyncs of this process and of processes that are forked within this context."""
        real = durable_files.fsync_fd

        def fsync_fd(fd: int) -> None:
            # Serialized, so that an older record of a file never replaces a newer one.
            with self._locked():
                note = self._look(fd)
                real(fd)
                note()

        durable_files.fsync_fd = fsync_fd
        try:
            yield self
        finally:
            durable_files.fsync_fd = real

    def trust(self, root: Path) -> None:
        """Treat the current content of the home as durable."""
        with self._locked():
            self._trust(root)

    def power_cut(self, root: Path, choose: Choose) -> None:
        """Rebuild the home as the disk may contain it, and treat the result as durable.

        The folder of the home stays the same. No process may have a file of the home open.
        """
        with self._locked():
            after = self.store / f"after-{secrets.token_hex(4)}"
            self._write_out(_Cut(_walk(root), self._synced(), choose).tree(), root.stat().st_ino, after, choose)
            for left in root.iterdir():
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left)
                else:
                    left.unlink()
            for kept in after.iterdir():
                kept.rename(root / kept.name)
            after.rmdir()
            for noted in (self._bytes, self._links, self._listings):
                shutil.rmtree(noted)
                noted.mkdir()
            self._trust(root)

    def _look(self, fd: int) -> Callable[[], None]:
        """Read the data that is about to be fsynced. Call the returned function to record it after the fsync."""
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            names = {entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in os.scandir(fd)}
            for name, (inode, is_folder) in names.items():
                if not is_folder:
                    self._link(name, inode, folder=fd)
            path = self._listings / str(found.st_ino)
            once = set(json.loads(path.read_bytes())["once"]) if path.exists() else set[int]()
            once.update(inode for inode, _ in names.values())
            listing = json.dumps({"at": time.monotonic_ns(), "names": names, "once": sorted(once)}).encode()
            return lambda: self._note(path, listing)
        if not self._link(_path_of(fd), found.st_ino):
            return lambda: None
        # The descriptor may be write-only.
        held = (self._links / str(found.st_ino)).read_bytes()
        return lambda: self._note(self._bytes / str(found.st_ino), held)

    def _link(self, path: str, inode: int, folder: int | None = None) -> bool:
        """Link the file into the shadow. Return False if it was removed or replaced."""
        link = self._links / str(inode)
        if link.exists():
            return True
        try:
            os.link(path, link, src_dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        if link.lstat().st_ino == inode:
            return True
        link.unlink()
        return False

    def _note(self, path: Path, held: bytes) -> None:
        """Write atomically, because the process can be killed at any point."""
        temporary = self.store / f"note-{secrets.token_hex(4)}"
        temporary.write_bytes(held)
        temporary.rename(path)

    def _trust(self, root: Path) -> None:
        for folder, _, names in os.walk(root):
            for path in (Path(folder), *(Path(folder) / name for name in names)):
                if path.is_symlink() or not (path.is_file() or path.is_dir()):
                    continue
                fd = os.open(path, os.O_RDONLY)
                try:
                    self._look(fd)()
                finally:
                    os.close(fd)

    def _synced(self) -> _Tree:
        """A file has one name, so the newest listing with its name is valid."""
        tree, newest = _Tree(), dict[int, int]()
        for path in self._listings.iterdir():
            listing = json.loads(path.read_bytes())
            for name, (inode, is_folder) in listing["names"].items():
                if listing["at"] > newest.get(inode, -1):
                    newest[inode], tree.places[inode] = listing["at"], (int(path.name), name)
                if is_folder:
                    tree.folders.add(inode)
            tree.once.update(listing["once"])
        tree.paths = {int(path.name): path for path in self._links.iterdir()}
        return tree

    def _write_out(self, tree: _Tree, folder: int, to: Path, choose: Choose) -> None:
        to.mkdir(mode=0o700)
        inside = [(name, inode) for inode, (parent, name) in tree.places.items() if parent == folder]
        for name, inode in sorted(inside):
            if inode in tree.folders:
                self._write_out(tree, inode, to / name, choose)
                continue
            path = tree.paths[inode]
            if not stat.S_ISREG(path.lstat().st_mode):
                continue  # a socket does not survive its process
            noted = self._bytes / str(inode)
            synced = noted.read_bytes() if noted.exists() else b""
            now = path.read_bytes()
            (to / name).write_bytes(now if _SQLITE.fullmatch(name) else _surviving(synced, now, choose))
            (to / name).chmod(stat.S_IMODE(path.stat().st_mode))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.store / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            # Unlock explicitly, because a child that was forked in between has the descriptor too.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


@dataclass
class _Cut:
    """Decides for each inode under which name, if any, it is on the disk."""

    now: _Tree
    synced: _Tree
    choose: Choose
    taken: dict[Place, int] = field(default_factory=dict)

    def tree(self) -> _Tree:
        for inode, place in _by_name(self.now):
            self._settle_present(inode, place, self.synced.places.get(inode))
        for inode, place in _by_name(self.now):
            before = self.synced.places.get(inode)
            if before is not None and before != place and not _SQLITE.fullmatch(place[1]):
                self.taken[place if before in self.taken or self.choose() else before] = inode
        occupied = set(self.now.places.values())
        for inode, place in _by_name(self.synced):
            if inode in self.now.places or place in self.taken or _SQLITE.fullmatch(place[1]):
                continue
            # A replaced file is restored if the move is undone.
            if place in occupied or not self.choose():
                self.taken[place] = inode
        return _Tree(
            places={inode: place for place, inode in self.taken.items()},
            folders=self.now.folders | self.synced.folders,
            paths={**self.synced.paths, **self.now.paths},
        )

    def _settle_present(self, inode: int, place: Place, before: Place | None) -> None:
        # If its durable name was removed from an fsynced folder, it was moved, and the move is atomic.
        moved = before is None and inode in self.synced.once
        if before == place or moved or _SQLITE.fullmatch(place[1]) or (before is None and self.choose()):
            self.taken[place] = inode


def _path_of(fd: int) -> str:
    if sys.platform == "darwin":
        return os.fsdecode(fcntl.fcntl(fd, fcntl.F_GETPATH, bytes(1024)).rstrip(b"\0"))
    return str(Path(f"/proc/self/fd/{fd}").readlink())


def _surviving(synced: bytes, now: bytes, choose: Choose) -> bytes:
    if now == synced or choose():
        return now
    if not now.startswith(synced):
        return synced
    low, high = len(synced), len(now)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if choose() else (low, middle)
    return now[:low] + (bytes(len(now) - low) if choose() else b"")


def _by_name(tree: _Tree) -> list[tuple[int, Place]]:
    """Return the inodes in an order that does not depend on their numbers."""
    return sorted(tree.places.items(), key=lambda item: item[1][1])


def _walk(root: Path) -> _Tree:
    tree = _Tree()
    for folder, folders, names in os.walk(root):
        parent = Path(folder).stat().st_ino
        for name in (*folders, *names):
            path = Path(folder) / name
            found = path.lstat()
            tree.places[found.st_ino], tree.paths[found.st_ino] = (parent, name), path
            if stat.S_ISDIR(found.st_mode):
                tree.folders.add(found.st_ino)
    return tree
