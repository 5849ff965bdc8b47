"""Telemetry rows after they were received: in the lake, on their way to a sink, and purged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from hypaware import config as configuration
from hypaware.export.rows import make_gate
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.index.builder import build_index
from hypaware.lake.parquet import check_file_row_ids
from hypaware.maintain.retention_plan import days_kept
from hypaware.model import datasets
from hypaware.state.home_opener import open_home
from tests.support import light_home
from tests.support.light_lake import read_lake
from tests.support.light_purge import deliver, purge
from tests.support.otlp import NOVEMBER, make_logs, running_receiver, send
from tests.support.rows import rows

SINK = """version = 1
[sinks.archive]
kind = "blob"
destination = "{folder}"
datasets = ["otel_logs", "otel_metrics"]
encoder = "jsonl"
"""


@pytest.fixture
def site(home: Home, tmp_path: Path) -> Home:
    open_home(home).store.close()
    home.config.write_text(SINK.format(folder=tmp_path / "archive"))
    return home


def receive(home: Home, *requests: tuple[str, Any]) -> None:
    with running_receiver(home) as running:
        for path, request in requests:
            assert send(running.port, path, request.SerializeToString()).status == 200
    for name in ("otel_logs", "otel_metrics"):
        light_home.flush(home, dataset=name)


def delivered(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.rglob("*.jsonl*"))
    return [json.loads(line) for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]


def make_points(*values: float) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="cost")
    for at, value in enumerate(values):
        metric.gauge.data_points.add(as_double=value, time_unix_nano=NOVEMBER + at)
    return request


def test_numbers_keep_every_digit_in_the_lake_and_in_a_delivery(site: Home, tmp_path: Path) -> None:
    values = [0.1, 5.0, -0.0, 1e300, 2.0**60, 5e-324]
    receive(site, ("/v1/metrics", make_points(*values)))
    deliver(site, configuration.load(site))

    assert [row["value"] for row in read_lake(site, "otel_metrics")] == values
    lines = delivered(tmp_path / "archive")
    assert [row["value"] for row in lines] == values
    assert {type(row["value"]) for row in lines} == {float}


def test_stored_rows_match_their_row_ids(site: Home) -> None:
    receive(site, ("/v1/metrics", make_points(0.1, 5.0)), ("/v1/logs", make_logs("a", "b")))

    for name in ("otel_logs", "otel_metrics"):
        entry = metadata.find_table(site, name)
        assert entry is not None
        for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata)):
            assert check_file_row_ids(name, file.path) == (2, 0, 0)


def test_telemetry_is_purged_by_session_by_time_and_by_the_folder_of_its_session(site: Home) -> None:
    folder_rows = [{**row, "cwd": "/home/dev/secret", "session_id": "s-folder-1"} for row in rows(2)]
    light_home.append(site, folder_rows)
    light_home.flush(site)
    old = make_logs("old", session="s-old-0001")
    old.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano -= 10 * 86_400 * 10**9
    sessions = {"kept": "s-kept-001", "gone": "s-gone-001", "folder": "s-folder-1"}
    requests = [("/v1/logs", make_logs(body, session=session)) for body, session in sessions.items()]
    receive(site, ("/v1/logs", old), *requests)

    for kind, value, left in (
        ("session", "s-gone-001", {"kept", "folder", "old"}),
        ("before", "2026-11-10T00:00:00.000000Z", {"kept", "folder"}),
        ("cwd", "/home/dev/secret", {"kept"}),
    ):
        purge(site, kind, value)  # type: ignore[arg-type]
        assert {row["body"] for row in read_lake(site, "otel_logs")} == left
    # What was purged does not come back when an exporter repeats it.
    receive(site, requests[1], requests[2])
    assert {row["body"] for row in read_lake(site, "otel_logs")} == {"kept"}


def test_the_telemetry_of_a_session_in_a_local_only_folder_stays_although_it_names_no_folder(
    site: Home, tmp_path: Path
) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / ".hypignore").write_text("local-only\n")
    light_home.append(site, [{**row, "cwd": str(folder), "session_id": "s-private-1"} for row in rows(2)])
    light_home.flush(site)
    build_index(site)
    receive(site, ("/v1/logs", make_logs("secret", session="s-private-1")), ("/v1/logs", make_logs("public")))
    gate = make_gate(site, configuration.load(site))
    assert gate.is_withheld(None, "s-private-1")
    deliver(site, configuration.load(site))

    assert [row["body"] for row in delivered(tmp_path / "archive")] == ["public"]
    assert len(read_lake(site, "otel_logs")) == 2


def test_telemetry_is_kept_for_a_month_unless_the_config_says_otherwise(site: Home) -> None:
    names = ("otel_logs", "otel_metrics", "otel_spans")
    config = configuration.load(site)
    assert [days_kept(config, datasets.get(name)) for name in names] == [30, 30, 30]
    site.config.write_text("version = 1\n[retention.datasets]\notel_logs = 5\n")
    assert days_kept(configuration.load(site), datasets.get("otel_logs")) == 5
    assert days_kept(configuration.load(site), datasets.get("otel_spans")) == 30
