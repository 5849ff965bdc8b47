"""The engine's interface for other packages: run a job, and show, start or stop the engine of a home.

A job is sent to the running engine of the home. If there is none, it runs in this process under `HYP_ENGINE=inline`, or
else an engine is started. A job that the engine did not accept, because it was about to stop, is sent again. A job that
it accepted and did not finish raises the error `engine_died`; it is never repeated silently.

Every command imports this module, so it must not import anything slow.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypaware.engine import launcher
from hypaware.engine.jobs import OnEvent, ignore_events
from hypaware.engine.launcher import Engine, HandedOver, NotAccepted, call_job
from hypaware.errors import Cancelled, NotReady, Retryable, UsageError
from hypaware.home import Home
from hypaware.home.locks import is_locked, lock_holder, signal_holder

if TYPE_CHECKING:
    from hypaware.config import Config

STOP_SECONDS = 45.0
ATTEMPTS = 50
_POLL_SECONDS = 0.02


def run_job(
    home: Home,
    config: Config,
    name: str,
    args: dict[str, Any],
    on_event: OnEvent = ignore_events,
    *,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Run a job and return its result. Raise its error, or Cancelled after Ctrl-C. Events are passed on this thread."""
    engine = engine or Engine(home)
    chosen = os.environ.get("HYP_ENGINE", "")
    if chosen not in ("", "inline"):
        raise UsageError(f'HYP_ENGINE={chosen} is invalid; set it to "inline" or unset it')
    try:
        for _ in range(ATTEMPTS):
            with suppress(NotAccepted, HandedOver):
                if chosen == "inline":
                    from hypaware.engine import inline

                    return inline.run_inline(engine, config, name, args, on_event)
                with launcher.ensure_engine(engine, on_event) as connection:
                    return call_job(connection, name, args, on_event)
    except KeyboardInterrupt:
        raise Cancelled(f"{name} was cancelled") from None
    raise _never_accepted(home, name)


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
    engine = engine or Engine(home)
    for _ in range(ATTEMPTS):
        with suppress(NotAccepted):
            with launcher.ensure_engine(engine, on_event) as connection:
                call_job(connection, "warm", {}, on_event)
            return engine_status(home)
    raise _never_accepted(home, "warm")


def stop_engine(home: Home) -> bool:
    """Stop the engine and wait until it has ended. Kill it if it does not react. Return False if none was running."""
    if not is_locked(home.engine_lock):
        return False
    asked: int | None = None
    deadline = time.monotonic() + STOP_SECONDS
    while is_locked(home.engine_lock):
        if asked is None:
            asked = _request_stop(home)
        elif lock_holder(home.engine_lock) != asked:
            return True
        if time.monotonic() > deadline:
            pid = asked or lock_holder(home.engine_lock)
            if pid is None:
                raise NotReady(
                    f"{home.engine_lock} is locked by a process that is not an engine", kind="engine_unknown"
                )
            if not signal_holder(home.engine_lock, pid, signal.SIGKILL) and is_locked(home.engine_lock):
                raise NotReady(
                    f"the engine of {home.root} reports process id {pid}, which belongs to another process here: it "
                    "runs in another container or on another machine; stop it there",
                    kind="engine_elsewhere",
                )
        time.sleep(_POLL_SECONDS)
    return True


def _request_stop(home: Home) -> int | None:
    """Ask the engine to stop and return its pid, even if it does not answer. None while it is starting or ending."""
    try:
        if (found := launcher.connect_engine(home)) is None:
            return None
    except NotReady:
        return lock_holder(home.engine_lock)
    connection, greeting = found
    with connection, suppress(ConnectionError):
        connection.send({"type": "stop", "grace": launcher.GRACE_SECONDS})
    return int(greeting["pid"])


def _never_accepted(home: Home, job: str) -> Retryable:
    return Retryable(
        f"the engine of {home.root} repeatedly ended before it accepted {job}; see {launcher.engine_log(home)}",
        kind="engine_failed",
    )
