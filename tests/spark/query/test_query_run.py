"""The query job over a real lake: views, results of every size, formats, notes, cancellation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hypaware import telemetry
from hypaware.engine.session import EngineSession
from hypaware.errors import Cancelled, HypError, UsageError
from hypaware.home import Home
from hypaware.home.identity import new_identity
from hypaware.lake import schema
from hypaware.lake.spark_table import create_table
from hypaware.model import datasets
from hypaware.model.columns import Column, ColumnType
from hypaware.query import spill
from hypaware.query.guard import check_analyzed
from hypaware.query.views import Relation, Views
from tests.spark.query.conftest import ROWS, insert
from tests.support.processes import PATIENCE, eventually
from tests.support.query_runner import QueryRunner
from tests.support.rows import DATASET, MESSAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# PySpark leaves the sockets of its own `collect` to the garbage collector.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.mark.parametrize("named", [DATASET, f"hypaware.{DATASET}"])
def test_a_view_has_only_the_public_columns_in_order(runner: QueryRunner, named: str) -> None:
    (row,) = runner.rows(f"SELECT * FROM {named} LIMIT 1")

    assert list(row) == [column.name for column in MESSAGES.columns]


@pytest.mark.parametrize("named", [DATASET, f"hypaware.{DATASET}"])
def test_a_query_sees_a_commit_made_after_the_view(runner: QueryRunner, spark: SparkSession, named: str) -> None:
    before = runner.values(f"SELECT count(*) FROM {named}")
    insert(spark, 1000, 1005)
    try:
        assert runner.values(f"SELECT count(*) FROM {named}") == [before[0] + 5]
        assert runner.values(f"SELECT count(*) FROM {named} WHERE message_index >= 1000") == [5]
    finally:
        spark.sql(f"DELETE FROM {schema.full_table_name(DATASET)} WHERE message_index >= 1000")


def test_a_dataset_without_a_table_is_empty_until_it_has_one(
    engine: EngineSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = datasets.Dataset(
        name="other",
        about="For this test.",
        columns=(
            Column("at", ColumnType.TIMESTAMP, "When."),
            Column("id", ColumnType.STRING, "Which."),
            Column("n", ColumnType.INT, ""),
        ),
        time_column="at",
        source_columns=("id",),
        key_column="id",
    )
    monkeypatch.setattr(datasets, "_load_registry", lambda: {DATASET: MESSAGES, "other": other})
    views = Views(engine.spark)

    def seen() -> list[tuple[object, ...]]:
        views.show([Relation("other"), Relation("other", qualified=True)])
        rows, qualified = (
            [tuple(row) for row in views.session.sql(f"SELECT id, n FROM {named} ORDER BY id").collect()]
            for named in ("other", "hypaware.other")
        )
        assert rows == qualified
        return rows

    assert seen() == []
    engine.spark.sql(
        f"CREATE TABLE {schema.full_table_name('other')} (at TIMESTAMP, id STRING, _hyp_source STRING) USING iceberg"
    )
    try:
        engine.spark.sql(f"INSERT INTO {schema.full_table_name('other')} VALUES (now(), 'a', 's')")
        assert seen() == [("a", None)], "a column that the table lacks is null"
        engine.spark.sql(f"ALTER TABLE {schema.full_table_name('other')} ADD COLUMN n INT")
        engine.spark.sql(f"INSERT INTO {schema.full_table_name('other')} VALUES (now(), 'b', 's', 2)")
        assert seen() == [("a", None), ("b", 2)]
        assert views.session.sql("SELECT * FROM other").columns == ["at", "id", "n"]
    finally:
        engine.spark.sql(f"DROP TABLE {schema.full_table_name('other')} PURGE")
        views.session.catalog.dropGlobalTempView("other")


@pytest.mark.parametrize("max_rows", [None, 10, 100_000])
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT count(*) FROM {}", [ROWS]),
        ("SELECT count(*) FROM {} GROUP BY role", [20, 20, 20]),
        ("SELECT message_index FROM {} ORDER BY message_index DESC LIMIT 3", [59, 58, 57]),
        ("SELECT message_index FROM {} ORDER BY message_index LIMIT 2 OFFSET 3", [3, 4]),
        ("SELECT message_index FROM {} WHERE content_text LIKE '%message 7'", [7]),
        ("SELECT 1 FROM {} LIMIT 4", [1, 1, 1, 1]),
        ("WITH some AS (SELECT * FROM {} LIMIT 5) SELECT count(*) FROM some", [5]),
        ("SELECT 1 FROM {} LIMIT 0", []),
        ("SELECT 1 FROM {} WHERE false", []),
        ("VALUES (1), (2)", [1, 2]),
    ],
)
def test_the_result_is_the_same_however_it_is_read(
    runner: QueryRunner, sql: str, expected: list[int], max_rows: int | None
) -> None:
    assert runner.values(sql.format(DATASET), max_rows=max_rows) == expected


def test_a_row_limit_stops_the_output_with_a_note(runner: QueryRunner) -> None:
    for sql in (f"SELECT message_index FROM {DATASET} ORDER BY 1", f"SELECT message_index FROM {DATASET}"):
        report = runner.run(sql, format="jsonl", max_rows=10)

        assert (report["rows"], report["truncated"]) == (10, True)
        assert len(runner.output.splitlines()) == 10
        assert runner.notes == ["only the first 10 rows are shown (use --max-rows 0 to see all)"]
    runner.run(f"SELECT message_index FROM {DATASET}", format="jsonl", max_rows=1)
    assert runner.notes == ["only the first row is shown (use --max-rows 0 to see all)"]


def test_a_result_of_exactly_the_limit_is_not_truncated(runner: QueryRunner) -> None:
    report = runner.run(f"SELECT 1 FROM {DATASET}", format="jsonl", max_rows=ROWS)

    assert (report["rows"], report["truncated"], runner.notes) == (ROWS, False, [])


def test_the_number_of_rows_of_a_table_is_a_note(runner: QueryRunner) -> None:
    runner.run(f"SELECT role FROM {DATASET} WHERE message_index = 1", format="table", width=80)

    assert runner.output.decode() == "role\n─────────\nassistant\n"
    assert runner.notes[0].startswith("1 row in ")


def test_a_result_of_unknown_size_is_spilled_to_files_in_order(
    runner: QueryRunner, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a large partition would be collected as a whole and exhaust the JVM."""
    spilled: list[int] = []
    through_files = spill.read_spilled

    def watched(*args: Any) -> Iterator[pa.RecordBatch]:
        spilled.append(1)
        return through_files(*args)

    monkeypatch.setattr(spill, "read_spilled", watched)

    assert runner.values("SELECT id FROM range(0, 50000, 1, 8)") == list(range(50000))
    assert spilled == [1]
    runner.values(f"SELECT role, count(*) FROM {DATASET} GROUP BY role ORDER BY 2")
    runner.values(f"SELECT count(*) FROM {DATASET}")
    assert spilled == [1], "small results need no files"
    assert not list(scratch(spark).glob("query-*"))


