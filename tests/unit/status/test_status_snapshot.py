"""The parts of a status: correct numbers in the documented shape."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta

from hypaware.config import RetentionConfig
from hypaware.export.status import read_statuses
from hypaware.lake.read import count_rows_between
from hypaware.maintain.retention_plan import retention_status
from hypaware.state import flushes
from hypaware.state.home_opener import open_home
from hypaware.status import doctor
from hypaware.status.diagnostics import StatusInput
from hypaware.status.sinks import count_between
from hypaware.status.storage import inspect_lake
from tests.support.delivery_home import DeliveryHome, key
from tests.support.iceberg_lake import append as append_rows
from tests.support.iceberg_lake import create_table
from tests.support.light_home import append
from tests.support.retention_cases import RetentionSite
from tests.support.rows import DATASET, row, rows
from tests.support.status_home import StatusHome, everything_under

KEYS = [
    "overall", "home", "config", "daemon", "server", "engine", "clients", "sources", "spool", "lake", "sinks",
    "retention", "disk", "diagnostics",
]  # fmt: skip
OF_LAKE = ["dataset", "source", "rows", "bytes", "files", "oldest", "newest", "high_water"]


def test_status_has_the_documented_shape(at: StatusHome) -> None:
    at.with_rows(3)
    append(at.home, rows(2, start=10))
    document = at.snapshot().as_json()
    assert list(document) == KEYS
    assert {"segments", "rows", "bytes", "oldest_at"} <= document["spool"].keys()
    assert list(document["lake"][0]) == [
        "dataset",
        "source",
        "rows",
        "bytes",
        "files",
        "oldest",
        "newest",
        "high_water",
    ]
    for each in document["diagnostics"]:
        assert list(each) == ["severity", "kind", "message", "repair"]
        assert each["severity"] in ("error", "warning", "info")
        assert all(isinstance(command, str) for command in each["repair"])


def test_recorded_rows_are_listed_per_source_with_their_days(at: StatusHome) -> None:
    days = ["2026-10-01T10:00:00Z", "2026-10-03T10:00:00Z"]
    append(at.home, [row(number, message_created_at=day) for number, day in enumerate(days)])
    at.with_rows(5, 100, client_name="codex", message_created_at="2026-11-01T10:00:00Z")
    claude, codex = at.snapshot().lake
    assert (claude["source"], claude["rows"], claude["files"]) == ("claude", 2, 2)
    assert (claude["oldest"], claude["newest"], claude["high_water"]) == ("2026-10-01", "2026-10-03", 2)
    assert (codex["source"], codex["rows"], codex["oldest"], codex["newest"]) == (
        "codex",
        5,
        "2026-11-01",
        "2026-11-01",
    )
    assert claude["bytes"] == sum(
        path.stat().st_size for path in at.home.warehouse.rglob("*.parquet") if "source=claude" in str(path)
    )


def test_spooled_rows_are_counted_including_those_of_a_dead_producer(at: StatusHome) -> None:
    at.with_rows(1)
    append(at.home, rows(2, start=10))
    append(at.home, rows(3, start=20), seal=False)
    spool = at.snapshot().spool
    assert (spool["segments"], spool["rows"], spool["datasets"][0]["dataset"]) == (2, 5, DATASET)
    assert spool["oldest_at"].endswith("Z")
    assert spool["bytes"] == sum(path.stat().st_size for path in at.home.spool.rglob("*.jsonl"))


def test_committed_segment_is_not_counted_as_spooled(at: StatusHome) -> None:
    at.with_rows(1)
    append(at.home, rows(2, start=10))
    (sealed,) = (at.home.spool / DATASET / "sealed").iterdir()
    with at.change() as connection:
        flushes.mark_segments_committed(connection, DATASET, [sealed.name.removesuffix(".jsonl")])
    spool = at.snapshot().spool
    assert (spool["segments"], spool["rows"], spool["bytes"], spool["oldest_at"]) == (0, 0, 0, None)


def test_streams_agree_with_export_status(at: StatusHome) -> None:
    deliveries = DeliveryHome(at.home)
    at.with_rows(20)
    at.with_rows(6, 100, client_name="codex")
    deliveries.declare(archive="/nowhere/a", other="/nowhere/b")
    deliveries.delivered(key("archive"), 20)
    deliveries.delivered(key("other"), 7)
    deliveries.planned(key("other"), 12, 20, acked=1)
    deliveries.buried(key("other"), "letter", 3)
    deliveries.delivered(key("archive", "codex"), None)
    deliveries.declare(archive="/nowhere/else", other="/nowhere/b")

    reported = {
        (sink["sink"], stream["dataset"], stream["source"]): stream
        for sink in at.snapshot().as_json()["sinks"]
        for stream in sink["streams"]
    }

    with deliveries.store() as store:
        expected = [each.as_json() for each in read_statuses(at.home, deliveries.config, store, at.now)]
    assert len(expected) == len(reported) == 4
    same = ("watermark", "high_water", "lag_rows", "exported_rows", "dead_letters", "pending", "last_error")
    for each in expected:
        found = reported[each["sink"], each["dataset"], each["source"]]
        assert {name: found[name] for name in same} == {name: each[name] for name in same}
        assert found["lag_exact"]
        assert (found["held"] == "elsewhere") == (each["address"] != each["delivered_to"] is not None)


def test_lag_from_statistics_is_never_too_small(at: StatusHome) -> None:
    at.with_rows(20)
    with at.change() as connection:
        flushes.raise_next_sequence(connection, 50)
    append(at.home, [row(number) for number in (0, 100, 1, 2, 101)])
    at.with_rows(0)
    table = inspect_lake(_inputs(at)).facts.tables[DATASET]
    for after, last in ((0, 60), (3, 60), (3, 9), (50, 51), (20, 52), (51, 60), (0, 0)):
        lag = count_between(table.files, "claude", after, last)
        exactly = count_rows_between(at.home, DATASET, "claude", after, last)
        assert lag.rows >= exactly
        assert lag.rows == exactly or not lag.exact
    assert not count_between(table.files, "claude", 50, 51).exact


def _inputs(at: StatusHome) -> StatusInput:
    return doctor.read_input(at.home, at.environment, at.now, at.cache)


def test_retention_agrees_with_maintenance(at: StatusHome) -> None:
    site = RetentionSite(at.home)
    site.declare("slow")
    site.commit(0, 40, 50)
    at.write_config(f'[retention]\ndefault_days = 30\n[sinks.slow]\nkind = "blob"\ndestination = "{at.user}/slow"\n')
    reported = at.snapshot().retention["datasets"]
    with closing(open_home(at.home).store) as store:
        assert reported == retention_status(at.home, DeliveryHome(at.home).config, store, at.now)
    assert (reported[0]["rows_held"], reported[0]["days"]) == (2, 30)


def test_retention_without_a_plan_agrees_if_nothing_is_due(at: StatusHome) -> None:
    site = RetentionSite(at.home, RetentionConfig(default_days=30))
    site.commit(0, 1)
    at.write_config("[retention]\ndefault_days = 30\n")
    reported = at.snapshot().retention["datasets"]
    with closing(open_home(at.home).store) as store:
        assert reported == retention_status(at.home, DeliveryHome(at.home).config, store, at.now)


def test_status_imports_no_heavy_library(at: StatusHome) -> None:
    at.with_rows(3)
    DeliveryHome(at.home).declare(archive="/nowhere/a")
    script = (
        "import sys\nfrom pathlib import Path\nfrom hypaware.home import Home\n"
        "from hypaware.status.snapshot import collect_snapshot\n"
        f"collect_snapshot(Home(Path({str(at.home.root)!r})))\n"
        "print(*({'pyspark', 'py4j', 'pyarrow', 'sqlalchemy', 'aiohttp', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_missing_home_is_not_created(at: StatusHome) -> None:
    found = at.snapshot()
    assert found.overall == "down"
    assert [(each.kind, each.repair) for each in found.diagnostics] == [("not_set_up", ("hyp setup",))]
    assert not at.home.root.exists()


def test_status_changes_nothing_on_disk(at: StatusHome) -> None:
    at.with_rows(5).attached(1)
    append(at.home, rows(2, start=10))
    DeliveryHome(at.home).declare(archive="/nowhere/a")
    before = everything_under(at.home.root.parent)
    at.snapshot()
    at.snapshot(at.now + timedelta(days=400))
    assert everything_under(at.home.root.parent) == before


def test_state_of_an_older_version_is_read_but_not_migrated(at: StatusHome) -> None:
    at.with_rows(5)
    with closing(sqlite3.connect(at.home.state)) as db:
        for table in ("streams", "intents", "chunks", "dead_letters", "retention_holds", "retention_drops"):
            db.execute(f"DROP TABLE {table}")
        db.execute("DELETE FROM migrations WHERE name > '0002'")
        db.commit()
    before = everything_under(at.home.root)
    found = at.snapshot()
    assert (found.home["state"], found.lake[0]["rows"], found.overall) == ("older", 5, "ok")
    assert everything_under(at.home.root) == before


def test_lake_without_a_state_is_described_by_its_files(at: StatusHome) -> None:
    """Without a state, the numbers come from the data files."""
    at.home.root.mkdir(mode=0o700)
    append_rows(create_table(at.home, DATASET), {"a": [1, 2], "b": [7]})
    found = at.snapshot()
    assert [(each["source"], each["rows"], each["high_water"]) for each in found.lake] == [("a", 2, 2), ("b", 1, 7)]
    assert "state_lost" in {each.kind for each in found.diagnostics}
