"""Read and replace a client's settings file safely, with edits that can be undone.

A replacement is written next to the file, fsynced and renamed, and only if the file is still the one that was read. A
symbolic link is followed: its target is replaced and the link stays. The mode of the file is kept. A `Splice` records
the position, the removed text and the inserted text of an edit.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hypaware import faults
from hypaware.errors import HypError
from hypaware.home import durable_files
from hypaware.home.durable_files import open_regular_file
from hypaware.home.locks import locked

_MAX_BYTES = 8 << 20
_before_rename = faults.crash_point(
    "clients.settings.before-rename", "a client's new settings are written next to the old ones"
)
FileIdentity = tuple[int, int, int, int] | None


class SettingsRefused(HypError):
    """The file has an unknown form or must not be changed. Nothing was written."""

    kind = "client_settings"


class SettingsChanged(Exception):
    """Another program has written the file since it was read."""


@dataclass(frozen=True)
class SettingsSnapshot:
    path: Path
    """The real file, with links resolved."""
    text: str
    seen: FileIdentity
    """Its identity when it was read; None if there is no file."""
    mode: int = 0o600

    @property
    def exists(self) -> bool:
        return self.seen is not None


def read_settings(path: Path) -> SettingsSnapshot:
    target = Path(os.path.realpath(path))
    try:
        with open_regular_file(target) as file:
            about = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return SettingsSnapshot(target, "", None)
    except OSError as error:
        raise SettingsRefused(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise SettingsRefused(f"{path} is larger than {_MAX_BYTES >> 20} MiB, too large for a settings file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingsRefused(f"{path}, line {line}: not UTF-8 text") from None
    return SettingsSnapshot(target, text, _identity(about), about.st_mode & 0o7777)


def replace_settings(snapshot: SettingsSnapshot, text: str) -> None:
    """Replace the text; raise SettingsChanged, with nothing written, if the file is no longer the one that was read."""
    target = snapshot.path
    if snapshot.exists and not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise SettingsRefused(f"{target} is read-only; make it writable, or ask its administrator to make this change")

    def check() -> None:
        _check_unchanged(snapshot)
        _before_rename()

    try:
        durable_files.make_dir(target.parent)
        with durable_files.replace_atomically(target, before_rename=check) as fd:
            os.fchmod(fd, snapshot.mode)
            durable_files.write_all(fd, text.encode())
    except OSError as error:
        raise _write_error(target, error) from error


def remove_settings(snapshot: SettingsSnapshot) -> None:
    _check_unchanged(snapshot)
    try:
        durable_files.remove_durably(snapshot.path)
    except OSError as error:
        raise _write_error(snapshot.path, error) from error


def _write_error(target: Path, error: OSError) -> SettingsRefused:
    return SettingsRefused(f"cannot write {target}: {error.strerror or error}")


def _check_unchanged(snapshot: SettingsSnapshot) -> None:
    try:
        seen = _identity(snapshot.path.stat())
    except FileNotFoundError:
        seen = None
    if seen != snapshot.seen:
        raise SettingsChanged


def _identity(about: os.stat_result) -> FileIdentity:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


@contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Lock the file's folder, so that concurrent changes wait for each other, even those of two homes."""
    target = Path(os.path.realpath(path))
    with ExitStack() as lock:
        try:
            durable_files.make_dir(target.parent)
            lock.enter_context(locked(target.parent))
        except OSError as error:
            raise _write_error(target, error) from error
        # Remove copies that a killed process left: they may contain secrets.
        for leftover in target.parent.glob(f".{target.name}.????????.tmp"):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)
        yield


@contextmanager
def name_refused_file(path: Path) -> Iterator[None]:
    """Add the path to the message of SettingsRefused: a client's module sees only the text."""
    try:
        yield
    except SettingsRefused as reason:
        if str(path) not in reason.message:
            reason.message = f"{path}: {reason.message}"
        raise


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def diff_text(path: Path, before: str, after: str) -> str:
    """Return a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{path} (before)", f"{path} (after)", lineterm="", n=2
    )
    return "\n".join(lines)


class Splice(NamedTuple):
    at: int
    """Offset in the text that the edit applies to."""
    removed: str
    inserted: str


def apply_splices(text: str, splices: Sequence[Splice]) -> str:
    """Apply the edits in order, each to the result of the one before it."""
    for splice in splices:
        text = text[: splice.at] + splice.inserted + text[splice.at + len(splice.removed) :]
    return text


def undo_splices(text: str, splices: Sequence[Splice]) -> str | None:
    """Return the text before the edits; None if the text is not their result."""
    for splice in reversed(splices):
        end = splice.at + len(splice.inserted)
        if text[splice.at : end] != splice.inserted:
            return None
        text = text[: splice.at] + splice.removed + text[end:]
    return text


def diff_splice(before: str, after: str) -> Splice:
    """Return the edit that turns `before` into `after`."""
    start = _common_length(before, after)
    end = _common_length(before[start:][::-1], after[start:][::-1])
    return Splice(start, before[start : len(before) - end], after[start : len(after) - end])


def _common_length(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