def test_a_large_result_that_is_read_partly_leaves_no_files(spark: SparkSession) -> None:
    runner = QueryRunner(spark, cancel_when=lambda runner: len(runner.chunks) > 1)

    with pytest.raises(Cancelled):
        runner.run("SELECT explode(sequence(1, 50000)) AS n", format="jsonl")

    assert len(runner.chunks) == 2
    assert not list(scratch(spark).glob("query-*"))


@pytest.mark.parametrize("max_rows", [10, None], ids=["few", "all"])
def test_a_query_continues_with_a_table_that_was_rebuilt_after_its_analysis(
    runner: QueryRunner, spark: SparkSession, engine_home: Home, monkeypatch: pytest.MonkeyPatch, max_rows: int | None
) -> None:
    analyzed: list[int] = []

    def rebuild_after(*args: Any) -> None:
        check_analyzed(*args)
        if not analyzed:
            spark.sql(f"DROP TABLE {schema.full_table_name(DATASET)} PURGE")
            create_table(spark, MESSAGES, new_identity(engine_home.root))
            insert(spark, 0, ROWS)
        analyzed.append(1)

    monkeypatch.setattr("hypaware.query.results.check_analyzed", rebuild_after)

    report = runner.run(f"SELECT part_id FROM {DATASET} WHERE message_index < 5", format="jsonl", max_rows=max_rows)

    assert (report["rows"], len(analyzed)) == (5, 2)


