"""The steps that a run and a dry run share: the window within retention, and failing providers."""

from __future__ import annotations

import pytest

from hypaware.backfill import providers
from hypaware.backfill.import_job import run_providers
from hypaware.backfill.report import ImportReport, isolate_failure
from hypaware.backfill.request import ImportArguments
from hypaware.backfill.survey import clip_to_retention
from hypaware.clients.reader import TimeWindow
from hypaware.errors import Cancelled, HypError, Retryable
from hypaware.model.datasets import Dataset


@pytest.fixture
def outcome() -> ImportReport:
    entry = providers.load_providers().get("claude")
    assert entry is not None
    return ImportReport(entry)


@pytest.mark.hazard(84)
@pytest.mark.parametrize(
    ("requested", "kept"),
    [
        (TimeWindow(), TimeWindow("2026-10-01T00:00:00.000000Z", None)),
        (
            TimeWindow("2026-09-01T00:00:00.000000Z", "2026-12-01"),
            TimeWindow("2026-10-01T00:00:00.000000Z", "2026-12-01"),
        ),
        (TimeWindow("2026-11-01T00:00:00.000000Z"), TimeWindow("2026-11-01T00:00:00.000000Z")),
    ],
)
def test_expired_days_are_outside_every_window(requested: TimeWindow, kept: TimeWindow) -> None:
    assert clip_to_retention(requested, "2026-10-01") == kept
    assert clip_to_retention(requested, None) == requested


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.hazard(48)
@pytest.mark.parametrize(
    "error", [RuntimeError("x"), SystemExit(0), OSError(28, "no space"), HypError("no", kind="odd")]
)
def test_any_exception_of_a_provider_fails_only_that_provider(outcome: ImportReport, error: BaseException) -> None:
    with isolate_failure(outcome, "ai_gateway_messages"):
        fail(error)
    assert outcome.error is not None
    assert outcome.as_json()["status"] == "failed"


def test_an_unregistered_dataset_fails_the_provider(outcome: ImportReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(outcome.entry.provider), "datasets", ("nobodys",))
    request = ImportArguments(["claude"])
    (report,) = run_providers(request, lambda *_: None, dry_run=True)["providers"]
    assert report["error"]["kind"] == "dataset_not_registered"


@pytest.mark.parametrize("error", [Cancelled(), Retryable("gone", kind="engine_died"), ConnectionRefusedError()])
def test_a_cancelled_run_and_a_dead_engine_end_the_whole_import(outcome: ImportReport, error: Exception) -> None:
    with pytest.raises((Cancelled, Retryable)), isolate_failure(outcome, "ai_gateway_messages"):
        fail(error)
    assert outcome.error is None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (1200, "cancelled; 1,200 rows of 1 session were committed and are kept. Run hyp backfill again to continue"),
        (0, "cancelled; nothing was committed yet. Run hyp backfill again to start over"),
    ],
)
def test_a_cancelled_import_says_how_much_it_keeps(rows: int, message: str) -> None:
    def commit_and_cancel(report: ImportReport, _: Dataset) -> None:
        report.rows.written += rows
        report.sessions |= {"s-1"} if rows else set()
        raise Cancelled

    request = ImportArguments(["claude"])
    with pytest.raises(Cancelled) as raised:
        run_providers(request, commit_and_cancel, dry_run=False)
    assert raised.value.message == message
