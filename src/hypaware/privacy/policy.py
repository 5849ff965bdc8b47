"""The privacy policy: which class the work in a folder and session has, and why.

There are three sources: the nearest `.hypignore` (for a missing folder, its last known content), the folders in the
config (the innermost match counts), and the sessions that the user has opted out. The strictest class wins; the default
is `full`.

A live exchange may arrive before its folder is known. Then only its session counts, and the class is `full` unless
`unknown_folder` in the config is stricter. A hook or the transcript supplies the folder later, and the class at that
time decides whether the row may leave the machine.

@ref capture#privacy
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hypaware.home import Home
from hypaware.home.session_context import working_directory
from hypaware.model.privacy_class import PrivacyClass
from hypaware.privacy import folder_memory, ignored_sessions
from hypaware.privacy.folder_memory import FolderMemory
from hypaware.privacy.ignored_sessions import ReloadedFile

if TYPE_CHECKING:
    from hypaware.config import PrivacyConfig


@dataclass(frozen=True)
class PrivacyDecision:
    privacy_class: PrivacyClass
    reason: str
    """The file or setting that decided, for the user to read."""


IGNORED_BY_SESSION = "hyp session ignore"
_REMEMBERED = " (last known content; its folder is missing)"
_DEFAULT = PrivacyDecision(PrivacyClass.FULL, "no rule applies")


def check_privacy_files(home: Home) -> None:
    """Raise HypError if a privacy file cannot be read."""
    ignored_sessions.read_ignored_sessions(home)
    folder_memory.read_folders(home)


class PrivacyPolicy:
    def __init__(
        self,
        home: Home,
        folders: Mapping[str, str | PrivacyClass] | None = None,
        unknown_folder: PrivacyClass = PrivacyClass.FULL,
        find_cwd: Callable[[str], str | None] = lambda _session_id: None,
        remember: bool = False,
    ) -> None:
        """Create a policy.

        `folders` maps paths from the config to their classes; `~` is allowed. `find_cwd` returns the working directory
        of a session for rows that do not name one. With `remember`, the policy stores the `.hypignore` files that it
        finds: use it when you record or deliver, not when you only look.
        """
        self._ignored_sessions = ReloadedFile(
            ignored_sessions.ignored_sessions_path(home), lambda: ignored_sessions.read_ignored_sessions(home)
        )
        self._remembered = FolderMemory(home, remember=remember)
        self._folders = {
            path: (written, each if isinstance(each, PrivacyClass) else PrivacyClass.parse(each))
            for written, each in (folders or {}).items()
            for path in _path_variants(str(Path(written).expanduser()))
        }
        self._unknown_folder = unknown_folder
        self._find_cwd = find_cwd

    @classmethod
    def from_config(cls, home: Home, config: PrivacyConfig, *, remember: bool = False) -> PrivacyPolicy:
        """Create the policy that the config describes; client hooks supply the working directories of sessions."""
        unknown = PrivacyClass.parse(config.unknown_folder)
        return cls(home, config.folders, unknown, partial(working_directory, home), remember)

    def class_of(self, cwd: str | None, session_id: str | None) -> PrivacyClass:
        return self.decide(cwd, session_id).privacy_class

    def is_withheld(self, cwd: str | None, session_id: str | None) -> bool:
        """Return whether it must not leave this machine."""
        return self.class_of(cwd, session_id) is not PrivacyClass.FULL

    def decide(self, cwd: str | None, session_id: str | None) -> PrivacyDecision:
        if not cwd and session_id:
            cwd = self._find_cwd(session_id)
        decisions: list[PrivacyDecision] = []
        if cwd and _is_path(cwd):
            rule = self._remembered.find_rule(cwd)
            if rule is not None:
                note = _REMEMBERED if rule.evidence == "remembered" else ""
                decisions.append(PrivacyDecision(rule.privacy_class, f"{rule.path}{note}"))
            for path in _path_variants(cwd) if self._folders else ():
                nearest = next((each for each in (path, *map(str, Path(path).parents)) if each in self._folders), None)
                if nearest is not None:
                    written, privacy_class = self._folders[nearest]
                    decisions.append(PrivacyDecision(privacy_class, f"privacy.folders in the config: {written}"))
        elif self._unknown_folder:
            decisions.append(PrivacyDecision(self._unknown_folder, "its folder is unknown"))
        if session_id:
            sessions = self._ignored_sessions.get()
            # An unreadable file ignores every session, as an entry without a class does.
            entry = {} if sessions is None else sessions.get(session_id)
            if entry is not None:
                by_session = PrivacyClass.parse(str(entry.get("class", "")))
                decisions.append(PrivacyDecision(by_session, IGNORED_BY_SESSION))
        return max(decisions, key=lambda each: each.privacy_class, default=_DEFAULT)


def _is_path(cwd: str) -> bool:
    """Return whether the text can be the path of a folder."""
    try:
        os.fsencode(cwd)
    except UnicodeEncodeError:
        return False
    return "\0" not in cwd and Path(cwd).is_absolute()


def _path_variants(path: str) -> tuple[str, ...]:
    """Return a path as written and with links resolved; in lower case if the file system ignores case."""
    written = os.path.normpath(path)
    places = dict.fromkeys((written, os.path.realpath(written)))
    if sys.platform in ("darwin", "win32"):
        places = dict.fromkeys(path.casefold() for path in places)
    return tuple(places)
