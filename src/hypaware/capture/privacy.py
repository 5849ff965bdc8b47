"""Which class the work in a folder and a session has, and who said so.

Three sources are asked: the nearest `.hypignore` (of a folder that is gone: what it was last seen to say), the folders
of the config (the innermost counts), and the sessions that their user has opted out. The strictest answer counts. Where
nobody says anything the work is `full`.

A live exchange may come before its folder is known. It is judged by its session alone then, as `full` unless the
config's `unknown_folder` is stricter; a record of a hook, or the transcript, tells the folder later, and what has
become of the class by then decides whether the row may leave the machine.

@ref capture#privacy
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.capture import opt_outs, seen_folders
from hypaware.capture.opt_outs import OptOuts
from hypaware.capture.privacy_class import PrivacyClass
from hypaware.capture.seen_folders import SeenFolders
from hypaware.capture.session_folders import SessionFolders
from hypaware.home import Home

if TYPE_CHECKING:
    from hypaware.config import PrivacyConfig


@dataclass(frozen=True)
class Verdict:
    privacy: PrivacyClass
    why: str
    """For its user: the file or the setting that decided."""


BY_SESSION = "hyp session ignore"
_WAS_THERE = ", as it was when its folder was last there"
_NOBODY = Verdict(PrivacyClass.FULL, "nothing says otherwise")


def check(home: Home) -> None:
    """Raises HypError where nobody can say what is private."""
    opt_outs.read(home)
    seen_folders.read(home)


class Privacy:
    def __init__(
        self,
        home: Home,
        folders: Mapping[str, str | PrivacyClass] | None = None,
        unknown_folder: PrivacyClass = PrivacyClass.FULL,
        cwd_of: Callable[[str], str | None] = lambda _session_id: None,
        remembers: bool = False,
    ) -> None:
        """`folders`: paths of the config, `~` allowed, each with its class. `cwd_of`: where a session is at work, for
        what does not say it itself. `remembers`: for who records or delivers; who only looks changes nothing."""
        self._opt_outs = OptOuts(home)
        self._seen = SeenFolders(home, remembers=remembers)
        self._folders = {
            place: (written, each if isinstance(each, PrivacyClass) else PrivacyClass.named(each))
            for written, each in (folders or {}).items()
            for place in _places(str(Path(written).expanduser()))
        }
        self._unknown_folder = unknown_folder
        self._cwd_of = cwd_of

    @classmethod
    def of(cls, home: Home, said: PrivacyConfig, *, remembers: bool = False) -> Privacy:
        """By the config; a session's folder is where its client's hooks noted it."""
        unknown = PrivacyClass.named(said.unknown_folder)
        return cls(home, said.folders, unknown, SessionFolders(home).cwd_of, remembers)

    def class_of(self, cwd: str | None, session_id: str | None) -> PrivacyClass:
        return self.verdict(cwd, session_id).privacy

    def withheld(self, cwd: str | None, session_id: str | None) -> bool:
        """Whether it must not leave this machine."""
        return self.class_of(cwd, session_id) is not PrivacyClass.FULL

    def verdict(self, cwd: str | None, session_id: str | None) -> Verdict:
        if not cwd and session_id:
            cwd = self._cwd_of(session_id)
        said = [self._of_folder(cwd), self._of_session(session_id)]
        return max((each for each in said if each), key=lambda each: each.privacy, default=_NOBODY)

    def _of_session(self, session_id: str | None) -> Verdict | None:
        found = self._opt_outs.class_of(session_id) if session_id else None
        return Verdict(found, BY_SESSION) if found is not None else None

    def _of_folder(self, cwd: str | None) -> Verdict | None:
        if not cwd or not _is_path(cwd):
            return Verdict(self._unknown_folder, "its folder is not known") if self._unknown_folder else None
        said = [self._by_file(cwd), self._by_config(cwd)]
        return max((each for each in said if each), key=lambda each: each.privacy, default=None)

    def _by_file(self, cwd: str) -> Verdict | None:
        said = self._seen.said_of(cwd)
        if said is None:
            return None
        return Verdict(said.privacy, f"{said.path}{_WAS_THERE if said.evidence == 'past' else ''}")

    def _by_config(self, cwd: str) -> Verdict | None:
        if not self._folders:
            return None
        found: list[Verdict] = []
        for place in _places(cwd):
            for each in (place, *map(str, Path(place).parents)):
                if each in self._folders:
                    written, privacy = self._folders[each]
                    found.append(Verdict(privacy, f"privacy.folders in the config: {written}"))
                    break
        return max(found, key=lambda each: each.privacy, default=None)


def _is_path(cwd: str) -> bool:
    """Whether a folder can have such a name."""
    try:
        os.fsencode(cwd)
    except UnicodeEncodeError:
        return False
    return "\0" not in cwd and Path(cwd).is_absolute()


def _places(path: str) -> tuple[str, ...]:
    """A folder as it is written and as it really lies; in small letters where the system does not tell them apart."""
    written = os.path.normpath(path)
    places = dict.fromkeys((written, os.path.realpath(written)))
    if sys.platform in ("darwin", "win32"):
        places = dict.fromkeys(place.casefold() for place in places)
    return tuple(places)
