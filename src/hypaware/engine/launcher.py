"""Starts the engine of a home as a process of its own, and connects to it.

The engine's stdout and stderr are in `engine/engine.log`.

A flock on `run/engine.lock` ensures one engine per home. The engine holds it, or a caller that is about to start the
engine and passes it the locked descriptor. Acquiring the lock empties the file, and the engine writes its pid to it. So
two engines can never start at the same time, a waiting caller notices the end of an engine as a free lock, and no
leftover file (socket, pid file, lock file) blocks anything.

The engine creates the Unix socket, in the home or, if the path of the home is too long for a socket address, in a
folder in `/tmp`, which is used only if it is private to this user.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hypaware.engine.jobs import JOBS_MODULE
from hypaware.engine.protocol import JobConnection, Message, ProtocolError
from hypaware.errors import NotReady
from hypaware.home import Home, cache_dir, durable_files

if TYPE_CHECKING:
    from subprocess import Popen

    from hypaware.config import Config

GRACE_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0
_BACKLOG: Final = 128
_SOCKET_FOLDER: Final = ("the engine's socket", "engine_socket_unsafe")
LOG_LIMIT: Final = 8 * 1024 * 1024
_LOG_TAIL_BYTES: Final = 2000
# These are sent with each job, and do not apply to the engine process.
_JOB_VARIABLES: Final = ("HYP_CRASH_AT", "HYP_ENGINE", "DEV_RUN_ID")


def check_installed() -> None:
    """Raise NotReady, with the command to run, if the engine could not start."""
    from hypaware.engine import jars, jvm

    jvm.find_java()
    jars.find_installed_jars(cache_dir())


@dataclass(frozen=True)
class Engine:
    """How to start the engine of a home. `check` runs first and may raise NotReady."""

    home: Home
    jobs: str = JOBS_MODULE
    check: Callable[[], None] = check_installed
    inline: Config | None = None
    """The config under which jobs run in this process, without an engine process."""


def engine_log(home: Home) -> Path:
    return home.engine / "engine.log"


def engine_pid_file(home: Home) -> Path:
    return home.run / "engine.pid"


def connect_engine(home: Home) -> tuple[JobConnection, Message] | None:
    """Return a connection and the engine's greeting, or None if no engine is running or it is about to end."""
    path = home.engine_socket
    if not _in_home(home):
        try:
            durable_files.require_private_folder(path.parent, *_SOCKET_FOLDER)
        except FileNotFoundError:
            return None
    with ExitStack() as on_failure:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection = on_failure.enter_context(JobConnection(sock))
        sock.settimeout(ANSWER_SECONDS)
        try:
            sock.connect(str(path))
        except (FileNotFoundError, ConnectionError, BlockingIOError):
            return None
        except PermissionError:
            raise NotReady(
                f"no permission to open the engine's socket {path}; was the engine started by another user?",
                kind="engine_socket_unsafe",
                repair=f"ls -l {path}",
            ) from None
        try:
            greeting = connection.receive()
        except TimeoutError:
            raise NotReady(
                f"the engine of {home.root} does not answer", kind="engine_not_answering", repair="hyp engine stop"
            ) from None
        except (OSError, ProtocolError):
            return None
        if not isinstance(greeting, dict) or greeting["type"] != "hello":
            return None
        sock.settimeout(None)
        on_failure.pop_all()
        return connection, greeting


def ask_to_stop(connection: JobConnection) -> None:
    """Ask an engine to stop after its running jobs, however long they take."""
    with suppress(ConnectionError):
        connection.send({"type": "stop", "grace": None})


def start_engine_process(engine: Engine, lock: int) -> tuple[Popen[bytes], int]:
    """Start the engine, which takes over the home's lock. Return it and the offset of its output in the log."""
    try:
        engine.check()
        home = engine.home
        command = [sys.executable, "-P", "-m", "hypaware.engine.process", "--home", str(home.root)]
        command += ["--jobs", engine.jobs, "--lock-fd", str(lock)]
        return start_detached(command, engine_log(home), LOG_LIMIT, _environment(home), (lock,))
    finally:
        os.close(lock)


def start_detached(
    command: list[str], log: Path, log_limit: int, environment: Mapping[str, str], pass_fds: tuple[int, ...] = ()
) -> tuple[Popen[bytes], int]:
    """Start a process in its own session, in `/`, without stdin. Return it and the offset of its output in `log`.

    The caller must hold the lock of the process, so that no process writes to the log, which is rotated at `log_limit`.
    """
    import subprocess

    durable_files.make_dir(log.parent)
    if log.exists() and log.stat().st_size > log_limit:
        log.replace(log.with_name(f"{log.name}.1"))
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        log_start = os.fstat(fd).st_size
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            cwd="/",
            env=environment,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    finally:
        os.close(fd)
    # A long-running caller must not leave the exited process as a zombie.
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    return process, log_start


def read_log_tail(path: Path, start: int) -> str:
    """Return the end of a log from an offset on."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - _LOG_TAIL_BYTES))
        return log.read().decode(errors="replace").strip() or "(empty)"


def _environment(home: Home) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _JOB_VARIABLES}
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
    return {**kept, "HYP_HOME": str(home.root)}


def listen_on_socket(home: Home) -> socket.socket:
    """Create the socket. The caller must hold the home's lock, so an existing socket is that of a dead engine."""
    path = home.engine_socket
    if _in_home(home):
        durable_files.make_dir(path.parent)
    else:
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)
        durable_files.require_private_folder(path.parent, *_SOCKET_FOLDER)
    path.unlink(missing_ok=True)
    with ExitStack() as on_failure:
        listener = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        on_failure.pop_all()
        return listener


def remove_socket(home: Home) -> None:
    home.engine_socket.unlink(missing_ok=True)
    if not _in_home(home):
        with suppress(OSError):
            home.engine_socket.parent.rmdir()


def _in_home(home: Home) -> bool:
    return home.engine_socket.parent == home.engine
