"""Remembered `.hypignore` rules of folders, for when a folder is missing: `<HYP_HOME>/privacy-folders.json`.

    {"v": 1, "folders": {"/home/me/acme": {"class": "local-only", "marker": "/home/me/acme/.hypignore",
                                           "identity": "4711@1769860000.1", "at": "2026-01-31T12:00:00Z"}}}

A `.hypignore` disappears with its folder, but the rows that were recorded there remain. So every component that decides
for good (the gateway, a client hook, an import, a delivery) remembers each file that it finds, once. A remembered rule
counts if the folder of the file is missing or has been replaced by another one (see `folder_identity`). If the folder
is still the same but the file is gone, its user has removed the rule, and it is forgotten.

If a folder is reached through a link and the file is above the link's target, the rule is also remembered under the
folder's own path. Purged folders are listed by the hash of their path (`forget_names`).

The file is changed atomically and durably, under a lock, and reloaded when it changes. While it is unreadable, existing
folders keep their own rules, nothing is recorded for missing folders, and nothing is exported at all.

@ref capture#privacy
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from hypaware import faults
from hypaware.errors import Retryable
from hypaware.home import Home, durable_files
from hypaware.home.locks import locked
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import hypignore
from hypaware.privacy.hypignore import HypignoreRule
from hypaware.privacy.ignored_sessions import PrivacyFileUnreadable, ReloadedFile

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_STATX_SIZE, _BIRTH_OFFSET = 256, 80
"""Layout of the kernel's struct: seconds (64 bit) and nanoseconds (32 bit) of the birth time at `_BIRTH_AT`."""
VERSION = 1
_HASH_PREFIX = "sha256:"
_before_write = faults.crash_point(
    "privacy.seen-folder.before-write", "the rule of a folder was found and is not remembered yet"
)
_after_write = faults.crash_point("privacy.seen-folder.after-write", "the rule of a folder is durable")


@dataclass(frozen=True)
class RememberedFolder:
    label: str
    marker: str | None
    """Path of the file; None if it was purged, then the file was in the folder itself."""
    identity: str
    """Identity of the folder that contains the file."""
    at: str

    @property
    def privacy_class(self) -> PrivacyClass:
        return PrivacyClass.parse(self.label)


@dataclass(frozen=True)
class MissingFolder:
    """A missing folder that is still kept private."""

    folder: str | None
    """None if its path was purged."""
    privacy_class: PrivacyClass
    at: str


class FolderMemory:
    def __init__(self, home: Home, *, remember: bool = False) -> None:
        """With `remember`, rules that are found are stored; leave it off when you only look."""
        self._home, self._stores = home, remember
        self._file = ReloadedFile(folder_memory_path(home), lambda: read_folders(home))

    def find_rule(self, cwd: str) -> HypignoreRule | None:
        """Return the rule of the nearest file, or its remembered rule. The path must be absolute."""
        cwd_path = os.path.normpath(cwd)
        found = hypignore.find_rules(cwd_path, self._recall)
        rule = max(found, key=lambda each: each.privacy_class, default=None)
        if rule is not None and self._stores:
            self._remember(cwd_path, rule, found)
        return rule

    def _recall(self, folder: Path) -> PrivacyClass | None:
        """Return the remembered class of a folder that contains no file."""
        folders = self._file.get()
        if folders is None:
            return None if folder.exists() else PrivacyClass.IGNORE
        name = _find_name(folders, str(folder))
        if name is None:
            return None
        seen = folders[name]
        marker = Path(_marker_path(str(folder), seen))
        if not _is_same(marker, seen):
            return seen.privacy_class
        if os.path.lexists(marker):
            # The file is elsewhere, and no link leads to it any more.
            return None if os.path.lexists(folder) else seen.privacy_class
        if self._stores:

            def removed(current: Folders) -> Folders:
                # Unless the entry was changed in the meantime.
                if current.get(name) != seen or os.path.lexists(marker):
                    return current
                return {each: kept for each, kept in current.items() if each != name}

            self._change(removed)
        return None

    def _remember(self, cwd_path: str, rule: HypignoreRule, found: Iterable[HypignoreRule]) -> None:
        folders = self._file.get()
        if folders is None:
            return
        rules = {str(each.path.parent): _to_remembered(each) for each in found if each.evidence == "found"}
        if rule.evidence == "found" and not Path(cwd_path).is_relative_to(rule.path.parent):
            rules[cwd_path] = _to_remembered(rule)
        changes = {path: seen for path, seen in rules.items() if _is_change(folders, path, seen)}

        def added(current: Folders) -> Folders:
            changed = dict(current)
            for path, seen in changes.items():
                name = _find_name(current, path)
                # A purged path is not stored again.
                is_nameless = name is not None and name.startswith(_HASH_PREFIX)
                changed[name or _path_key(path)] = replace(seen, marker=None) if is_nameless else seen
            return changed

        if changes:
            self._change(added)

    def _change(self, change: Callable[[Folders], Folders]) -> None:
        # A missing home was removed by its user, or belongs to another machine.
        if self._home.root.is_dir():
            _change_folders(self._home, change)


