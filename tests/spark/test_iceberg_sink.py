"""The Iceberg sink with real catalogs and tables: each chunk is stored once, whatever happens between two attempts."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from hypaware.engine.session import EngineSession
from hypaware.export.sink import (
    Chunk,
    ChunkRefused,
    DestinationBusy,
    DestinationDenied,
    DestinationUnreachable,
    RangeOverlap,
    StreamCoverage,
    TablePayload,
)
from hypaware.export.sinks.iceberg import iceberg_table
from hypaware.home import Home, durable_files
from hypaware.home.storage import parse_location
from tests.support import processes
from tests.support.iceberg_destination import Lake
from tests.support.postgres_server import PASSWORD, PostgresServer, postgres_server
from tests.support.rows import MESSAGES
from tests.support.shipments import GATEWAY, INCARNATION, chunk, rows_of

pytestmark = pytest.mark.spark

# An engine that ships some chunks and ends, or is killed. Arguments: folder, first and last sequence, chunk size.
_ENGINE = """
import asyncio, sys
from pathlib import Path
from hypaware.engine.session import open_session
from hypaware.home import Home
from hypaware.export.sink import RangeOverlap, TablePayload
from hypaware.home.storage import parse_location
from tests.support.iceberg_destination import Lake
from tests.support.shipments import chunk, rows_of
folder, first, last, size = Path(sys.argv[1]), *map(int, sys.argv[2:5])
session = open_session(Home.from_environment(), master="local[1]", memory="512m")
lake = Lake(folder, session.spark)
async def main():
    sink = lake.sink()
    await sink.open()
    print("open", flush=True)
    sys.stdin.readline()
    for after in range(first - 1, last, size):
        try:
            await sink.ship(chunk(after, after + size), TablePayload(rows_of(range(after + 1, after + size + 1))), 0)
        except RangeOverlap as overlap:
            print(overlap)
    await sink.close()
