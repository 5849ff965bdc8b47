"""The engine's unix socket on disk: made by the engine that holds the home's lock, found by its callers.

It lies in the home, or in a folder in the temporary directory where the home's path is too long for a socket
address. Anybody may create names there, so that folder counts only if it is ours alone.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from hypaware import durable
from hypaware.errors import NotReady
from hypaware.home import Home

_BACKLOG = 128


def listen(home: Home) -> socket.socket:
    """Only with the home's lock held: what lies at the path is then left over from a dead engine."""
    path = home.engine_socket
    _make_folder(home, path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def remove(home: Home) -> None:
    home.engine_socket.unlink(missing_ok=True)
    if not _in_home(home):
        with suppress(OSError):
            home.engine_socket.parent.rmdir()


def connect(home: Home, timeout: float) -> socket.socket | None:
    """None when nobody listens."""
    path = home.engine_socket
    if not _in_home(home):
        try:
            _check_ours(path.parent)
        except FileNotFoundError:
            return None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(str(path))
    except (FileNotFoundError, ConnectionError, BlockingIOError):
        sock.close()
        return None
    except PermissionError:
        sock.close()
        raise NotReady(
            f"{path}, the engine's socket, may not be opened by you: was the engine started as another user?",
            kind="engine_socket_unsafe",
            repair=f"ls -l {path}",
        ) from None
    except BaseException:
        sock.close()
        raise
    return sock


def _in_home(home: Home) -> bool:
    return home.engine_socket.parent == home.engine


def _make_folder(home: Home, folder: Path) -> None:
    if _in_home(home):
        durable.make_dir(folder)
        return
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        _check_ours(folder)


def _check_ours(folder: Path) -> None:
    found = folder.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
        return
    raise NotReady(
        f"{folder}, where the engine's socket belongs, is not a private folder of yours; remove it",
        kind="engine_socket_unsafe",
        repair=f"ls -ld {folder}",
    )
