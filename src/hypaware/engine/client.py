"""The caller's side of the engine: runs a job, and shows, starts or stops the engine of a home.

A job is sent to the running engine of the home. If there is none, it runs in this process under `HYP_ENGINE=inline`, or
else an engine is started. A job that the engine did not accept, because it was about to stop, is sent again. A job that
it accepted and did not finish raises the error `engine_died`; it is never repeated silently.

Ctrl-C can arrive while a frame is partly read. So the signal handler only writes to a pipe that the caller polls
together with the socket, and frames are always read completely. Within the caller's `on_event` it interrupts
immediately. The first Ctrl-C cancels the job and waits a short time for its end; the second stops waiting.

Every command imports this module, so it must not import anything slow.

@ref engine#jobs
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hypaware import telemetry
from hypaware.engine import launcher
from hypaware.engine.jobs import OnEvent, ignore_events
from hypaware.engine.launcher import Engine
from hypaware.engine.protocol import JobConnection, Message, ProtocolError, decode_error, is_same_version
from hypaware.errors import Cancelled, NotReady, Retryable, UsageError
from hypaware.home import Home
from hypaware.home.locks import is_locked, lock_holder, signal_holder, try_lock

if TYPE_CHECKING:
    from subprocess import Popen

    from hypaware.config import Config

ATTEMPTS = 50
START_SECONDS: Final = 60.0
CALLER_CANCEL_SECONDS = 5.0
STOP_SECONDS = 45.0
_START_POLL_SECONDS: Final = 0.01
_STOP_POLL_SECONDS: Final = 0.02


class _NotAccepted(Exception):
    """Nothing was done: the engine ended before it accepted the job, or left it to the engine that owns the lake."""


def choose_engine(home: Home, config: Config, engine: Engine | None = None) -> Engine:
    """Return the engine for a command: the one of the home, or this process under `HYP_ENGINE=inline`."""
    engine = engine or Engine(home)
    match os.environ.get("HYP_ENGINE", ""):
        case "":
            return engine
        case "inline":
            return replace(engine, inline=config)
        case invalid:
            raise UsageError(f'HYP_ENGINE={invalid} is invalid; set it to "inline" or unset it')


def ensure_engine(engine: Engine, on_event: OnEvent) -> JobConnection:
    """Return a connection to the engine of this home, and start one if necessary. An engine of another version is
    asked to stop."""
    if engine.inline:
        from hypaware.engine import inline

        return inline.connect(engine, engine.inline)
    home = engine.home
    log = launcher.engine_log(home)
    started: Popen[bytes] | None = None
    log_start = 0
    announced = False
    deadline = time.monotonic() + START_SECONDS
    while True:
        if found := launcher.connect_engine(home):
            connection, greeting = found
            if is_same_version(greeting):
                return connection
            with connection:
                launcher.ask_to_stop(connection)
        if started is not None and (code := started.poll()) is not None:
            if code != 0:
                raise Retryable(
                    f"the engine failed to start ({'exit code' if code > 0 else 'signal'} {abs(code)}). "
                    f"The last lines of {log}:\n{launcher.read_log_tail(log, log_start)}",
                    kind="engine_failed",
                )
            started = None  # it was idle
        if started is None and not found and (lock := try_lock(home.engine_lock, with_pid=False)) is not None:
            started, log_start = launcher.start_engine_process(engine, lock)
        if not announced:
            announced = True
            on_event({"event": "progress", "message": "starting the engine", "done": None, "total": None})
        if time.monotonic() > deadline:
            raise Retryable(
                f"the engine of {home.root} does not answer and does not end; see {log}",
                kind="engine_not_answering",
                repair="hyp engine stop",
            )
        time.sleep(_START_POLL_SECONDS)


def run_job(
    engine: Engine,
    name: str,
    args: dict[str, Any],
    on_event: OnEvent = ignore_events,
    connect: Callable[[Engine, OnEvent], JobConnection] = ensure_engine,
    *,
    cancel_seconds: float = CALLER_CANCEL_SECONDS,
) -> dict[str, Any]:
    """Run a job and return its result. Raise its error, or Cancelled after Ctrl-C. Events are passed on this thread.

    The job is sent over a new connection, until an engine accepts it. After Ctrl-C it gets `cancel_seconds` to end.
    """
    sent_with_it = {"crash_at": os.environ.get("HYP_CRASH_AT"), "run_id": telemetry.dev_run_id()}
    try:
        for _ in range(ATTEMPTS):
            interrupts = _Interrupts(name, cancel_seconds)
            with suppress(_NotAccepted), connect(engine, on_event) as connection, interrupts:
                try:
                    connection.send({"type": "job", "job": name, "args": args, **sent_with_it})
                except ConnectionError:
                    raise _NotAccepted from None
                return _receive_result(connection, name, on_event, interrupts)
    except KeyboardInterrupt:
        raise Cancelled(f"{name} was cancelled") from None
    log = launcher.engine_log(engine.home)
    raise Retryable(
        f"the engine of {engine.home.root} repeatedly ended before it accepted {name}; see {log}", kind="engine_failed"
    )


def _receive_result(connection: JobConnection, job: str, on_event: OnEvent, interrupts: _Interrupts) -> dict[str, Any]:
    """Pass on the events of the job until it has ended."""
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
                raise _NotAccepted
            case _ if not accepted:
                raise _NotAccepted
            case _:
                raise Retryable(
                    f"the engine died while running {job}; no acknowledged data is lost, run the command again",
                    kind="engine_died",
                )


def _cancel(connection: JobConnection, interrupts: _Interrupts) -> Message | None:
    """Cancel the job and return its error. Keep reading, so that a job that is blocked while sending can end."""
    deadline = time.monotonic() + interrupts.cancel_seconds
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

    def __init__(self, job: str, cancel_seconds: float) -> None:
        self._job = job
        self.cancel_seconds = cancel_seconds
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


def engine_status(home: Home) -> dict[str, Any]:
    """Return `{"state": "running", pid, version, jobs, ...}` or `{"state": "stopped" | "not_answering"}`."""
    try:
        if (found := launcher.connect_engine(home)) is None:
            return {"state": "stopped"}
        connection, greeting = found
        with connection:
            connection.socket.settimeout(launcher.ANSWER_SECONDS)
            connection.send({"type": "status"})
            answer = connection.receive()
    except ConnectionError:
        return {"state": "stopped"}
    except (NotReady, TimeoutError):
        return {"state": "not_answering", "pid": lock_holder(home.engine_lock)}
    if not isinstance(answer, dict):
        return {"state": "stopped"}
    return {"state": "running", "pid": greeting["pid"], **answer["status"]}


def start_engine(
    home: Home, config: Config, on_event: OnEvent = ignore_events, *, engine: Engine | None = None
) -> dict[str, Any]:
    """Start the engine if it is not running, and open Spark in it, so that the next job starts fast."""
    run_job(engine or Engine(home), "warm", {}, on_event)
    return engine_status(home)


def stop_engine(home: Home, seconds: float = STOP_SECONDS, grace: float = launcher.GRACE_SECONDS) -> bool:
    """Stop the engine and wait until it has ended. Return False if none was running.

    Its jobs get `grace` seconds to finish. It is killed if it has not ended after `seconds`.
    """
    if not is_locked(home.engine_lock):
        return False
    asked: int | None = None
    killed: int | None = None
    deadline = time.monotonic() + seconds
    while is_locked(home.engine_lock):
        if asked is None:
            asked = _request_stop(home, grace)
        elif lock_holder(home.engine_lock) != asked:
            return True
        if time.monotonic() > deadline:
            pid = asked or lock_holder(home.engine_lock)
            if pid is None:
                raise NotReady(
                    f"{home.engine_lock} is locked by a process that is not an engine", kind="engine_unknown"
                )
            # A killed process closes its files before the last of their locks is released.
            if pid != killed and signal_holder(home.engine_lock, pid, signal.SIGKILL):
                killed = pid
            elif pid != killed and is_locked(home.engine_lock):
                raise NotReady(
                    f"the engine of {home.root} reports process id {pid}, which belongs to another process here: it "
                    "runs in another container or on another machine; stop it there",
                    kind="engine_elsewhere",
                )
        time.sleep(_STOP_POLL_SECONDS)
    return True


def _request_stop(home: Home, grace: float) -> int | None:
    """Ask the engine to stop and return its pid, even if it does not answer. None while it is starting or ending."""
    try:
        if (found := launcher.connect_engine(home)) is None:
            return None
    except NotReady:
        return lock_holder(home.engine_lock)
    connection, greeting = found
    with connection, suppress(ConnectionError):
        connection.send({"type": "stop", "grace": grace})
    return int(greeting["pid"])