asyncio.run(main())
session.close()
"""


@pytest.fixture
def lake(tmp_path: Path, engine_session: EngineSession) -> Lake:
    return Lake(tmp_path, engine_session.spark)


@pytest.fixture
def owned(lake: Lake) -> Lake:
    """A table that its owner also uses."""
    return Lake(lake.folder, lake.spark, name=f"lake{time.monotonic_ns()}")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


def in_postgres(lake: Lake, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, **catalog: str) -> Lake:
    monkeypatch.setenv("TEAM_PASSWORD", PASSWORD)
    told = {"uri": server.uri, "jdbc_password_env": "TEAM_PASSWORD", **catalog}
    return Lake(lake.folder, lake.spark, told, reader_uri=server.whole_uri, table=f"team.m{time.monotonic_ns()}")


# Delivered rows


def test_a_missing_table_is_created_and_other_readers_find_every_row(lake: Lake) -> None:
    sent = rows_of(range(1, 101))
    assert lake.ship(chunk(0, 100), sent) > 0
    with lake.reader() as made:
        assert made.format_version == 2
        assert [str(field.transform) for field in made.spec().fields] == ["day", "identity"]
        names = [field.name for field in made.schema().fields]
        assert names[:4] == ["hyp_seq", "hyp_gateway_id", "hyp_incarnation", "hyp_source"]
        assert names[4:] == [column.name for column in MESSAGES.columns]
        assert made.properties["hyp.dataset"] == MESSAGES.name
        read = made.scan().to_arrow().sort_by("hyp_seq")
        files = [task.file.file_path.removeprefix("file:") for task in made.scan().plan_files()]
    for column in MESSAGES.columns:
        assert read.column(column.name).to_pylist() == sent.column(column.name).to_pylist(), column.name
    assert set(read.column("hyp_gateway_id").to_pylist()) == {GATEWAY}
    assert set(read.column("hyp_incarnation").to_pylist()) == {INCARNATION}
    assert set(read.column("hyp_source").to_pylist()) == {"claude"}
    asked = "SELECT count(*), min(hyp_seq), max(hyp_seq), count(DISTINCT message_id) FROM read_parquet(?)"
    assert duckdb.execute(asked, [files]).fetchone() == (100, 1, 100, 100)


def test_a_postgres_catalog_works_like_sqlite(
    lake: Lake, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = in_postgres(lake, postgres, monkeypatch)
    there.ship(chunk(0, 50))
    there.ship(chunk(50, 80))
    there.ship(chunk(0, 50))
    assert there.seqs() == list(range(1, 81))
    assert there.has_chunk(chunk(50, 80)) is True


def test_rows_of_many_days_and_of_the_first_and_last_year_are_found_by_their_day(lake: Lake) -> None:
    moments = ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "2026-11-15T00:00:00Z", "9999-12-31T23:59:59Z"]
    tables = [rows_of([place + 1], message_created_at=moment) for place, moment in enumerate(moments)]
    lake.ship(chunk(0, 4), _joined(tables))
    with lake.reader() as made:
        assert len(list(made.scan().plan_files())) == 4
        found = made.scan("message_created_at >= '2026-11-15T00:00:00+00:00'").to_arrow()
        assert sorted(found.column("hyp_seq").to_pylist()) == [3, 4]
        before = made.scan("message_created_at < '1970-01-01T00:00:00+00:00'").to_arrow()
        assert sorted(before.column("hyp_seq").to_pylist()) == [1, 2]


@pytest.mark.hazard(25)
@pytest.mark.hazard(61)
def test_sources_are_exact_strings(lake: Lake) -> None:
    strange = [
        "a b",
        "a_b",
        "a/b",
        "../../etc",
        "a%20b",
        "ü☃",
        "x" * 400,
        "it's",
        'say "so"',
        "__HIVE_DEFAULT_PARTITION__",
    ]
    for place, source in enumerate(strange):
        lake.ship(chunk(place, place + 1, source), rows_of([place + 1]))
    found = {row["hyp_source"]: row["hyp_seq"] for row in lake.rows()}
    assert found == {source: place + 1 for place, source in enumerate(strange)}
    for place, source in enumerate(strange):
        assert lake.has_chunk(chunk(place, place + 1, source)) is True
        told = lake.ask(lambda sink, it=source: sink.coverage(chunk(0, 1, it).stream, GATEWAY, INCARNATION))  # type: ignore[misc]
        assert told.last == place + 1
    with lake.reader() as made:
        under = parse_location(made.location())
        files = [parse_location(task.file.file_path) for task in made.scan().plan_files()]
    assert all(file.resolve().is_relative_to(under.resolve()) for file in files)


# Repeated chunks


@pytest.mark.hazard(34)
def test_the_same_chunk_twice_is_stored_once(lake: Lake) -> None:
    assert lake.has_chunk(chunk(0, 10)) is False
    assert lake.ship(chunk(0, 10)) > 0
    assert lake.has_chunk(chunk(0, 10)) is True
    assert lake.ship(chunk(0, 10)) == 0
    assert lake.seqs() == list(range(1, 11))


@pytest.mark.hazard(22)
@pytest.mark.hazard(33)
@pytest.mark.parametrize(
    ("point", "landed"),
    [
        ("export.iceberg.after-files", False),
        ("export.iceberg.before-commit", False),
        ("export.iceberg.after-commit", True),
    ],
)
def test_a_killed_engine_leaves_a_chunk_complete_or_absent(lake: Lake, point: str, landed: bool) -> None:
    """The engine and its JVM are killed at the second chunk; new rows arrive before the retry."""
    done = processes.run(_ENGINE, Home(lake.folder / "home"), lake.folder, 1, 30, 10, crash_at=f"{point}:2")
    assert processes.was_killed(done), done.stderr
    assert lake.has_chunk(chunk(0, 10)) is True
    assert lake.has_chunk(chunk(10, 20)) is landed
    for after in (10, 20, 30):
        lake.ship(chunk(after, after + 10))
    assert lake.seqs() == list(range(1, 41))


def test_coverage_survives_expiry_and_compaction_of_the_destination(owned: Lake) -> None:
    owned.ship(chunk(0, 10))
    owned.ship(chunk(10, 20))
    owned.sql("CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map('min-input-files', '2'))")
    owned.expire_snapshots()
    with owned.reader() as made:
        assert [snapshot.summary.operation.value for snapshot in made.snapshots()] == ["replace"]
    assert owned.has_chunk(chunk(10, 20)) is True
    assert owned.ship(chunk(0, 10)) == 0
    assert owned.ask(_delivered) == StreamCoverage(20)
    assert owned.seqs() == list(range(1, 21))


def test_rows_deleted_by_the_owner_remain_delivered(owned: Lake) -> None:
    owned.ship(chunk(0, 10))
    owned.sql("DELETE FROM {table} WHERE hyp_seq <= 5")
    assert owned.has_chunk(chunk(0, 10)) is True
    assert owned.ship(chunk(0, 10)) == 0
    assert owned.seqs() == [6, 7, 8, 9, 10]


def test_without_a_record_the_rows_decide(lake: Lake) -> None:
    """`has_chunk` cannot decide whether a chunk is complete; `ship`, which has the rows, can."""
    lake.ship(chunk(0, 10))
    _forget(lake)
    assert lake.ask(_delivered) == StreamCoverage(10)
    assert lake.has_chunk(chunk(0, 10)) is None
    assert lake.has_chunk(chunk(10, 20)) is False
    assert lake.ship(chunk(0, 10)) == 0
    assert lake.seqs() == list(range(1, 11))


def test_without_a_record_only_missing_rows_are_sent(owned: Lake) -> None:
    owned.ship(chunk(0, 10))
    _forget(owned)
    owned.sql("DELETE FROM {table} WHERE hyp_seq IN (3, 9, 10)")
    with pytest.raises(RangeOverlap) as raised:
        owned.ship(chunk(0, 10))
    assert raised.value.covered == StreamCoverage(8, ((2, 3),))
    owned.ship(chunk(2, 3))
    owned.ship(chunk(8, 10))
    assert owned.seqs() == list(range(1, 11))


def test_a_refused_row_remains_a_hole_until_it_is_replayed(lake: Lake) -> None:
    lake.ship(chunk(0, 5))
    lake.ship(chunk(6, 10))
    assert lake.ask(_delivered) == StreamCoverage(10, ((5, 6),))
    assert lake.has_chunk(chunk(5, 6)) is False
    assert lake.ship(chunk(5, 6)) > 0
    assert lake.has_chunk(chunk(5, 6)) is True
    assert lake.ship(chunk(5, 6)) == 0
    assert lake.ask(_delivered) == StreamCoverage(10)
    assert lake.seqs() == list(range(1, 11))


def test_a_different_cut_of_delivered_ranges_reports_an_overlap(lake: Lake) -> None:
    lake.ship(chunk(0, 10))
    with pytest.raises(RangeOverlap) as raised:
        lake.ship(chunk(5, 15))
    assert raised.value.covered == StreamCoverage(10)
    assert lake.ship(chunk(2, 7)) == 0
    assert lake.seqs() == list(range(1, 11))


@pytest.mark.hazard(71)
def test_incarnations_gateways_and_sources_have_separate_records(lake: Lake) -> None:
    lake.ship(chunk(0, 10))
    lake.ship(chunk(0, 10, incarnation="b" * 32))
    lake.ship(chunk(0, 10, gateway="gw-ffff"))
    lake.ship(chunk(0, 10, source="codex"))
    assert lake.seqs() == sorted(list(range(1, 11)) * 4)
    assert lake.ask(lambda sink: sink.coverage(chunk(0, 1).stream, "gw-ffff", INCARNATION)) == StreamCoverage(10)
    assert lake.ask(lambda sink: sink.coverage(chunk(0, 1).stream, "gw-none", INCARNATION)) == StreamCoverage(0)


# Concurrent writers


def _meanwhile(monkeypatch: pytest.MonkeyPatch, point: str, work: Callable[[], object]) -> list[object]:
    """Run another writer's work when the first writer reaches the crash point for the first time."""
    done: list[object] = []

    def reach() -> None:
        if not done:
            done.append(None)
            done[0] = work()

    monkeypatch.setattr(iceberg_table, point, reach)
    return done


