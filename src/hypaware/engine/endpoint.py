"""The engine's Unix socket. The engine that holds the home's lock creates it, and callers connect to it.

It is in the home or, if the path of the home is too long for a socket address, in a folder in `/tmp`. Any user can
create files there, so that folder is used only if it is private to this user.
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
    """Create the socket. The caller must hold the home's lock, so an existing socket is that of a dead engine."""
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
    """Connect to the engine, or return None if it is not listening."""
    path = home.engine_socket
    if not _in_home(home):
        try:
            _require_private(path.parent)
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
            f"no permission to open the engine's socket {path}; was the engine started by another user?",
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
        _require_private(folder)


def _require_private(folder: Path) -> None:
    status = folder.lstat()
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
        return
    raise NotReady(
        f"{folder}, the folder of the engine's socket, is not private to you; remove it",
        kind="engine_socket_unsafe",
        repair=f"ls -ld {folder}",
    )
