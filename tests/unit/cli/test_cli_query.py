"""`hyp query` up to the point where it needs an engine."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from hypaware.cli import entry, output
from hypaware.cli.main import hyp

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYP_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_schema_is_shown_with_types_and_meaning(capfd: Capture) -> None:
    assert entry.run(["query", "schema", "ai_gateway_messages"]) == 0

    shown = capfd.readouterr().out
    assert "message_created_at" in shown
    assert "When the message was created (UTC)." in shown
    assert "_hyp" not in shown


def test_the_schema_needs_no_home_and_creates_none(capfd: Capture, home: Path) -> None:
    assert entry.run(["query", "schema", "--json"]) == 0

    assert [each["name"] for each in json.loads(capfd.readouterr().out)["datasets"]] == [
        "ai_gateway_exchanges",
        "ai_gateway_messages",
        "otel_logs",
        "otel_metrics",
        "otel_spans",
    ]
    assert not home.exists()


def test_an_unknown_dataset_is_an_error_that_suggests_the_nearest_name(capfd: Capture) -> None:
    assert entry.run(["query", "schema", "ai_gateway_mesages", "--json"]) == 1

    error = json.loads(capfd.readouterr().out)["error"]
    assert error["kind"] == "unknown_dataset"
    assert "ai_gateway_messages" in error["message"]


def test_sql_that_starts_with_a_comment_is_not_taken_for_an_option(capfd: Capture) -> None:
    context = hyp.make_context("hyp", ["query", "schema"])
    query = hyp.get_command(context, "query")
    assert isinstance(query, click.Group)
    sql = query.commands["sql"]
    for question in ("-- by model\nSELECT 1", "--\tx\nSELECT 1", "--\nSELECT 1"):
        with sql.make_context("sql", [question, "--json"], parent=context) as parsed:
            assert (parsed.params["statement"].strip(), output.wants_json()) == (question, True)
    assert entry.run(["query", "sql", "--nosuch", "SELECT 1"]) == 2


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["SELECT 1", "--format", "yaml"],
        ["SELECT 1", "--format", "csv", "--json"],
        ["SELECT 1", "--max-rows", "-1"],
        ["SELECT 1", "--refresh", "sometimes"],
        ["SELECT 1", "more"],
    ],
)
def test_wrong_usage_is_reported_before_anything_starts(capfd: Capture, home: Path, args: list[str]) -> None:
    assert entry.run(["query", "sql", *args]) == 2
    assert not home.exists()
    assert capfd.readouterr() != ("", "")
