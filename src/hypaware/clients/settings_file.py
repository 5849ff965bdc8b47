"""Read and replace a client's settings file safely.

A replacement is written next to the file, fsynced and renamed, and only if the file is still the one that was read. A
symbolic link is followed: its target is replaced and the link stays. The mode of the file is kept.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hypaware import durable, faults
from hypaware.errors import HypError
from hypaware.regular import open_regular

_MAX_BYTES = 8 << 20

_before_rename = faults.point(
    "clients.settings.before-rename", "a client's new settings are written next to the old ones"
)


class Refused(HypError):
    """The file has an unknown form or must not be changed. Nothing was written."""

    kind = "client_settings"


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the path to the message of Refused: a client's module sees only the text."""
    try:
        yield
    except Refused as reason:
        if str(path) not in reason.message:
            reason.message = f"{path}: {reason.message}"
        raise


class Changed(Exception):
    """Another program has written the file since it was read."""


Seen = tuple[int, int, int, int] | None


@dataclass(frozen=True)
class Snapshot:
    path: Path
    """The real file, with links resolved."""
    text: str
    seen: Seen
    """Its identity when it was read; None if there is no file."""
    mode: int = 0o600

    @property
    def exists(self) -> bool:
        return self.seen is not None


def read(path: Path) -> Snapshot:
    target = Path(os.path.realpath(path))
    try:
        with open_regular(target) as file:
            about = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return Snapshot(target, "", None)
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise Refused(f"{path} is larger than {_MAX_BYTES >> 20} MiB, too large for a settings file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Refused(f"{path}, line {line}: not UTF-8 text") from None
    return Snapshot(target, text, _identity(about), about.st_mode & 0o7777)


def replace(snapshot: Snapshot, text: str) -> None:
    """Replace the text; raise Changed, with nothing written, if the file is no longer the one that was read."""
    target = snapshot.path
    if snapshot.exists and not os.access(target, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
        raise Refused(f"{target} is read-only; make it writable, or ask its administrator to make this change")
    try:
        _replace(snapshot, target, text)
    except OSError as error:
        raise _unwritable(target, error) from error


def _replace(snapshot: Snapshot, target: Path, text: str) -> None:
    durable.make_dir(target.parent)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.fchmod(fd, snapshot.mode)
            durable.write_all(fd, text.encode())
            durable.fsync_fd(fd)
        finally:
            os.close(fd)
        _check(snapshot)
        _before_rename()
        durable.rename(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove(snapshot: Snapshot) -> None:
    _check(snapshot)
    try:
        durable.remove(snapshot.path)
    except OSError as error:
        raise _unwritable(snapshot.path, error) from error


def _unwritable(target: Path, error: OSError) -> Refused:
    return Refused(f"cannot write {target}: {error.strerror or error}")


def _check(snapshot: Snapshot) -> None:
    try:
        seen = _identity(snapshot.path.stat())
    except FileNotFoundError:
        seen = None
    if seen != snapshot.seen:
        raise Changed


def _identity(about: os.stat_result) -> Seen:
    return about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Lock the file's folder, so that concurrent changes wait for each other, even those of two homes."""
    target = Path(os.path.realpath(path))
    try:
        durable.make_dir(target.parent)
        fd = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        # Remove copies that a killed process left: they may contain secrets.
        for leftover in target.parent.glob(f".{target.name}.????????.tmp"):
            with suppress(OSError):
                leftover.unlink(missing_ok=True)
        yield
    finally:
        os.close(fd)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def diff(path: Path, before: str, after: str) -> str:
    """Return a unified diff."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{path} (before)", f"{path} (after)", lineterm="", n=2
    )
    return "\n".join(lines)
