"""Remembered `.hypignore` rules of folders, for when a folder is missing: `<HYP_HOME>/privacy-folders.json`.

    {"v": 1, "folders": {"/home/me/acme": {"class": "local-only", "marker": "/home/me/acme/.hypignore",
                                           "identity": "4711@1769860000.1", "at": "2026-01-31T12:00:00Z"}}}

A `.hypignore` disappears with its folder, but the rows that were recorded there remain. So every component that decides
for good (the gateway, a client hook, an import, a delivery) remembers each file that it finds, once; a known rule costs
one look at a small file. A remembered rule counts if the folder of the file is missing or has been replaced by another
one (see `folder_identity`: an unmounted disk, a fresh clone). If the folder is still the same but the file is gone, its
user has removed the rule, and it is forgotten.

If a folder is reached through a link and the file is above the link's target, the rule is also remembered under the
folder's own path. Purged folders are listed by the hash of their path (`forget_names`).

The file is changed atomically and durably, under a lock, and reloaded when it changes. While it is unreadable, existing
folders keep their own rules, nothing is recorded for missing folders, and nothing is exported at all.

@ref capture#privacy
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypaware import durable, faults
from hypaware.capture import hypignore, opt_outs
from hypaware.capture.hypignore import Said
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.capture.same_folder import identity
from hypaware.errors import Retryable
from hypaware.home import Home

VERSION = 1
_HASHED = "sha256:"

_before_write = faults.point(
    "capture.seen-folder.before-write", "the rule of a folder was found and is not remembered yet"
)
_after_write = faults.point("capture.seen-folder.after-write", "the rule of a folder is durable")


@dataclass(frozen=True)
class Seen:
    label: str
    marker: str | None
    """Path of the file; None if it was purged, then the file was in the folder itself."""
    identity: str
    """Identity of the folder that contains the file."""
    at: str

    @property
    def privacy_class(self) -> PrivacyClass:
        return PrivacyClass.parse(self.label)


Folders = Mapping[str, Seen]


@dataclass(frozen=True)
class Gone:
    """A missing folder that is still kept private."""

    folder: str | None
    """None if its path was purged."""
    privacy_class: PrivacyClass
    at: str


def path_of(home: Home) -> Path:
    return home.root / "privacy-folders.json"


def read(home: Home) -> Folders:
    path = path_of(home)
    try:
        found = json.loads(path.read_bytes())
        if found["v"] != VERSION:
            raise ValueError
        return {str(name): _from_json(each) for name, each in found["folders"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise opt_outs.Unreadable(
            f"{path} is unreadable, so nothing is exported or imported until it is repaired: it lists the private "
            "folders that are missing",
            repair=f"mv {path} {path}.broken",
        ) from error


def gone(home: Home) -> list[Gone]:
    """List the missing folders that are private, newest first, as found now."""
    found = []
    for name, seen in sorted(read(home).items(), key=lambda each: each[1].at, reverse=True):
        is_named = not name.startswith(_HASHED)
        if seen.privacy_class is not PrivacyClass.FULL and (
            not is_named or not _is_same(Path(_marker(name, seen)), seen)
        ):
            found.append(Gone(name if is_named else None, seen.privacy_class, seen.at))
    return found


def make_nameless(home: Home, folders: Iterable[str]) -> None:
    """Replace the paths of these folders by their hashes; their rules still count."""
    roots = [_key(folder) for folder in folders]

    def is_inside(path: str) -> bool:
        return any(_key(path) == root or _key(path).startswith(f"{root}/") for root in roots)

    def changed(now: Folders) -> Folders:
        return {
            _hashed(name) if is_inside(name) else name: replace(seen, marker=None)
            if is_inside(name) or (seen.marker and is_inside(seen.marker))
            else seen
            for name, seen in now.items()
        }

    if path_of(home).exists():
        _change(home, changed)


class SeenFolders:
    def __init__(self, home: Home, *, remember: bool = False) -> None:
        """With `remember`, rules that are found are stored; leave it off when you only look."""
        self._home, self._stores = home, remember
        self._path = path_of(home)
        self._stamp: tuple[int, int, int] | None = None
        self._folders: Folders | None = {}

    def find_rule(self, cwd: str) -> Said | None:
        """Return the rule of the nearest file, or its remembered rule. The path must be absolute."""
        written = os.path.normpath(cwd)
        found = hypignore.found(written, self._recall)
        rule = max(found, key=lambda each: each.privacy_class, default=None)
        if rule is not None and self._stores:
            self._remember(written, rule, found)
        return rule

    def _recall(self, folder: Path) -> PrivacyClass | None:
        """Return the remembered class of a folder that contains no file."""
        folders = self._current()
        if folders is None:
            return None if folder.exists() else PrivacyClass.IGNORE
        name = _name_in(folders, str(folder))
        if name is None:
            return None
        seen = folders[name]
        marker = Path(_marker(str(folder), seen))
        if not _is_same(marker, seen):
            return seen.privacy_class
        if os.path.lexists(marker):
            # The file is elsewhere, and no link leads to it any more.
            return None if os.path.lexists(folder) else seen.privacy_class
        if self._stores:
            self._change(lambda now: _without(now, name, seen, marker))
        return None

    def _remember(self, written: str, rule: Said, found: Iterable[Said]) -> None:
        folders = self._current()
        if folders is None:
            return
        rules = {str(each.path.parent): _seen(each) for each in found if each.evidence == "found"}
        if rule.evidence == "found" and not _lies_in(written, str(rule.path.parent)):
            rules[written] = _seen(rule)
        changes = {path: seen for path, seen in rules.items() if _tells(folders, path, seen)}
        if changes:
            self._change(lambda now: _with(now, changes))

    def _change(self, change: Callable[[Folders], Folders]) -> None:
        # A missing home was removed by its user, or belongs to another machine.
        if self._home.root.is_dir():
            _change(self._home, change)

    def _current(self) -> Folders | None:
        """Return the remembered folders; None if the file is unreadable."""
        try:
            status = self._path.stat()
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        except FileNotFoundError:
            return {}
        except OSError:
            return None
        if stamp != self._stamp:
            try:
                self._folders = read(self._home)
            except opt_outs.Unreadable:
                self._folders = None
            self._stamp = stamp
        return self._folders


def _seen(rule: Said) -> Seen:
    try:
        folder_id = identity(rule.path.parent)
    except OSError:
        # The folder disappeared just now: no folder will be the same.
        folder_id = ""
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Seen(rule.privacy_class.label, str(rule.path), folder_id, at)


def _tells(folders: Folders, path: str, seen: Seen) -> bool:
    """Return whether the rule is new or has changed."""
    name = _name_in(folders, path)
    if name is None:
        return True
    known = folders[name]
    return (known.label, known.identity) != (seen.label, seen.identity) or known.marker not in (None, seen.marker)


def _with(now: Folders, changes: Folders) -> Folders:
    changed = dict(now)
    for path, seen in changes.items():
        name = _name_in(now, path)
        # A purged path is not stored again.
        is_nameless = name is not None and name.startswith(_HASHED)
        changed[name or _key(path)] = replace(seen, marker=None) if is_nameless else seen
    return changed


def _without(now: Folders, name: str, seen: Seen, marker: Path) -> Folders:
    """Remove a folder, unless its entry was changed in the meantime."""
    if now.get(name) != seen or os.path.lexists(marker):
        return now
    return {each: kept for each, kept in now.items() if each != name}


def _is_same(marker: Path, seen: Seen) -> bool:
    """Return whether the folder in which the file was found still exists."""
    try:
        return identity(marker.parent) == seen.identity
    except (OSError, ValueError):
        return False


def _marker(path: str, seen: Seen) -> str:
    return seen.marker or str(Path(path, hypignore.NAME))


def _name_in(folders: Folders, path: str) -> str | None:
    return next((name for name in (_key(path), _hashed(path)) if name in folders), None)


def _hashed(path: str) -> str:
    return _HASHED + hashlib.sha256(_key(path).encode("utf-8", "surrogatepass")).hexdigest()


def _key(path: str) -> str:
    """Return the path in lower case if the file system ignores case."""
    return path.casefold() if sys.platform in ("darwin", "win32") else path


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _change(home: Home, change: Callable[[Folders], Folders]) -> None:
    path = path_of(home)
    try:
        with opt_outs.alone(home.root):
            now = read(home)
            wanted = change(now)
            if wanted == now:
                return
            _before_write()
            body = {"v": VERSION, "folders": {name: _as_json(each) for name, each in wanted.items()}}
            durable.write_file(path, json.dumps(body, indent=1).encode())
            _after_write()
    except OSError as error:
        raise Retryable(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}", kind="privacy_unwritable"
        ) from error


def _as_json(seen: Seen) -> dict[str, Any]:
    data = asdict(seen)
    return {"class": data.pop("label"), **data}


def _from_json(data: Mapping[str, Any]) -> Seen:
    marker = data["marker"]
    return Seen(str(data["class"]), None if marker is None else str(marker), str(data["identity"]), str(data["at"]))