def test_a_query_cancelled_during_planning_does_not_run_to_its_end(spark: SparkSession) -> None:
    """Spark's own cancellation misses the stages that adaptive execution submits later."""
    # A task that has started looks for its cancellation after each batch of `range`, not within `explode`.
    endless = (
        f"SELECT count(DISTINCT a.id, b.id, part_id) FROM range(1000000000000) a "
        f"CROSS JOIN range(100) b CROSS JOIN {DATASET}"
    )

    with pytest.raises(HypError):
        QueryRunner(spark, cancel_when=lambda runner: True).run(endless)

    context = spark.sparkContext._jsc.sc()
    context.listenerBus().waitUntilEmpty(1000 * PATIENCE)
    tracker = context.statusTracker()
    assert list(tracker.getActiveJobIds()) == []
    eventually(lambda: sum(executor.numRunningTasks() for executor in tracker.getExecutorInfos()) == 0)


def test_a_partition_larger_than_the_jvm_is_streamed(runner: QueryRunner) -> None:
    """Read 1.2 GiB of rows from one partition with a JVM of 1 GiB."""
    report = runner.run(
        "SELECT id, repeat(uuid(), 3000) AS text FROM range(0, 12000, 1, 1)", format="arrow", max_rows=1_000_000
    )

    assert (report["rows"], report["truncated"]) == (12000, False)
    assert len(runner.output) > 1_200_000_000


def test_values_of_every_type_are_written_as_json(runner: QueryRunner) -> None:
    (row,) = runner.rows("""
        SELECT 1Y a, 1.50 b, 1e3 c, double('NaN') d, true e, x'00ff' f, date'2026-11-15' g,
               timestamp'2026-11-15 07:15:08.256' h, timestamp_ntz'2026-11-15 07:15:08' i, array(1, null) j,
               named_struct('k', map('l', 1)) k, null m, interval '1-2' year to month n, interval 3 hours o,
               parse_json('{"p": [1]}') p, array(parse_json('1')) q, 'x' collate UNICODE_CI r, time'10:00:00' s, 1 a
    """)

    assert row == {
        "a": 1, "b": 1.5, "c": 1000.0, "d": None, "e": True, "f": "AP8=", "g": "2026-11-15",
        "h": "2026-11-15T07:15:08.256000Z", "i": "2026-11-15T07:15:08.000000", "j": [1, None], "k": {"k": {"l": 1}},
        "m": None, "n": "INTERVAL '1-2' YEAR TO MONTH", "o": "INTERVAL '03' HOUR", "p": '{"p":[1]}', "q": "[1]",
        "r": "x", "s": "10:00:00.000000000", "a_2": 1,
    }  # fmt: skip


def test_arrow_keeps_the_types_of_the_columns(runner: QueryRunner) -> None:
    runner.run(f"SELECT message_index, message_created_at, is_error FROM {DATASET} LIMIT 1", format="arrow")

    with pa.ipc.open_stream(runner.output) as reader:
        assert reader.schema.types == [pa.int32(), pa.timestamp("us", "UTC"), pa.bool_()]


@pytest.mark.parametrize(
    ("sql", "kind", "message"),
    [
        (f"SELECT rol FROM {DATASET}", "query_invalid", "`role`"),
        ("SELEC 1", "query_invalid", "Syntax error at or near 'SELEC' (line 1, column 1)"),
        ("SELECT 1 LIMIT -1", "query_invalid", "must be equal to or greater than 0"),
        ("SELECT * EXCEPT (a) FROM (SELECT 1 AS a)", "query_invalid", "no columns"),
        ("SELECT nope(1)", "query_invalid", "Cannot resolve routine `nope`"),
        (f"SELECT _hyp_source FROM {DATASET}", "query_invalid", "`_hyp_source` cannot be resolved"),
        (f"SELECT role, count(*) FROM {DATASET}", "query_invalid", "GROUP BY"),
        (f"SELECT CAST(content_text AS INT) FROM {DATASET}", "query_failed", "try_cast"),
        (f"SELECT CAST(content_text AS INT) FROM {DATASET} LIMIT 3", "query_failed", "try_cast"),
        ("SELECT 1 / 0", "query_failed", "try_divide"),
        ("SELECT raise_error('mine')", "query_failed", "mine"),
        ("SELECT " + "(SELECT " * 300 + "1" + ")" * 300, "query_invalid", "nested too deeply"),
        ("SELECT '\udcff'", "query_invalid", "UTF-8"),
    ],
)
def test_a_failed_query_is_reported_in_one_line(
    runner: QueryRunner, capfd: pytest.CaptureFixture[str], sql: str, kind: str, message: str
) -> None:
    with pytest.raises(HypError) as raised:
        runner.run(sql)

    assert raised.value.kind == kind
    assert message in raised.value.message
    assert "\n" not in raised.value.message
    assert "org.apache" not in raised.value.message
    assert capfd.readouterr() == ("", ""), "nothing is printed beside the error"


