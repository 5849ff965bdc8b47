from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from hypaware import telemetry
from hypaware.errors import Cancelled, StateError
from hypaware.home import Home

JOINING = {"dev_run_id", "hyp_component", "hyp_operation", "status"}


@pytest.fixture
def on(home: Home, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    monkeypatch.setenv("DEV_RUN_ID", "run-1")
    telemetry.configure(home.telemetry)
    return home


def records(home: Home, what: str) -> list[dict[str, Any]]:
    telemetry.flush()
    path = home.telemetry / f"{what}-{os.getpid()}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_telemetry_is_off_by_default_and_writes_nothing(home: Home) -> None:
    telemetry.configure(home.telemetry)

    with telemetry.span("cache.flush", component="lake") as span:
        span.set(rows=1)
        span.status("skipped")
        telemetry.event("backfill.start")
        telemetry.count("hyp_rows_written", 1)
    telemetry.flush()

    assert not home.root.exists()


def test_opentelemetry_is_not_imported_while_off() -> None:
    script = textwrap.dedent(
        """
        import sys
        from hypaware import telemetry
        from hypaware.home import Home

        telemetry.configure(Home.from_environment().telemetry)
        with telemetry.span("a", component="b"):
            telemetry.count("hyp_rows_written", 1)
        telemetry.close()
        print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HYP_DEV_TELEMETRY", "OTEL_EXPORTER_OTLP_ENDPOINT")
    }

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)

    assert done.stdout.strip() == "[]"


def test_exception_propagates_through_a_disabled_span(home: Home) -> None:
    with pytest.raises(StateError), telemetry.span("a", component="b"):
        raise StateError("x")


def test_span_is_one_line_with_correlation_keys_and_attributes(on: Home) -> None:
    with telemetry.span("cache.flush", component="lake", operation="flush", hyp_dataset="d") as span:
        span.set(row_count=7)

    (line,) = records(on, "traces")
    assert line["name"] == "cache.flush"
    assert {key: line[key] for key in JOINING} == {
        "dev_run_id": "run-1",
        "hyp_component": "lake",
        "hyp_operation": "flush",
        "status": "ok",
    }
    assert line["attributes"]["hyp_dataset"] == "d"
    assert line["attributes"]["row_count"] == 7
    assert line["attributes"]["dev_run_id"] == "run-1"
    assert line["start_time"] <= line["end_time"]


def test_dev_files_ignore_sampling(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(home.telemetry)
    with telemetry.span("a", component="b"):
        pass

    assert len(records(home, "traces")) == 1


def test_nested_spans_have_a_parent(on: Home) -> None:
    with telemetry.span("outer", component="lake"), telemetry.span("inner", component="spool"):
        pass
    with telemetry.span("next", component="lake"):
        pass

    inner, outer, after = records(on, "traces")
    assert inner["parent_span_id"] == outer["span_id"]
    assert inner["trace_id"] == outer["trace_id"]
    assert outer["parent_span_id"] is None
    assert after["trace_id"] != outer["trace_id"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (StateError("the message is a secret"), "failed", "state"),
        (ValueError("the message is a secret"), "failed", "ValueError"),
        (Cancelled(), "cancelled", "cancelled"),
        (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt"),
    ],
)
def test_exception_marks_its_span_without_its_text_and_propagates(
    on: Home, error: BaseException, status: str, kind: str
) -> None:
    with pytest.raises(type(error)) as caught, telemetry.span("a", component="b"):
        raise error

    assert caught.value is error
    (line,) = records(on, "traces")
    assert (line["status"], line["attributes"]["error_kind"]) == (status, kind)
    assert "secret" not in json.dumps(line)


@pytest.mark.parametrize("status", ["skipped", "degraded", "failed"])
def test_span_status_can_be_set(on: Home, status: telemetry.Status) -> None:
    with telemetry.span("a", component="b") as span:
        span.status(status)

    assert records(on, "traces")[0]["status"] == status


def test_event_belongs_to_its_enclosing_span(on: Home) -> None:
    with telemetry.span("backfill.start", component="backfill", operation="run"):
        telemetry.event("backfill.provider_error", status="failed", provider="claude")
    telemetry.event("backfill.finish", hyp_component="backfill", hyp_operation="run", total_items=3)

    inside, outside = records(on, "logs")
    (span,) = records(on, "traces")
    assert inside["name"] == "backfill.provider_error"
    assert (inside["severity"], inside["status"]) == ("ERROR", "failed")
    assert (inside["hyp_component"], inside["hyp_operation"]) == ("backfill", "run")
    assert inside["span_id"] == span["span_id"]
    assert outside["span_id"] is None
    assert (outside["hyp_component"], outside["attributes"]["total_items"]) == ("backfill", 3)


def test_metric_lines_add_up(on: Home) -> None:
    telemetry.count("hyp_rows_written", 5, hyp_dataset="d")
    records(on, "metrics")
    telemetry.count("hyp_rows_written", 6, hyp_dataset="d")
    with telemetry.span("cache.flush", component="lake", operation="flush"):
        telemetry.record("hyp_flush_seconds", 0.5)
    telemetry.gauge("hyp_spool_bytes", 4096)

    lines = records(on, "metrics")
    by_name = {name: [line for line in lines if line["name"] == name] for name in {x["name"] for x in lines}}
    assert sum(line["value"] for line in by_name["hyp_rows_written"]) == 11
    assert {line["attributes"]["hyp_dataset"] for line in by_name["hyp_rows_written"]} == {"d"}
    (seconds,) = by_name["hyp_flush_seconds"]
    assert (seconds["kind"], seconds["count"], seconds["sum"], seconds["hyp_component"]) == (
        "histogram",
        1,
        0.5,
        "lake",
    )
    assert by_name["hyp_spool_bytes"][-1]["value"] == 4096
    assert all(set(line) >= JOINING and None not in (line[key] for key in JOINING) for line in lines)


def test_keys_are_snake_case_and_values_short_and_plain(on: Home) -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    with telemetry.span("a", component="b") as span:
        span.set(text="x" * 2000, rowCount=1, huge=2**80, odd=Odd(), nothing=None, items=["y" * 2000, 3])
        span.set(**{"a.b-c": 1, "größe": 2})

    attributes = records(on, "traces")[0]["attributes"]
    assert attributes["text"] == "x" * 512
    assert attributes["row_count"] == 1
    assert attributes["huge"] == str(2**80)
    assert attributes["odd"] == "odd"
    assert attributes["items"] == ["y" * 512, "3"]
    assert (attributes["a_b_c"], attributes["gr_e"]) == (1, 2)
    assert "nothing" not in attributes
    assert all(key.replace("_", "").isalnum() and key == key.lower() and key.isascii() for key in attributes)


def test_value_that_cannot_be_converted_does_not_affect_the_caller(on: Home) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no text of me")

    with telemetry.span("a", component="b", bad=Hostile()) as span:
        span.set(bad=Hostile())
        telemetry.event("e", bad=Hostile())
        telemetry.count("hyp_rows_written", 1, bad=Hostile())
        telemetry.count("no_such_metric", 1)  # type: ignore[arg-type]
    telemetry.event("later")
    assert [each["name"] for each in records(on, "logs")] == ["later"]


def test_unwritable_folder_does_not_affect_the_caller(
    home: Home, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    home.root.mkdir()
    home.telemetry.write_text("a file where the folder should be")
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(home.telemetry)

    with telemetry.span("a", component="b"):
        telemetry.event("e")
        telemetry.count("hyp_rows_written", 1)
    telemetry.flush()
    telemetry.close()

    assert capfd.readouterr().err == ""


def test_files_are_readable_only_by_their_owner(on: Home) -> None:
    with telemetry.span("a", component="b"):
        telemetry.event("e")
        telemetry.count("hyp_rows_written", 1)
    telemetry.flush()

    files = sorted(on.telemetry.iterdir())
    assert [file.name for file in files] == [f"{what}-{os.getpid()}.jsonl" for what in ("logs", "metrics", "traces")]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert on.telemetry.stat().st_mode & 0o777 == 0o700


def test_run_id_is_generated_if_none_is_given(home: Home) -> None:
    made_up = telemetry.dev_run_id()

    assert made_up.startswith("bf-")
    assert telemetry.dev_run_id() == made_up


def test_job_has_the_run_id_of_the_requesting_command(on: Home) -> None:
    def job(run_id: str) -> None:
        with telemetry.use_run_id(run_id), telemetry.span(run_id, component="engine"):
            telemetry.count("hyp_rows_written", 1)

    threads = [threading.Thread(target=job, args=(f"job-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with telemetry.span("run-1", component="engine"):
        pass

    spans = records(on, "traces")
    assert len(spans) == 5
    assert all(line["dev_run_id"] == line["name"] for line in spans)
    assert {line["dev_run_id"] for line in records(on, "metrics")} == {f"job-{n}" for n in range(4)}


def test_all_records_are_on_disk_after_exit(home: Home, tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        from hypaware import telemetry
        from hypaware.home import Home

        telemetry.configure(Home.from_environment().telemetry)
        telemetry.count("hyp_rows_written", 3)
"""
    )
    environment = {**os.environ, "HYP_HOME": str(home.root), "HYP_DEV_TELEMETRY": "1", "DEV_RUN_ID": "r"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)

    (file,) = home.telemetry.iterdir()
    line = json.loads(file.read_text())
    assert (line["name"], line["value"], line["dev_run_id"]) == ("hyp_rows_written", 3, "r")


def test_finished_span_survives_a_kill(home: Home) -> None:
    script = textwrap.dedent(
        """
        import os, signal
        from hypaware import telemetry
        from hypaware.home import Home

        telemetry.configure(Home.from_environment().telemetry)
        with telemetry.span("last.words", component="lake"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
"""
    )
    environment = {**os.environ, "HYP_HOME": str(home.root), "HYP_DEV_TELEMETRY": "1"}
    subprocess.run([sys.executable, "-c", script], env=environment)

    (file,) = home.telemetry.iterdir()
    assert json.loads(file.read_text())["name"] == "last.words"
