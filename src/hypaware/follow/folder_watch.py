"""Watch folders for changed files: notifications of the operating system, or polling where there are none.

A network file system does not report the changes of other machines, and the number of notifications is limited
(`fs.inotify.max_user_watches`). Such folders are polled, and `polling_reason` says why.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from watchfiles import Change
from watchfiles._rust_notify import RustNotify

from hypaware.home.durable_files import NETWORK_FILE_SYSTEMS, file_system_type

_STEP_MILLISECONDS = 50
_DEBOUNCE_MILLISECONDS = 200
# Polling 5,000 files takes about 15 ms, so this is about 1 % of a core.
_POLL_MILLISECONDS = 1500
Identity = tuple[int, int] | None


def identify(folder: Path) -> Identity:
    """Return device and inode of a folder, or None if it is not there."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class FolderWatch:
    """Watches some folders, which exist, with everything below them."""

    def __init__(self, folders: Iterable[Path], *, polling_reason: str | None = None) -> None:
        """Raise OSError if the folders cannot be watched. With a reason, poll."""
        self.folders = {folder: identify(folder) for folder in folders}
        self.polling_reason = polling_reason or next(filter(None, map(_network_reason, self.folders)), None)
        paths = [str(folder) for folder in self.folders]
        if self.polling_reason is None:
            try:
                self._notify = RustNotify(paths, False, False, 0, True, True)
                return
            except (OSError, RuntimeError) as error:
                self.polling_reason = f"notifications are not available: {error}"
        self._notify = RustNotify(paths, False, True, _POLL_MILLISECONDS, True, True)

    def wait(self, seconds: float, stop: threading.Event) -> set[tuple[Path, bool]]:
        """Return the changed paths, each with whether it was removed; empty after some seconds without a change."""
        milliseconds = max(1, round(seconds * 1000))
        found = self._notify.watch(_DEBOUNCE_MILLISECONDS, _STEP_MILLISECONDS, milliseconds, stop)
        if not isinstance(found, set):
            return set()
        return {(Path(path), change == Change.deleted) for change, path in found}

    def is_current(self) -> bool:
        """Return whether the folders are still those that are watched."""
        return all(identify(folder) == identity for folder, identity in self.folders.items())

    def close(self) -> None:
        with suppress(Exception):
            self._notify.close()


def _network_reason(folder: Path) -> str | None:
    kind = file_system_type(folder)
    return f"{folder} is on a network file system ({kind})" if kind in NETWORK_FILE_SYSTEMS else None
