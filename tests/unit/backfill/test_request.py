"""The steps that a run and a dry run share: the window within retention, and failing providers."""

from __future__ import annotations

import pytest

from hypaware.backfill import registry
from hypaware.backfill.outcome import Outcome
from hypaware.backfill.pinned import Window
from hypaware.backfill.request import attempt, kept_window
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.model.datasets import Dataset


@pytest.fixture
def outcome() -> Outcome:
    entry = registry.providers().get("claude")
    assert entry is not None
    return Outcome(entry)


@pytest.mark.hazard(84)
@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (Window(), Window("2026-10-01T00:00:00.000000Z", None)),
        (Window("2026-09-01T00:00:00.000000Z", "2026-12-01"), Window("2026-10-01T00:00:00.000000Z", "2026-12-01")),
        (Window("2026-11-01T00:00:00.000000Z"), Window("2026-11-01T00:00:00.000000Z")),
    ],
)
def test_expired_days_are_outside_every_window(asked: Window, kept: Window) -> None:
    assert kept_window(asked, "2026-10-01") == kept
    assert kept_window(asked, None) == asked


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    "error", [RuntimeError("x"), SystemExit(0), OSError(28, "no space"), HypError("no", kind="odd")]
)
def test_any_exception_of_a_provider_fails_only_that_provider(outcome: Outcome, error: BaseException) -> None:
    def fails(_: Dataset) -> None:
        raise error

    attempt(outcome, "ai_gateway_messages", fails)
    assert outcome.error is not None
    assert outcome.as_json()["status"] == "failed"


def test_an_unregistered_dataset_fails_the_provider(outcome: Outcome) -> None:
    attempt(outcome, "nobodys", lambda _: None)
    assert outcome.error is not None
    assert outcome.error.kind == "dataset_not_registered"


@pytest.mark.parametrize("error", [Cancelled(), Retryable("gone", kind="engine_died"), ConnectionRefusedError()])
def test_a_cancelled_run_and_a_dead_engine_end_the_whole_import(outcome: Outcome, error: Exception) -> None:
    def fails(_: Dataset) -> None:
        raise error

    with pytest.raises((Cancelled, Retryable)):
        attempt(outcome, "ai_gateway_messages", fails)
    assert outcome.error is None
