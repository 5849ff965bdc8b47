"""What everything outside the engine uses of it: run a job, see, start and stop the engine of a home.

A job goes to the live engine of this home; else it runs in this process under `HYP_ENGINE=inline`; else an
engine is started for it. A job that the engine did not take (it was just ending) is sent again; a job that
it took and did not bring to an end is an error `engine_died`, never silently repeated.

Imported by every command: nothing heavy may be imported here.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.engine import launch, singleton
from hypaware.engine.call import HandedOver, NotAccepted, call
from hypaware.engine.jobs import OnEvent, unheard
from hypaware.engine.launch import Engine
from hypaware.engine.protocol import Message, speaks_our_version
from hypaware.errors import Cancelled, NotReady, Retryable, UsageError
from hypaware.home import Home

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
    on_event: OnEvent = unheard,
    *,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Raises what the job raised; Cancelled after Ctrl-C. `on_event` is called on this thread."""
    engine = engine or Engine(home)
    request = {
        "type": "job",
        "job": name,
        "args": args,
        "crash_at": os.environ.get("HYP_CRASH_AT"),
        "run_id": telemetry.dev_run_id(),
    }
    run = _run_inline if _inline_wanted() else _run_in_engine
    try:
        for _ in range(ATTEMPTS):
            with suppress(NotAccepted, HandedOver):
                return run(engine, config, name, request, on_event)
    except KeyboardInterrupt:
        raise Cancelled(f"{name} was cancelled") from None
    raise _never_taken(home, name)


def status(home: Home) -> dict[str, Any]:
    """`{"state": "running", pid, version, jobs, …}`, or `{"state": "stopped" | "not_answering"}`."""
    try:
        found = launch.connect(home)
        if found is None:
            return {"state": "stopped"}
        connection, greeting = found
        with connection:
            connection.socket.settimeout(launch.ANSWER_SECONDS)
            connection.send({"type": "status"})
            answer = connection.receive()
    except ConnectionError:
        return {"state": "stopped"}
    except (NotReady, TimeoutError):
        return {"state": "not_answering", "pid": singleton.holder(home)}
    if not isinstance(answer, dict):
        return {"state": "stopped"}
    return {"state": "running", "pid": greeting["pid"], **answer["status"]}


def start(home: Home, config: Config, on_event: OnEvent = unheard, *, engine: Engine | None = None) -> dict[str, Any]:
    """Starts the engine if there is none and opens Spark in it, so that the next job finds it warm."""
    engine = engine or Engine(home)
    request = {"type": "job", "job": "warm", "args": {}}
    for _ in range(ATTEMPTS):
        with suppress(NotAccepted):
            _run_in_engine(engine, config, "warm", request, on_event)
            return status(home)
    raise _never_taken(home, "warm")


def stop(home: Home) -> bool:
    """Ends the engine and waits until it is gone; one that does not react is killed. False when there was
    none."""
    if not home.engine_lock.exists() or singleton.is_free(home):
        return False
    asked: int | None = None
    deadline = time.monotonic() + STOP_SECONDS
    while not singleton.is_free(home):
        if asked is None:
            asked = _ask_to_stop(home)
        elif singleton.holder(home) != asked:
            return True
        if time.monotonic() > deadline:
            _kill(home, asked or singleton.holder(home))
        time.sleep(_POLL_SECONDS)
    return True


def _inline_wanted() -> bool:
    chosen = os.environ.get("HYP_ENGINE", "")
    if chosen not in ("", "inline"):
        raise UsageError(f'HYP_ENGINE={chosen} is unknown: it is "inline" or not set')
    return chosen == "inline"


def _run_in_engine(engine: Engine, config: Config, name: str, request: Message, on_event: OnEvent) -> dict[str, Any]:
    with launch.ensure(engine, on_event) as connection:
        return call(connection, name, request, on_event)


def _run_inline(engine: Engine, config: Config, name: str, request: Message, on_event: OnEvent) -> dict[str, Any]:
    from hypaware.engine import inline

    # A lake that this very process holds would be waited for in vain by an engine.
    if not inline.owns_lake(engine.home) and (found := launch.connect(engine.home)) is not None:
        connection, greeting = found
        with connection:
            if speaks_our_version(greeting):
                inline.close()
                return call(connection, name, request, on_event)
            launch.retire(connection)
    return inline.run(engine, config, name, request, on_event)


def _ask_to_stop(home: Home) -> int | None:
    """The process that was asked, or that does not listen. None while it is still starting, or ending."""
    try:
        found = launch.connect(home)
    except NotReady:
        return singleton.holder(home)
    if found is None:
        return None
    connection, greeting = found
    with connection, suppress(ConnectionError):
        connection.send({"type": "stop", "grace": launch.GRACE_SECONDS})
    return int(greeting["pid"])


def _kill(home: Home, pid: int | None) -> None:
    if pid is None:
        raise NotReady(f"something holds {home.engine_lock} without being an engine", kind="engine_unknown")
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _never_taken(home: Home, job: str) -> Retryable:
    return Retryable(
        f"engines of {home.root} keep ending before they take {job}; the log is {launch.log_file(home)}",
        kind="engine_failed",
    )
