"""The loop of background tasks: backoff after failures, and errors that are logged once."""

from __future__ import annotations

import asyncio
import logging

import pytest

from hypaware.engine.background import Backoff, run_periodic_task
from hypaware.errors import HypError, Retryable

LOG = logging.getLogger("hypaware.tests")


class ScriptedTask:
    """A task whose checks raise the given errors in order; it is cancelled after the last one."""

    name = "export"
    retry_on = (Retryable,)

    def __init__(self, *outcomes: Exception | None) -> None:
        self._outcomes = list(outcomes)
        self.waits: list[float | None] = []
        self.failures: list[float | None] = []

    async def wait(self, retry_in: float | None) -> None:
        if not self._outcomes:
            raise asyncio.CancelledError
        self.waits.append(retry_in)

    async def check(self) -> None:
        if (error := self._outcomes.pop(0)) is not None:
            raise error

    def record_failure(self, retry_in: float | None) -> None:
        self.failures.append(retry_in)


def run(task: ScriptedTask, backoff: Backoff | None = None) -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run_periodic_task(task, LOG, backoff))


def test_wait_doubles_after_each_retryable_failure_and_resets_after_a_success() -> None:
    task = ScriptedTask(Retryable("busy"), Retryable("busy"), None, Retryable("busy"), None)
    run(task)
    assert task.waits == [None, 1.0, 2.0, None, 1.0]
    assert task.failures == [1.0, 2.0, 1.0]


def test_other_errors_wait_for_the_next_regular_check() -> None:
    task = ScriptedTask(HypError("wrong"), ZeroDivisionError("bug"), None)
    run(task)
    assert task.waits == [None, None, None]
    assert task.failures == [None, None]


def test_repeated_error_is_logged_once_with_its_repair(caplog: pytest.LogCaptureFixture) -> None:
    error = HypError("the sink has no address", repair="hyp config show")
    run(ScriptedTask(error, error, None, error))
    message = "export failed: the sink has no address (try: hyp config show); retrying at the next check"
    assert [record.getMessage() for record in caplog.records] == [message, message], "again after a success"


def test_unexpected_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    run(ScriptedTask(ZeroDivisionError("bug")))
    assert "Traceback" in caplog.text
    assert "export failed: bug; retrying at the next check" in caplog.text
