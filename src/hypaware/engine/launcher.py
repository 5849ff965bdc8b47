"""The caller's side of the engine: finds or starts the engine of a home, sends it a job, and waits for the result.

The engine's stdout and stderr are in `engine/engine.log`.

A flock on `run/engine.lock` ensures one engine per home. The engine holds it, or a caller that is about to start the
engine and passes it the locked descriptor. Acquiring the lock empties the file, and the engine writes its pid to it. So
two engines can never start at the same time, a waiting caller notices the end of an engine as a free lock, and no
leftover file (socket, pid file, lock file) blocks anything.

The engine creates the Unix socket, in the home or, if the path of the home is too long for a socket address, in a
folder in `/tmp`, which is used only if it is private to this user.

`call_job` sends a request, forwards the events of the job, and returns its result or raises its error. Ctrl-C can
arrive while a frame is partly read. So the signal handler only writes to a pipe that the caller polls together with the
socket, and frames are always read completely. Within the caller's `on_event` it interrupts at once. The first Ctrl-C
cancels the job and waits a short time for its end; the second stops waiting.

@ref engine#jobs
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hypaware import telemetry
from hypaware.engine.jobs import JOBS_MODULE, OnEvent
from hypaware.engine.protocol import JobConnection, Message, ProtocolError, decode_error, is_same_version
from hypaware.errors import Cancelled, NotReady, Retryable
from hypaware.home import Home, cache_dir, durable_files
from hypaware.home.locks import try_lock

if TYPE_CHECKING:
    from subprocess import Popen

START_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 20.0
CALLER_CANCEL_SECONDS = 5.0
_POLL_SECONDS: Final = 0.01
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


def ensure_engine(engine: Engine, on_event: OnEvent) -> JobConnection:
    """Return a connection to the engine of this home, and start one if necessary. An engine of another version is
    asked to stop."""
    home = engine.home
    log = engine_log(home)
    started: Popen[bytes] | None = None
    log_start = 0
    announced = False
    deadline = time.monotonic() + START_SECONDS
    while True:
        if found := connect_engine(home):
            connection, greeting = found
            if is_same_version(greeting):
                return connection
            with connection:
                ask_to_stop(connection)
        if started is not None and (code := started.poll()) is not None:
            if code != 0:
                raise Retryable(
                    f"the engine failed to start ({'exit code' if code > 0 else 'signal'} {abs(code)}). "
                    f"The last lines of {log}:\n{_read_tail(log, log_start)}",
                    kind="engine_failed",
                )
            started = None  # it was idle
        if started is None and not found and (lock := try_lock(home.engine_lock, with_pid=False)) is not None:
            try:
                engine.check()
                command = [sys.executable, "-P", "-m", "hypaware.engine.process", "--home", str(home.root)]
                command += ["--jobs", engine.jobs, "--lock-fd", str(lock)]
                started, log_start = start_detached(command, log, LOG_LIMIT, _environment(home), (lock,))
            finally:
                os.close(lock)
        if not announced:
            announced = True
            on_event({"event": "progress", "message": "starting the engine", "done": None, "total": None})
        if time.monotonic() > deadline:
            raise Retryable(
                f"the engine of {home.root} does not answer and does not end; see {log}",
                kind="engine_not_answering",
                repair="hyp engine stop",
            )
        time.sleep(_POLL_SECONDS)


def ask_to_stop(connection: JobConnection) -> None:
    """Ask an engine to stop after its running jobs, however long they take."""
    with suppress(ConnectionError):
        connection.send({"type": "stop", "grace": None})


def start_detached(
    command: list[str], log: Path, log_limit: int, environment: Mapping[str, str], pass_fds: tuple[int, ...] = ()
) -> tuple[Popen[bytes], int]:
    """Start a process in its own session, in `/`, without stdin. Return it and the offset of its output in `log`.

    The caller must hold the lock of the process, so that nobody writes to the log, which is rotated at `log_limit`.
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


def _read_tail(path: Path, start: int) -> str:
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start, size - _LOG_TAIL_BYTES))
        return log.read().decode(errors="replace").strip() or "(empty)"