def test_variables_in_the_text_of_a_query_are_not_substituted(runner: QueryRunner) -> None:
    assert runner.values("SELECT '${env:HOME} ${spark.sql.catalog.hyp.uri}'") == [
        "${env:HOME} ${spark.sql.catalog.hyp.uri}"
    ]


def test_an_unknown_format_is_rejected_before_anything_runs(runner: QueryRunner) -> None:
    with pytest.raises(UsageError, match="yaml"):
        runner.run("SELECT 1", format="yaml")


def test_queries_have_a_session_of_their_own(runner: QueryRunner, spark: SparkSession) -> None:
    """Objects in the session of the engine are invisible to queries, and vice versa."""
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW left_behind AS SELECT 1")
    try:
        with pytest.raises(HypError, match="unknown dataset left_behind"):
            runner.run("SELECT * FROM left_behind")
        runner.run(f"SELECT 1 FROM {DATASET}")
        assert DATASET not in [view.name for view in spark.catalog.listTables()]
    finally:
        spark.catalog.dropTempView("left_behind")


@pytest.mark.parametrize(
    ("sql", "status", "kind"),
    [
        (f"SELECT 'very secret' FROM {DATASET}", "ok", None),
        ("SELECT CAST('very secret' AS INT)", "failed", "query_failed"),
    ],
)
def test_telemetry_records_a_query_without_its_text(
    runner: QueryRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, status: str, kind: str | None
) -> None:
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    telemetry.configure(Home(tmp_path).telemetry)
    try:
        with suppress(HypError):
            runner.run(sql, format="jsonl")
    finally:
        telemetry.close()

    (file,) = (tmp_path / "telemetry").glob("traces-*.jsonl")
    (span,) = map(json.loads, file.read_text().splitlines())
    assert span["name"] == "query.execute_sql"
    said = span["attributes"]
    assert (said["status"], said.get("error_kind"), said["format"]) == (status, kind, "jsonl")
    assert said.get("row_count") == (ROWS if status == "ok" else None)
    assert "secret" not in file.read_text()


def test_queries_run_concurrently(spark: SparkSession) -> None:
    def count(role: str) -> list[object]:
        return QueryRunner(spark).values(f"SELECT count(*) FROM {DATASET} WHERE role = '{role}' OR '{role}' = 'all'")

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(count, ["user", "all", "none", "tool"] * 3)) == [[20], [ROWS], [0], [20]] * 3


def scratch(spark: SparkSession) -> Path:
    return Path(spark._jvm.java.lang.System.getProperty("java.io.tmpdir"))


def test_a_query_without_some_sessions_does_not_see_their_rows(runner: QueryRunner) -> None:
    hidden = ["session-0", "session-3", 'it\'s \\ "hidden"']

    seen = runner.values(f"SELECT DISTINCT session_id FROM {DATASET} ORDER BY 1", without_sessions=hidden)

    assert seen == ["session-1", "session-2", "session-4", "session-5"]
    assert runner.values(f"SELECT count(*) FROM {DATASET} WHERE session_id = 'session-0'", without_sessions=hidden) == [
        0
    ]
    assert runner.values(f"SELECT count(*) FROM {DATASET}") == [ROWS]
    # The name with the namespace is shared with other queries, which see all rows.
    runner.values(f"SELECT count(*) FROM hypaware.{DATASET}")
    with pytest.raises(HypError, match="while sessions are withheld") as refused:
        runner.run(f"SELECT count(*) FROM hypaware.{DATASET}", without_sessions=hidden)
    assert refused.value.kind == "query_refused"


def test_a_query_over_one_dataset_knows_no_other(runner: QueryRunner) -> None:
    assert runner.values(f"SELECT count(*) FROM {DATASET}", only=DATASET) == [ROWS]
    with pytest.raises(HypError, match="unknown dataset ai_gateway_exchanges"):
        runner.run("SELECT count(*) FROM ai_gateway_exchanges", only=DATASET)