def list_missing_folders(home: Home) -> list[MissingFolder]:
    """List the missing folders that are private, newest first."""
    found = []
    for name, seen in sorted(read_folders(home).items(), key=lambda each: each[1].at, reverse=True):
        is_named = not name.startswith(_HASH_PREFIX)
        if seen.privacy_class is not PrivacyClass.FULL and (
            not is_named or not _is_same(Path(_marker_path(name, seen)), seen)
        ):
            found.append(MissingFolder(name if is_named else None, seen.privacy_class, seen.at))
    return found


def forget_names(home: Home, folders: Iterable[str]) -> None:
    """Replace the paths of these folders by their hashes; their rules still count."""
    roots = [_path_key(folder) for folder in folders]

    def is_inside(path: str) -> bool:
        return any(_path_key(path) == root or _path_key(path).startswith(f"{root}/") for root in roots)

    def changed(current: Folders) -> Folders:
        return {
            _hash_path(name) if is_inside(name) else name: replace(seen, marker=None)
            if is_inside(name) or (seen.marker and is_inside(seen.marker))
            else seen
            for name, seen in current.items()
        }

    if folder_memory_path(home).exists():
        _change_folders(home, changed)


def folder_memory_path(home: Home) -> Path:
    return home.root / "privacy-folders.json"


def read_folders(home: Home) -> Folders:
    path = folder_memory_path(home)
    try:
        found = json.loads(path.read_bytes())
        if found["v"] != VERSION:
            raise ValueError
        return {
            str(name): RememberedFolder(
                str(each["class"]),
                None if each["marker"] is None else str(each["marker"]),
                str(each["identity"]),
                str(each["at"]),
            )
            for name, each in found["folders"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PrivacyFileUnreadable(
            f"{path} is unreadable, so nothing is exported or imported until it is repaired: it lists the private "
            "folders that are missing",
            repair=f"mv {path} {path}.broken",
        ) from error


def _change_folders(home: Home, change: Callable[[Folders], Folders]) -> None:
    path = folder_memory_path(home)
    try:
        with locked(home.root):
            current = read_folders(home)
            wanted = change(current)
            if wanted == current:
                return
            _before_write()
            folders = {
                name: {"class": each.label, "marker": each.marker, "identity": each.identity, "at": each.at}
                for name, each in wanted.items()
            }
            body = {"v": VERSION, "folders": folders}
            durable_files.write_atomic(path, json.dumps(body, indent=1).encode())
            _after_write()
    except OSError as error:
        raise Retryable(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}", kind="privacy_unwritable"
        ) from error


def _is_change(folders: Folders, path: str, seen: RememberedFolder) -> bool:
    """Return whether the rule is new or has changed."""
    name = _find_name(folders, path)
    if name is None:
        return True
    known = folders[name]
    return (known.label, known.identity) != (seen.label, seen.identity) or known.marker not in (None, seen.marker)


def _to_remembered(rule: HypignoreRule) -> RememberedFolder:
    try:
        folder_id = folder_identity(rule.path.parent)
    except OSError:
        # The folder disappeared just now: no folder will be the same.
        folder_id = ""
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return RememberedFolder(rule.privacy_class.label, str(rule.path), folder_id, at)


def _is_same(marker: Path, seen: RememberedFolder) -> bool:
    """Return whether the folder in which the file was found still exists."""
    try:
        return folder_identity(marker.parent) == seen.identity
    except (OSError, ValueError):
        return False


def _marker_path(path: str, seen: RememberedFolder) -> str:
    return seen.marker or str(Path(path, hypignore.FILE_NAME))


def _find_name(folders: Folders, path: str) -> str | None:
    return next((name for name in (_path_key(path), _hash_path(path)) if name in folders), None)


def _hash_path(path: str) -> str:
    return _HASH_PREFIX + hashlib.sha256(_path_key(path).encode("utf-8", "surrogatepass")).hexdigest()


def _path_key(path: str) -> str:
    """Return the path in lower case if the file system ignores case."""
    return path.casefold() if sys.platform in ("darwin", "win32") else path


def folder_identity(folder: Path) -> str:
    """Return a text that another folder at the same path does not share; raise OSError if the folder does not exist.

    It consists of the inode and the birth time. The inode alone is not enough, because some file systems reuse it at
    once for a folder that is created in place of a removed one. Linux reports the birth time only through `statx`,
    which Python does not support yet; without a birth time the inode must suffice.
    """
    status: Any = folder.stat()
    birth = getattr(status, "st_birthtime_ns", getattr(status, "st_birthtime", None))
    if birth is None:
        birth = _read_birth_time(folder)
    return f"{status.st_ino}" if birth is None else f"{status.st_ino}@{birth}"


def _read_birth_time(folder: Path) -> str | None:
    statx = _load_statx()
    if statx is None:
        return None
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    if statx(_AT_FDCWD, os.fsencode(folder), 0, _STATX_BTIME, buffer) != 0:
        return None
    (mask,) = struct.unpack_from("=I", buffer, 0)
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BIRTH_OFFSET)
    return f"{seconds}.{nanoseconds:09}" if mask & _STATX_BTIME else None


@cache
def _load_statx() -> Any:
    """Return the C function; None if the system has none."""
    try:
        return ctypes.CDLL(None).statx
    except (OSError, AttributeError):
        return None


Folders = Mapping[str, RememberedFolder]