def _environment(home: Home) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _JOB_VARIABLES}
    if path := kept.get("PYTHONPATH"):
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(part).absolute()) for part in path.split(os.pathsep) if part)
    return {**kept, "HYP_HOME": str(home.root)}


class NotAccepted(Exception):
    """The engine ended before it accepted the job. Nothing was done, and the job can be sent again."""


class HandedOver(Exception):
    """Nothing was done here. The job must be sent to the engine that owns the lake."""


def call_job(connection: JobConnection, job: str, args: dict[str, Any], on_event: OnEvent) -> dict[str, Any]:
    crash_at, run_id = os.environ.get("HYP_CRASH_AT"), telemetry.dev_run_id()
    with _Interrupts(job) as interrupts:
        try:
            connection.send({"type": "job", "job": job, "args": args, "crash_at": crash_at, "run_id": run_id})
        except ConnectionError:
            raise NotAccepted from None
        accepted = False
        while True:
            try:
                message = connection.receive(lambda: interrupts.wait(connection.socket))
                if isinstance(message, bytes):
                    with interrupts.immediately():
                        on_event(message)
                    continue
                if message and message["type"] in ("progress", "note"):
                    with interrupts.immediately():
                        on_event({"event": message.pop("type"), **message})
                    continue
            except ProtocolError:
                message = None
            except BaseException as error:
                failure = _cancel(connection, interrupts)
                if isinstance(error, KeyboardInterrupt) and failure is not None:
                    # The job reports what it did before.
                    raise decode_error(failure) from None
                raise
            match message or {}:
                case {"type": "accepted"}:
                    accepted = True
                case {"type": "result", "result": dict() as result}:
                    return result
                case dict({"type": "error"}) as failure:
                    raise decode_error(failure)
                case {"type": "handover"}:
                    raise HandedOver
                case _ if not accepted:
                    raise NotAccepted
                case _:
                    raise Retryable(
                        f"the engine died while running {job}; no acknowledged data is lost, run the command again",
                        kind="engine_died",
                    )


def _cancel(connection: JobConnection, interrupts: _Interrupts) -> Message | None:
    """Cancel the job and return its error. Keep reading, so that a job that is blocked while sending can end."""
    deadline = time.monotonic() + CALLER_CANCEL_SECONDS
    try:
        connection.send({"type": "cancel"})
        while True:
            match connection.receive(lambda: interrupts.wait(connection.socket, deadline)):
                case dict({"type": "error"}) as failure:
                    return failure
                case None | {"type": "result" | "refused" | "handover"}:
                    return None
    except (ConnectionError, TimeoutError, ProtocolError):
        return None


class _Interrupts:
    """Turns Ctrl-C during a call into Cancelled, unless SIGINT is ignored or the call is outside the main thread."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._pipe: tuple[int, int] | None = None
        self._previous_handler: Any = None
        self._immediate = False

    def __enter__(self) -> _Interrupts:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            self._previous_handler = signal.signal(signal.SIGINT, lambda *_: self._interrupted())
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._pipe is not None:
            signal.signal(signal.SIGINT, self._previous_handler)
            for end in self._pipe:
                os.close(end)
        if isinstance(error, KeyboardInterrupt):
            raise Cancelled(f"{self._job} was cancelled") from None

    def _interrupted(self) -> None:
        if self._immediate:
            raise KeyboardInterrupt
        assert self._pipe is not None
        os.write(self._pipe[1], b"\0")

    @contextmanager
    def immediately(self) -> Iterator[None]:
        self._immediate = True
        try:
            self._raise_pending()
            yield
        finally:
            self._immediate = False

    def wait(self, sock: socket.socket, deadline: float | None = None) -> None:
        """Wait until the socket is readable. Raise KeyboardInterrupt on Ctrl-C, or TimeoutError at the deadline."""
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        if self._pipe is not None:
            poll.register(self._pipe[0], select.POLLIN)
        left = None if deadline is None else 1000 * max(0.0, deadline - time.monotonic())
        if not poll.poll(left):
            raise TimeoutError
        self._raise_pending()

    def _raise_pending(self) -> None:
        if self._pipe is not None:
            with suppress(BlockingIOError):
                os.read(self._pipe[0], 1)
                raise KeyboardInterrupt


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