@pytest.mark.hazard(71)
@pytest.mark.parametrize("point", ["_after_files", "_before_commit"])
def test_two_engines_deliver_the_same_chunk_once(lake: Lake, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """A copied home: the other engine commits between our check and our commit."""
    other = rows_of(range(1, 11))
    done = _meanwhile(monkeypatch, point, lambda: _aside(lambda: lake.ship(chunk(0, 10), other)))
    assert lake.ship(chunk(0, 10)) == 0
    assert done[0]
    assert lake.seqs() == list(range(1, 11))
    with lake.reader() as made:
        named = {parse_location(task.file.file_path) for task in made.scan().plan_files()}
        folder = parse_location(made.location())
    assert set(folder.rglob("*.parquet")) == named, "the loser deletes its files"


def test_two_engines_with_different_cuts_duplicate_no_row(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    _meanwhile(monkeypatch, "_before_commit", lambda: _aside(lambda: lake.ship(chunk(0, 6))))
    with pytest.raises(RangeOverlap) as raised:
        lake.ship(chunk(0, 10))
    assert raised.value.covered == StreamCoverage(6)
    lake.ship(chunk(6, 10))
    assert lake.seqs() == list(range(1, 11))
    assert lake.ask(_delivered) == StreamCoverage(10)


def test_a_concurrent_chunk_of_the_stream_keeps_its_place_in_the_record(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is duplicated, but a record read before would drop the other's range."""
    _meanwhile(monkeypatch, "_before_commit", lambda: _aside(lambda: lake.ship(chunk(10, 20))))
    lake.ship(chunk(0, 10))
    assert lake.seqs() == list(range(1, 21))
    assert lake.ask(_delivered) == StreamCoverage(20)


def test_other_gateways_do_not_disturb_each_other(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both commits succeed at the first attempt."""
    tries: list[str] = []
    original = iceberg_table.IcebergTable.commit

    def counted(self: Any, wanted: Chunk, *args: Any) -> None:
        tries.append(wanted.gateway_id)
        original(self, wanted, *args)

    monkeypatch.setattr(iceberg_table.IcebergTable, "commit", counted)
    _meanwhile(monkeypatch, "_before_commit", lambda: _aside(lambda: lake.ship(chunk(0, 10, gateway="gw-ffff"))))
    assert lake.ship(chunk(0, 10)) > 0
    assert sorted(tries) == sorted([GATEWAY, "gw-ffff"])
    assert len(lake.rows()) == 20


def test_a_writer_suspended_during_an_expiry_does_not_commit_blindly(
    owned: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshots with the other engine's rows have expired when it continues."""

    def other() -> None:
        owned.ship(chunk(10, 20))
        owned.ship(chunk(0, 1, gateway="gw-ffff"))
        owned.expire_snapshots()

    owned.ship(chunk(0, 10))
    _meanwhile(monkeypatch, "_before_commit", lambda: _aside(other))
    assert owned.ship(chunk(10, 20)) == 0
    assert owned.seqs() == sorted([1, *range(1, 21)])


def test_a_catalog_created_concurrently_by_another_engine_is_opened(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found a column missing, and the other engine added it first."""
    build = iceberg_table._build_catalog
    calls: list[object] = []

    def second(spark: Any, settings: Any) -> Any:
        calls.append(settings)
        made = build(spark, settings)
        if len(calls) == 1:
            made.close()
            with closing(spark._jvm.java.sql.DriverManager.getConnection(settings.properties["uri"])) as connection:
                connection.createStatement().execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)")
        return made

    monkeypatch.setattr(iceberg_table, "_build_catalog", second)
    lake.ship(chunk(0, 10))
    assert len(calls) == 2
    assert lake.seqs() == list(range(1, 11))


def test_two_engines_at_full_speed_deliver_every_chunk_once(lake: Lake) -> None:
    """Two processes with a JVM each deliver the same ten chunks at the same time."""
    arguments = (lake.folder, 1, 100, 10)
    with (
        processes.running(_ENGINE, Home(lake.folder / "one"), *arguments) as one,
        processes.running(_ENGINE, Home(lake.folder / "two"), *arguments) as two,
    ):
        for engine in (one, two):
            assert engine.stdout
            assert engine.stdout.readline() == "open\n"
        for engine in (one, two):
            assert engine.stdin
            engine.stdin.write("go\n")
            engine.stdin.flush()
        assert [engine.wait(processes.PATIENCE) for engine in (one, two)] == [0, 0]
    assert lake.seqs() == list(range(1, 101))
    assert lake.ask(_delivered) == StreamCoverage(100)


# Existing tables


def test_missing_columns_are_added_and_partitions_are_kept(owned: Lake) -> None:
    """A table with its own columns and partitions."""
    owned.sql("CREATE NAMESPACE {catalog}.team")
    owned.sql(
        "CREATE TABLE {table} (message_created_at timestamp, model string NOT NULL, message_index bigint, label string)"
        " USING iceberg PARTITIONED BY (months(message_created_at), model)"
    )
    tables = [rows_of([1, 2]), rows_of([3], model=None), rows_of([4], message_created_at="2026-12-01T00:00:00Z")]
    owned.ship(chunk(0, 4), _joined(tables))
    with owned.reader() as made:
        assert [str(field.transform) for field in made.spec().fields] == ["month", "identity"]
        partitions = {tuple(task.file.partition) for task in made.scan().plan_files()}
        assert str(made.schema().find_field("message_index").field_type) == "long"
    assert partitions == {(682, "model-1"), (682, None), (683, "model-1")}
    found = sorted((row["hyp_seq"], row["message_index"], row["label"]) for row in owned.rows())
    assert found == [(seq, seq, None) for seq in (1, 2, 3, 4)]
    assert owned.has_chunk(chunk(0, 4)) is True


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("hyp_seq string", "hyp_seq has type string instead of long"),
        ("message_created_at timestamp_ntz", "message_created_at has type timestamp instead of timestamptz"),
        ("label string NOT NULL", "label is required"),
        ("attributes map<string,string>", "attributes has type nested instead of string"),
    ],
)
def test_columns_that_do_not_fit_are_named(owned: Lake, columns: str, told: str) -> None:
    owned.sql("CREATE NAMESPACE {catalog}.team")
    owned.sql(f"CREATE TABLE {{table}} ({columns}) USING iceberg")
    with pytest.raises(DestinationDenied, match=told) as raised:
        owned.has_chunk(chunk(0, 1))
    assert raised.value.kind == "schema_conflict"


def test_a_table_with_unknown_partitions_is_refused(owned: Lake) -> None:
    owned.sql("CREATE NAMESPACE {catalog}.team")
    owned.sql("CREATE TABLE {table} (session_id string) USING iceberg PARTITIONED BY (bucket(4, session_id))")
    with pytest.raises(DestinationDenied, match=r"partitioned by bucket\[4\] of session_id") as raised:
        owned.has_chunk(chunk(0, 1))
    assert raised.value.kind == "partitions_unknown"


def test_a_table_of_another_dataset_is_refused(owned: Lake) -> None:
    owned.sql("CREATE NAMESPACE {catalog}.team")
    owned.sql("CREATE TABLE {table} (session_id string) USING iceberg TBLPROPERTIES ('hyp.dataset'='others')")
    with pytest.raises(DestinationDenied, match="holds rows of others") as raised:
        owned.has_chunk(chunk(0, 1))
    assert raised.value.kind == "wrong_table"


def test_a_value_that_does_not_fit_refuses_its_chunk(lake: Lake) -> None:
    with pytest.raises(ChunkRefused, match="role may not be null"):
        lake.ship(chunk(0, 1), _without(rows_of([1]), "role"))
    assert lake.rows() == []


@pytest.mark.hazard(87)
def test_a_recreated_table_is_another_destination(lake: Lake) -> None:
    first = lake.ask(_destination)
    assert lake.ask(_destination) == first
    with lake.reader() as made:
        made.catalog.drop_table("team.messages")
    second = lake.ask(_destination)
    assert (second.address, first.is_same(second)) == (first.address, False)


def test_a_table_recreated_during_a_round_is_noticed(lake: Lake) -> None:
    async def twice(sink: Any) -> None:
        await sink.ship(chunk(0, 5), TablePayload(rows_of(range(1, 6))), 0)
        with lake.reader() as made:
            made.catalog.drop_table("team.messages")
        await _opened_and_closed(lake)
        with pytest.raises(DestinationDenied) as raised:
            await sink.ship(chunk(5, 10), TablePayload(rows_of(range(6, 11))), 0)
        assert raised.value.kind == "destination_changed"

    lake.ask(twice)
    assert lake.rows() == []


# Failures


def test_a_stopped_server_is_unreachable_and_a_wrong_password_is_denied(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_server() as server:
        there = in_postgres(lake, server, monkeypatch)
        there.ship(chunk(0, 10))
        monkeypatch.setenv("TEAM_PASSWORD", "wrong")
        with pytest.raises(DestinationDenied) as denied:
            there.has_chunk(chunk(0, 10))
        assert denied.value.kind == "bad_credentials"
        assert "wrong" not in str(denied.value)
        monkeypatch.setenv("TEAM_PASSWORD", PASSWORD)

        async def cut(sink: Any) -> None:
            server.stop()
            with pytest.raises(DestinationUnreachable):
                await sink.ship(chunk(10, 20), TablePayload(rows_of(range(11, 21))), 0)
            server.start()
            await sink.ship(chunk(10, 20), TablePayload(rows_of(range(11, 21))), 0)

        there.ask(cut)
        assert there.seqs() == list(range(1, 21))
        server.stop()
        with pytest.raises(DestinationUnreachable, match="refused"):
            there.has_chunk(chunk(0, 10))
        server.start()


@pytest.mark.hazard(33)
def test_a_connection_cut_during_the_commit_says_nothing_about_the_chunk(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stops between the last query and the commit."""
    with postgres_server() as server:
        there = in_postgres(lake, server, monkeypatch)
        there.ship(chunk(0, 10))

        async def cut(sink: Any) -> None:
            done = _meanwhile(monkeypatch, "_before_commit", server.stop)
            with pytest.raises(DestinationUnreachable):
                await sink.ship(chunk(10, 20), TablePayload(rows_of(range(11, 21))), 0)
            assert done
            server.start()
            assert await sink.has_chunk(chunk(10, 20)) is False
            assert await sink.ship(chunk(10, 20), TablePayload(rows_of(range(11, 21))), 0) > 0

        there.ask(cut)
        assert there.seqs() == list(range(1, 21))


@pytest.mark.hazard(33)
def test_a_commit_that_succeeded_although_java_raised_is_not_repeated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise ConnectionResetError("the answer was lost")

    monkeypatch.setattr(iceberg_table, "_after_commit", lost)
    assert lake.ship(chunk(0, 10)) > 0
    assert lake.seqs() == list(range(1, 11))


@pytest.mark.parametrize(
    ("catalog", "kind"),
    [
        ({"uri": "sqlite:////nowhere/at/all/catalog.db"}, "destination_misconfigured"),
        ({"warehouse": ""}, "destination_misconfigured"),
        ({"warehouse": "somewhere"}, "destination_misconfigured"),
        ({"uri": "jdbc:unheard-of:x"}, "destination_needs_jars"),
        ({"type": "glue", "uri": ""}, "destination_needs_jars"),
        ({"io-impl": "com.example.NoSuchStore"}, "destination_needs_jars"),
        ({"jdbc_password_env": "NOBODY_SET_THIS"}, "no_credentials"),
        ({"jdbc_password_file": "/nowhere/secret"}, "no_credentials"),
    ],
)
def test_an_invalid_configuration_is_denied_with_the_reason(lake: Lake, catalog: dict[str, str], kind: str) -> None:
    there = Lake(lake.folder, lake.spark, catalog)
    with pytest.raises(DestinationDenied) as raised:
        there.has_chunk(chunk(0, 1))
    assert raised.value.kind == kind


def test_a_table_without_a_namespace_is_denied(lake: Lake) -> None:
    with pytest.raises(DestinationDenied, match="add its namespace"):
        Lake(lake.folder, lake.spark, table="messages").has_chunk(chunk(0, 1))


def test_a_locked_catalog_is_busy(lake: Lake) -> None:
    there = Lake(lake.folder, lake.spark, {"uri": f"jdbc:sqlite:{lake.folder}/catalog.db?busy_timeout=50"})
    there.ship(chunk(0, 5))

    async def locked(sink: Any) -> None:
        with closing(sqlite3.connect(lake.folder / "catalog.db")) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(DestinationBusy):
                await sink.ship(chunk(5, 10), TablePayload(rows_of(range(6, 11))), 0)
        await sink.ship(chunk(5, 10), TablePayload(rows_of(range(6, 11))), 0)

    there.ask(locked)
    assert there.seqs() == list(range(1, 11))


def test_a_damaged_record_is_reported(lake: Lake) -> None:
    lake.ship(chunk(0, 10))
    with lake.reader() as made, made.transaction() as change:
        change.set_properties({iceberg_table.chunk_record_key(chunk(0, 10)): "all of it"})
    with pytest.raises(DestinationDenied) as raised:
        lake.has_chunk(chunk(0, 10))
    assert raised.value.kind == "destination_damaged"


# Durability


def test_a_commit_on_a_local_disk_is_fsynced_before_ship_returns(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[Path] = set()
    for name in ("fsync_file", "fsync_dir"):
        original = getattr(durable_files, name)

        def recorded(path: Path, original: Any = original) -> None:
            original(path)
            synced.add(path.resolve())

        monkeypatch.setattr(durable_files, name, recorded)
    lake.ship(chunk(0, 10))
    with lake.reader() as made:
        named = {parse_location(made.metadata_location)}
        snapshot = made.current_snapshot()
        named.add(parse_location(snapshot.manifest_list))
        named |= {parse_location(each.manifest_path) for each in snapshot.manifests(made.io)}
        data = {parse_location(task.file.file_path) for task in made.scan().plan_files()}
    assert named | data <= synced
    folders = {
        folder for path in named | data for folder in path.parents if folder.is_relative_to(lake.folder / "tables")
    }
    assert folders <= synced


def test_no_temporary_file_is_left_in_the_engine(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    async def shipped(sink: Any) -> list[Path]:
        await sink.ship(chunk(0, 10), TablePayload(rows_of(range(1, 11))), 0)
        with pytest.raises(RangeOverlap):
            await sink.ship(chunk(5, 15), TablePayload(rows_of(range(6, 16))), 0)
        return list(sink._table.scratch.glob("part-*"))

    assert lake.ask(shipped) == []


async def _delivered(sink: Any) -> Any:
    return await sink.coverage(chunk(0, 1).stream, GATEWAY, INCARNATION)


async def _destination(sink: Any) -> Any:
    return await sink.open()


async def _opened_and_closed(lake: Lake) -> None:
    other = lake.sink()
    await other.open()
    await other.close()


def _aside(work: Callable[[], Any]) -> Any:
    """Run on a separate event loop, because ours is busy."""
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(work()))
    thread.start()
    thread.join()
    return result[0] if result else None


def _forget(lake: Lake) -> None:
    with lake.reader() as made, made.transaction() as change:
        change.remove_properties(iceberg_table.chunk_record_key(chunk(0, 1)))


def _joined(tables: list[Any]) -> Any:
    return pa.concat_tables(tables)


def _without(rows: Any, column: str) -> Any:
    place = rows.schema.get_field_index(column)
    return rows.set_column(place, column, pa.nulls(len(rows), rows.schema.field(column).type))
