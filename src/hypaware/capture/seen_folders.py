"""What folders' own files were last seen to say, for when a folder is gone: `<HYP_HOME>/privacy-folders.json`.

    {"v": 1, "folders": {"/home/me/acme": {"class": "local-only", "marker": "/home/me/acme/.hypignore",
                                           "identity": "4711@1769860000.1", "at": "2026-01-31T12:00:00Z"}}}

A `.hypignore` goes with its folder, and the rows that were recorded there stay. So whoever judges for good (capture, a
client's hook, an import, a delivery) writes down each file that it meets, once; what has been said before costs a look
at one small file. It counts where the folder of the file is gone, or is another one than it was (`same_folder`: a disk
that is not mounted, a clone made anew). A folder that is still the same and has no file any more was opened by its
user: it is forgotten.

A folder that was reached by a link, and closed by a file that lies above where the link leads, is written down under
its own name too. Purged folders have the hash of their name here instead of the name (`make_nameless`).

Changed in one durable step, under a lock; read again when it has changed. A file that cannot be read says nothing about
folders that are there, which speak for themselves; of one that is gone nothing is recorded then, and nothing leaves at
all.

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
    "capture.seen-folder.before-write", "what a folder's file says was met, and is not written down"
)
_after_write = faults.point("capture.seen-folder.after-write", "what a folder's file says is durable")


@dataclass(frozen=True)
class Seen:
    word: str
    marker: str | None
    """The file; None where its name was purged, it lay in the folder itself then."""
    identity: str
    """Of the folder that the file lies in."""
    at: str

    @property
    def privacy(self) -> PrivacyClass:
        return PrivacyClass.named(self.word)


Folders = Mapping[str, Seen]


@dataclass(frozen=True)
class Gone:
    """A folder that is kept private although it is not there."""

    folder: str | None
    """None where its name was purged."""
    privacy: PrivacyClass
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
            f"{path} cannot be read, so nothing is exported or imported until it is mended: it says which folders that "
            "are gone were private",
            repair=f"mv {path} {path}.broken",
        ) from error


def gone(home: Home) -> list[Gone]:
    """For their user, the newest first; looked for now."""
    found = []
    for name, seen in sorted(read(home).items(), key=lambda each: each[1].at, reverse=True):
        is_named = not name.startswith(_HASHED)
        if seen.privacy is not PrivacyClass.FULL and (not is_named or not _is_same(Path(_marker(name, seen)), seen)):
            found.append(Gone(name if is_named else None, seen.privacy, seen.at))
    return found


def make_nameless(home: Home, folders: Iterable[str]) -> None:
    """What lies in these folders goes on to count, and its name is not to be found here."""
    roots = [_key(folder) for folder in folders]

    def lies_there(path: str) -> bool:
        return any(_key(path) == root or _key(path).startswith(f"{root}/") for root in roots)

    def changed(now: Folders) -> Folders:
        return {
            _hashed(name) if lies_there(name) else name: replace(seen, marker=None)
            if lies_there(name) or (seen.marker and lies_there(seen.marker))
            else seen
            for name, seen in now.items()
        }

    if path_of(home).exists():
        _change(home, changed)


class SeenFolders:
    def __init__(self, home: Home, *, remembers: bool = False) -> None:
        """`remembers`: what it meets is written down; not by who only looks."""
        self._home, self._remembers = home, remembers
        self._path = path_of(home)
        self._stamp: tuple[int, int, int] | None = None
        self._folders: Folders | None = {}

    def said_of(self, cwd: str) -> Said | None:
        """What the nearest file says, or said when it was last there. The path must be absolute."""
        written = os.path.normpath(cwd)
        found = hypignore.found(written, self._was)
        said = max(found, key=lambda each: each.privacy, default=None)
        if said is not None and self._remembers:
            self._remember(written, said, found)
        return said

    def _was(self, folder: Path) -> PrivacyClass | None:
        """Of a folder in which no file is."""
        folders = self._current()
        if folders is None:
            return None if folder.exists() else PrivacyClass.IGNORE
        name = _name_in(folders, str(folder))
        if name is None:
            return None
        seen = folders[name]
        marker = Path(_marker(str(folder), seen))
        if not _is_same(marker, seen):
            return seen.privacy
        if os.path.lexists(marker):
            # It lies elsewhere, and no link leads there any more.
            return None if os.path.lexists(folder) else seen.privacy
        if self._remembers:
            self._change(lambda now: _without(now, name, seen, marker))
        return None

    def _remember(self, written: str, said: Said, found: Iterable[Said]) -> None:
        folders = self._current()
        if folders is None:
            return
        met = {str(each.path.parent): _seen(each) for each in found if each.evidence == "met"}
        if said.evidence == "met" and not _lies_in(written, str(said.path.parent)):
            met[written] = _seen(said)
        news = {place: seen for place, seen in met.items() if _tells(folders, place, seen)}
        if news:
            self._change(lambda now: _with(now, news))

    def _change(self, change: Callable[[Folders], Folders]) -> None:
        # A home that is not there was removed by its user, or is another machine's.
        if self._home.root.is_dir():
            _change(self._home, change)

    def _current(self) -> Folders | None:
        """None where it cannot be read."""
        try:
            about = self._path.stat()
            stamp = (about.st_ino, about.st_mtime_ns, about.st_size)
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


def _seen(said: Said) -> Seen:
    try:
        which = identity(said.path.parent)
    except OSError:
        # It went in this moment: no folder is the same.
        which = ""
    at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return Seen(said.privacy.word, str(said.path), which, at)


def _tells(folders: Folders, place: str, seen: Seen) -> bool:
    """Whether that is news."""
    name = _name_in(folders, place)
    if name is None:
        return True
    known = folders[name]
    return (known.word, known.identity) != (seen.word, seen.identity) or known.marker not in (None, seen.marker)


def _with(now: Folders, news: Folders) -> Folders:
    changed = dict(now)
    for place, seen in news.items():
        name = _name_in(now, place)
        # A name that was purged does not come back.
        is_nameless = name is not None and name.startswith(_HASHED)
        changed[name or _key(place)] = replace(seen, marker=None) if is_nameless else seen
    return changed


def _without(now: Folders, name: str, seen: Seen, marker: Path) -> Folders:
    """Unless somebody wrote down something else meanwhile."""
    if now.get(name) != seen or os.path.lexists(marker):
        return now
    return {each: kept for each, kept in now.items() if each != name}


def _is_same(marker: Path, seen: Seen) -> bool:
    """Whether the folder that the file was seen in is still there."""
    try:
        return identity(marker.parent) == seen.identity
    except (OSError, ValueError):
        return False


def _marker(place: str, seen: Seen) -> str:
    return seen.marker or str(Path(place, hypignore.NAME))


def _name_in(folders: Folders, place: str) -> str | None:
    return next((name for name in (_key(place), _hashed(place)) if name in folders), None)


def _hashed(place: str) -> str:
    return _HASHED + hashlib.sha256(_key(place).encode("utf-8", "surrogatepass")).hexdigest()


def _key(place: str) -> str:
    """In small letters where the system does not tell them apart."""
    return place.casefold() if sys.platform in ("darwin", "win32") else place


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
    told = asdict(seen)
    return {"class": told.pop("word"), **told}


def _from_json(told: Mapping[str, Any]) -> Seen:
    marker = told["marker"]
    return Seen(str(told["class"]), None if marker is None else str(marker), str(told["identity"]), str(told["at"]))
