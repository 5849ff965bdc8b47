"""The report of the benchmarks: what it says of the machine, of charts, and of a section that fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import report, run
from bench.growth import growth_table
from bench.measure import Measured
from bench.report import Chart
from bench.run import Options
from tests.soak.summary import Outcome, Summary


def test_a_chart_names_its_series_and_fits_its_highest_value() -> None:
    lines = Chart("Time", "×", ["1,000", "2,000"], [("flush", [1, 1.5]), ("count", [1, 2])], kind="line").lines()
    assert lines[0] == "```mermaid"
    assert '    x-axis ["1,000", "2,000"]' in lines
    assert '    y-axis "×" 0 --> 2.20' in lines
    assert [line for line in lines if line.startswith("    line")] == [
        "    line [1.00, 1.50]",
        "    line [1.00, 2.00]",
    ]
    assert lines[-1] == "In this order: flush, count."


def test_a_section_that_fails_keeps_its_figures_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object) -> Iterator[Measured]:
        yield Measured("append", "≥ 1", "2", met=True)
        raise SystemExit("2 rows | were appended\nand one committed")

    monkeypatch.setitem(run.SECTIONS, "everyday", measure)
    lines = list(report.report_section("everyday", Options(1, 1.0, False, None)))
    assert lines[-2:] == [
        "| append | ≥ 1 | 2 | met |",
        "| this section failed | – | 2 rows / were appended | |",
    ]


def test_the_growth_of_each_command_is_one_row() -> None:
    assert growth_table({100: {"flush": 1.0, "count": 0.5}, 200: {"flush": 1.25, "count": 0.5}}) == [
        "| command | 100 rows | 200 rows |",
        "|---|---|---|",
        "| flush | 1.00 s | 1.25 s |",
        "| count | 0.50 s | 0.50 s |",
    ]


def test_the_report_counts_what_a_soak_did_and_names_how_to_replay_its_failures(tmp_path: Path) -> None:
    summary = Summary("abc", "2026-11-18T00:00:00+00:00", 0.5, 7)
    summary.add(Outcome("kills", 7, {"killed: engine": 2}))
    summary.add(Outcome("kills", 8, error="AssertionError: rows twice"))
    summary.add(Outcome("network", 7, impossible="ip netns add: not permitted"))
    summary.add(Outcome("kills", 9, {"killed: engine": 1}))
    path = tmp_path / "soak.json"
    path.write_text(json.dumps(asdict(summary)))

    lines = list(report.report_reliability(path))
    assert "| episodes: kills | 3 |" in lines
    assert "| killed: engine | 3 |" in lines
    assert "Failures: 1." in lines
    assert "- `python -m tests.soak --only 'kills' --seed 8`" in lines
    assert "- network cannot be tried here: ip netns add: not permitted" in lines
    assert list(report.report_reliability(tmp_path / "none"))[-1] == "`make soak` was not run on this machine."
