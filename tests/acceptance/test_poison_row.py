"""A row that takes the real engine down: the flush rejects it after some deaths and commits everything else once."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.support.command import Hyp, ndjson
from tests.support.plugin_distributions import install

pytestmark = pytest.mark.spark

DATASET = "measurements"
# A dataset whose `derive` kills the JVM or the whole engine when a Spark worker builds a certain row.
PLUGIN = textwrap.dedent(
    """
    import os
    import signal
    from pathlib import Path

    import psutil

    from hypaware.model.columns import Column, ColumnType
    from hypaware.model.datasets import Dataset

    STRING = ColumnType.STRING


    def derive(row, gateway_id):
        above = psutil.Process().parents()
        jvm = next((number for number, each in enumerate(above) if each.name().startswith("java")), None)
        if row.get("text") == "poison" and jvm is not None:
            deaths = Path(os.environ["DEATHS"])
            deaths.write_text(deaths.read_text() + "x")
            # In turns: the JVM alone, and the engine with it. The engine first, so that it cannot record anything.
            with_engine = len(deaths.read_text()) % 2
            for each in ((above[jvm + 1],) if with_engine else ()) + (above[jvm],):
                each.kill()
            signal.pause()
        return {}


    DATASET = Dataset(
        "measurements",
        "rows of a test",
        (
            Column("id", STRING, "the key", required=True),
            Column("source", STRING, "who measured"),
            Column("at", ColumnType.TIMESTAMP, "when", required=True),
            Column("text", STRING, "what"),
        ),
        time_column="at",
        source_columns=("source",),
        key_column="id",
        derive=derive,
    )
    """
)


@pytest.mark.hazard(93)
def test_a_row_that_kills_the_engine_is_rejected_and_everything_else_is_committed_once(
    hyp: Hyp, tmp_path: Path
) -> None:
    site, deaths = tmp_path / "site", tmp_path / "deaths"
    site.mkdir()
    deaths.touch()
    install(site, "hyp-measurements", f"[hypaware.datasets]\n{DATASET} = hyp_measurements:DATASET\n")
    (site / "hyp_measurements.py").write_text(PLUGIN)
    plugin = {"PYTHONPATH": str(site), "DEATHS": str(deaths)}

    def ingest(*texts: str) -> None:
        rows = [{"id": text, "source": "s", "at": "2026-11-15T08:00:00Z", "text": text} for text in texts]
        hyp.ok("ingest", DATASET, "-", stdin=ndjson(rows), **plugin)

    ingest("good-1", "poison")
    ingest("good-2", "good-3")
    codes: list[int] = []
    while not codes or codes[-1]:
        assert len(codes) < 15, "the search makes no progress"
        result = hyp.run("flush", "--json", **plugin)
        codes.append(result.code)
        if result.code:
            assert result.json["error"]["kind"] == "engine_died", f"{result.out}{result.err}"
    assert 5 <= len(deaths.read_text()) < len(codes), "shared attempts, the halves, and three times alone"

    found = hyp.run("query", "sql", f"SELECT id FROM {DATASET} ORDER BY id", "--format", "json", **plugin)
    assert [row["id"] for row in found.json] == ["good-1", "good-2", "good-3"]
    (rejected,) = (hyp.home / "spool" / DATASET / "rejected").glob("*.jsonl")
    (line,) = rejected.read_text().splitlines()
    kept = json.loads(line)
    assert "poison" in kept["line"]
    assert kept["reason"] == "the engine died 3 times while it built this row"
    ingest("good-4")
    assert hyp.ok("flush", **plugin)["datasets"][0]["rows_written"] == 1, "the next flush is an ordinary one"
    assert hyp.run("verify", **plugin).code == 0
