"""The guard with real Spark: what it must allow, and every known trick to get past it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware.engine.session import EngineSession
from hypaware.errors import HypError, QueryRefused
from hypaware.lake import schema
from hypaware.query import guard
from hypaware.query.views import Views, get_views
from tests.support.query_runner import QueryRunner
from tests.support.rows import DATASET

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

TABLE = schema.full_table_name(DATASET)
# If any of these statements ran, the JVM would have this property.
CALL = "reflect('java.lang.System', 'setProperty', 'hyp.canary', 'dead')"

ALLOWED = f"""
SELECT 1;
SELECT 1 -- a comment ; DROP TABLE x
SELECT /* ; */ 1 ;;
(SELECT 1)
VALUES (1, 'a'), (2, 'b')
TABLE {DATASET}
SELECT * FROM AI_Gateway_Messages LIMIT 1
TABLE hypaware.{DATASET}
SELECT role, {DATASET}.model, hypaware.{DATASET}.date FROM HypAware.`{DATASET}` LIMIT 1
SELECT m.role FROM hypaware.{DATASET} m JOIN {DATASET} n USING (part_id) WHERE m.part_id IN (SELECT part_id FROM hypaware.{DATASET})
WITH {DATASET} AS (SELECT 'mine' AS role) SELECT model FROM hypaware.{DATASET} EXCEPT SELECT role FROM {DATASET}
FROM {DATASET} SELECT role WHERE message_index = 1
FROM {DATASET} |> WHERE message_index < 9 |> AGGREGATE count(*) AS n GROUP BY role |> ORDER BY n |> LIMIT 3
SELECT DISTINCT role, model FROM {DATASET} WHERE content_text LIKE '%1%' AND NOT (message_index IN (1, 2)) ORDER BY 1
SELECT role, count(*) FROM {DATASET} GROUP BY ALL HAVING count(*) > 3 ORDER BY ALL
SELECT role, model, grouping(role), count(*) FROM {DATASET} GROUP BY GROUPING SETS ((role, model), (role), ())
SELECT role, model, count(*) FROM {DATASET} GROUP BY role, model WITH ROLLUP
SELECT role, model, count(*) FROM {DATASET} GROUP BY CUBE (role, model)
SELECT count(*) FILTER (WHERE role = 'user'), count(DISTINCT model, role), max_by(role, message_index) FROM {DATASET}
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY message_index) FROM {DATASET}
SELECT sum(message_index) OVER w FROM {DATASET} WINDOW w AS (PARTITION BY role ORDER BY (SELECT max(role) FROM {DATASET}))
WITH a AS (SELECT rank() OVER w AS r FROM {DATASET} WINDOW w AS (ORDER BY role)) SELECT count(*) FROM a
SELECT lag(role) OVER (PARTITION BY session_id ORDER BY message_index) FROM {DATASET}
SELECT sum(1) OVER (ORDER BY message_created_at RANGE BETWEEN INTERVAL 1 DAY PRECEDING AND CURRENT ROW) FROM {DATASET}
WITH a AS (SELECT 1 AS x), b(y) AS (SELECT x FROM a) SELECT * FROM a JOIN b ON x = y
WITH {DATASET} AS (SELECT 'mine' AS role) SELECT role FROM {DATASET}
WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r
SELECT * FROM (WITH c AS (SELECT 1 AS y) SELECT y FROM c) WHERE y IN (WITH d AS (SELECT 1 AS z) SELECT z FROM d)
SELECT a.role FROM {DATASET} a LEFT JOIN {DATASET} b USING (message_id) CROSS JOIN range(2) LIMIT 3
SELECT m.role, s.q FROM {DATASET} m, LATERAL (SELECT m.message_index + 1 AS q) s
SELECT m.role FROM {DATASET} m LEFT SEMI JOIN {DATASET} n ON m.role = n.role LEFT ANTI JOIN {DATASET} o ON m.role = o.model
SELECT role FROM {DATASET} m WHERE EXISTS (SELECT 1 FROM {DATASET} n WHERE n.message_id = m.parent_uuid)
SELECT role FROM {DATASET} WHERE (role, part_type) NOT IN (SELECT role, model FROM {DATASET}) AND message_index = (SELECT max(1) FROM {DATASET})
SELECT (SELECT max(model) FROM {DATASET} n WHERE n.role = m.role) FROM {DATASET} m
SELECT x FROM {DATASET} LATERAL VIEW explode(array(1, 2)) e AS x
SELECT p, x FROM {DATASET} LATERAL VIEW OUTER posexplode(array(1)) e AS p, x
SELECT * FROM {DATASET} LATERAL VIEW json_tuple(attributes, 'usage') t AS usage
SELECT * FROM explode(array(1, 2)) AS t(x)
SELECT * FROM {DATASET}, LATERAL explode(split(content_text, ' ')) AS t(word)
SELECT * FROM variant_explode(parse_json('[1]'))
SELECT stack(2, 1, 2, 3, 4) AS (a, b), inline(array(struct(1, 'a')))
SELECT * FROM (SELECT role, model, message_index FROM {DATASET}) PIVOT (sum(message_index) FOR role IN ('user', 'tool'))
SELECT * FROM (SELECT 1 AS a, 2 AS b) UNPIVOT (v FOR n IN (a, b AS c))
SELECT * FROM {DATASET} TABLESAMPLE (50 PERCENT) REPEATABLE (3)
SELECT * FROM {DATASET} TABLESAMPLE (5 ROWS)
SELECT /*+ BROADCAST(b), REPARTITION(3) */ a.role FROM {DATASET} a JOIN {DATASET} b USING (part_id)
SELECT * FROM {DATASET} DISTRIBUTE BY role SORT BY model
SELECT * EXCEPT (role) FROM {DATASET}
SELECT 1 UNION ALL SELECT 2 UNION SELECT 3 EXCEPT SELECT 1 INTERSECT SELECT 1
SELECT CASE WHEN is_error THEN 'x' ELSE role END, CASE role WHEN 'user' THEN 1 END, if(is_error, 1, 2) FROM {DATASET}
SELECT message_index::string, try_cast(content_text AS INT), date'2026-11-15' + INTERVAL 1 DAY, X'1F', 1e3, r'\\d' FROM {DATASET}
SELECT transform(array(1), x -> x + 1), aggregate(array(1), 0, (acc, x) -> acc + x), array(1)[0], map('k', 1)['k']
SELECT get_json_object(attributes, '$.usage'), parse_json(attributes):usage::string, from_json(attributes, 'a INT') FROM {DATASET}
SELECT trim(BOTH 'x' FROM role), substring(role FROM 1 FOR 2), position('a' IN role), overlay(role PLACING 'x' FROM 1) FROM {DATASET}
SELECT date_trunc('day', message_created_at), extract(HOUR FROM message_created_at), dateadd(DAY, 1, message_created_at) FROM {DATASET}
SELECT window.start, count(*) FROM {DATASET} GROUP BY window(message_created_at, '1 hour')
SELECT role LIKE ANY ('a%', 'b%'), role ILIKE 'U%', role RLIKE 'u', role <=> NULL, role IS DISTINCT FROM model FROM {DATASET}
SELECT current_user(), current_catalog(), version(), uuid() IS NULL, rand() > 2, input_file_name() FROM {DATASET}
SELECT xpath_string('<a>1</a>', 'a'), md5('a'), base64('a'), regexp_replace('a', 'a', 'b'), format_string('%s', 1)
SELECT role AS r, upper(r) AS u FROM {DATASET}
""".strip().splitlines()  # noqa: E501

# Part of the message, and the statements that cause it.
REFUSED = {
    "INSERT": [
        f"INSERT INTO {DATASET} SELECT * FROM {DATASET}",
        f"INSERT OVERWRITE {TABLE} SELECT * FROM {DATASET}",
        "INSERT OVERWRITE DIRECTORY '/tmp/hyp-evil' USING csv SELECT 1",
        f"WITH a AS (SELECT 1) INSERT INTO {TABLE} SELECT * FROM a",
        f"FROM {DATASET} INSERT INTO {TABLE} SELECT *",
        f"FROM {DATASET} INSERT INTO {TABLE} SELECT * INSERT INTO {TABLE} SELECT *",
    ],
    "DELETE": [f"DELETE FROM {TABLE}"],
    "UPDATE": [f"UPDATE {TABLE} SET role = 'x'"],
    "MERGE": [f"MERGE INTO {TABLE} t USING {DATASET} s ON t.part_id = s.part_id WHEN MATCHED THEN DELETE"],
    "TRUNCATE": [f"TRUNCATE TABLE {TABLE}"],
    "DROP": [f"DROP TABLE {TABLE}", f"DROP VIEW {DATASET}", "DROP TEMPORARY VARIABLE x"],
    "CREATE": [
        "CREATE TABLE hyp.hypaware.t (a INT) USING iceberg",
        "CREATE TABLE hyp.hypaware.t AS SELECT 1 AS a",
        f"CREATE OR REPLACE TEMPORARY VIEW {DATASET} AS SELECT 1",
        "CREATE FUNCTION f AS 'java.lang.String'",
        "CREATE TEMPORARY FUNCTION f() RETURNS INT RETURN 1",
        "CREATE NAMESPACE hyp.evil",
        "DECLARE x = 1",
        f"ALTER TABLE {TABLE} CREATE BRANCH b",
    ],
    "ADD": [f"ALTER TABLE {TABLE} ADD COLUMN x INT", "ADD JAR '/tmp/x.jar'", "ADD FILE '/etc/hostname'"],
    "CALL": [f"CALL hyp.system.rollback_to_snapshot('{DATASET}', 1)"],
    "SET": [
        "SET spark.sql.ansi.enabled = false",
        "SET",
        "SET TIME ZONE 'UTC'",
        "SET VAR x = 1",
        "USE hyp.hypaware",
        "RESET",
        f"ALTER TABLE {TABLE} WRITE ORDERED BY role",
    ],
    "CACHE": [f"CACHE TABLE {DATASET}", f"UNCACHE TABLE {DATASET}", "CLEAR CACHE"],
    "REFRESH": [f"REFRESH TABLE {DATASET}"],
    "LOAD DATA": ["LOAD DATA LOCAL INPATH '/etc/hostname' INTO TABLE x"],
    "EXECUTE IMMEDIATE": [f"EXECUTE IMMEDIATE 'DROP TABLE {TABLE}'", "EXECUTE IMMEDIATE 'SELECT 1'"],
    "a script": [f"BEGIN DROP TABLE {TABLE}; END", "BEGIN SELECT 1; END", "BEGIN DECLARE x INT; SELECT x; END"],
    "more than one statement": ["SELECT 1; SELECT 2", f"SELECT 1; DROP TABLE {TABLE};", "SELECT 1 /* ; */; SET x = 1"],
    "the SQL is empty": ["", "  \n"],
    "runs a program": [
        f"SELECT TRANSFORM(role) USING 'cat' FROM {DATASET}",
        f"FROM {DATASET} MAP role USING 'cat' AS a",
        f"WITH t AS (SELECT TRANSFORM(role) USING 'cat' AS (a STRING) FROM {DATASET}) SELECT * FROM t",
        f"SELECT * FROM (SELECT TRANSFORM(role) USING 'cat' AS (a STRING) FROM {DATASET})",
        f"SELECT 1 WHERE 'a' IN (SELECT TRANSFORM(role) USING 'cat' AS (a STRING) FROM {DATASET})",
    ],
    "can run code or read files": [
        f"SELECT {CALL}",
        f"SELECT {CALL.upper().replace('HYP.CANARY', 'hyp.canary')}",
        f"SELECT `reflect`{CALL.removeprefix('reflect')}",
        f"SELECT java_method{CALL.removeprefix('reflect')}",
        f"SELECT try_{CALL}",
        f"SELECT (SELECT {CALL})",
        f"SELECT 1 WHERE EXISTS (SELECT {CALL})",
        f"SELECT 1 WHERE 'a' IN (SELECT {CALL})",
        f"WITH a AS (WITH b AS (SELECT {CALL} AS x) SELECT * FROM b) SELECT * FROM a",
        f"WITH unused AS (SELECT {CALL}) SELECT 1",
        f"SELECT * FROM VALUES ({CALL})",
        f"VALUES (1, (SELECT {CALL}))",
        f"SELECT * FROM range(length({CALL}))",
        f"SELECT * FROM explode(array({CALL}))",
        f"SELECT x FROM {DATASET} LATERAL VIEW explode(array({CALL})) t AS x",
        f"SELECT x FROM {DATASET} LATERAL VIEW {CALL} t AS x",
        f"SELECT * FROM {DATASET}, LATERAL (SELECT {CALL})",
        f"SELECT transform(array(1), x -> {CALL})",
        f"SELECT sum(1) OVER (ORDER BY {CALL})",
        f"SELECT sum(1) OVER w FROM {DATASET} WINDOW w AS (ORDER BY {CALL})",
        f"SELECT sum(1) OVER w FROM {DATASET} WINDOW w AS (PARTITION BY (SELECT {CALL}))",
        f"SELECT * FROM (SELECT sum(1) OVER w FROM {DATASET} WINDOW w AS (ORDER BY {CALL}))",
        f"WITH c AS (SELECT sum(1) OVER w FROM {DATASET} WINDOW w AS (ORDER BY {CALL})) SELECT * FROM c",
        f"SELECT 1 WHERE 1 IN (SELECT sum(1) OVER w FROM {DATASET} WINDOW w AS (ORDER BY {CALL}))",
        f"SELECT 1 ORDER BY {CALL}",
        f"SELECT count(*) FROM {DATASET} GROUP BY GROUPING SETS ((role), ({CALL}))",
        f"SELECT count(*) FROM {DATASET} GROUP BY CUBE ({CALL})",
        f"SELECT count(*) FROM {DATASET} HAVING {CALL} IS NULL",
        f"SELECT 1 LIMIT length({CALL})",
        f"SELECT 1 OFFSET length({CALL})",
        f"SELECT count(*) FILTER (WHERE {CALL} IS NULL) FROM {DATASET}",
        f"SELECT CASE WHEN {CALL} IS NULL THEN 1 END",
        f"SELECT {CALL}::STRING",
        f"SELECT * FROM {DATASET} a JOIN {DATASET} b ON a.role = {CALL}",
        f"SELECT * FROM {DATASET} PIVOT (count(*) FOR role IN ({CALL}))",
        f"SELECT * FROM {DATASET} PIVOT (max({CALL}) FOR role IN ('user'))",
        f"SELECT * FROM {DATASET} |> EXTEND {CALL} AS x",
        f"SELECT * FROM {DATASET} |> AGGREGATE max({CALL})",
        f"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY {CALL}) FROM {DATASET}",
        f"SELECT /*+ REPARTITION({CALL}) */ 1",
        f"SELECT 1 UNION ALL SELECT {CALL}",
        f"SELECT from_json('{{}}', {CALL})",
        f"SELECT abs(expr => {CALL})",
        "SELECT from_xml('<a/>', 'b INT', map('rowValidationXSDPath', '/etc/hostname'))",
        "SELECT schema_of_xml('<a/>', map('rowValidationXSDPath', '/etc/hostname'))",
        "SELECT from_avro(x'00', '\"int\"', map('avroSchemaUrl', '/etc/hostname'))",
        "SELECT from_protobuf(x'00', 'M', '/etc/hostname')",
    ],
    "by their plain names": [
        f"SELECT system.builtin.{CALL}",
        f"SELECT builtin.{CALL}",
        "SELECT hyp.system.iceberg_version()",
        "SELECT session.our_function(1)",
    ],
    "IDENTIFIER": [
        f"SELECT IDENTIFIER('ref' || 'lect'){CALL.removeprefix('reflect')}",
        f"SELECT * FROM IDENTIFIER('{TABLE}')",
        f"SELECT * FROM IDENTIFIER('{DATASET}')",
        f"TABLE IDENTIFIER('hyp' || '.hypaware.{DATASET}.files')",
        f"SELECT IDENTIFIER('role') FROM {DATASET}",
    ],
    "datasets, not files": [
        "SELECT * FROM parquet.`/etc/hostname`",
        "SELECT * FROM `text`.`/etc/hostname`",
        "SELECT * FROM CSV.`file:///etc/hostname`",
        "SELECT * FROM binaryFile.`/etc/hostname`",
        "SELECT * FROM iceberg.`/tmp/table`",
        "WITH `parquet, /etc/hostname` AS (SELECT 1) SELECT * FROM parquet.`/etc/hostname`",
    ],
    f"name the dataset {DATASET} or hypaware.{DATASET}": [
        f"SELECT * FROM {TABLE}",
        f"SELECT * FROM {TABLE.upper()}",
        f"TABLE {TABLE}",
        f"SELECT * FROM session.{DATASET}",
        f"SELECT * FROM global_temp.{DATASET}",
        f"SELECT * FROM hypaware_next.{DATASET}",
        f"SELECT * FROM spark_catalog.hypaware.{DATASET}",
        f"SELECT * FROM {DATASET} NATURAL JOIN {TABLE}",
        f"SELECT * FROM {DATASET} MINUS SELECT * FROM {TABLE}",
        f"WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT a FROM r JOIN {TABLE} ON true) SELECT * FROM r",
        f"WITH `{TABLE.replace('.', ', ')}` AS (SELECT 1) SELECT * FROM {TABLE}",
    ],
    "only the rows": [
        f"SELECT * FROM {TABLE}.snapshots",
        f"SELECT * FROM {DATASET}.files",
        f"SELECT * FROM hypaware.{DATASET}.files",
        f"SELECT * FROM {TABLE}.branch_main",
        f"WITH a AS (SELECT * FROM {TABLE}.files) SELECT * FROM a",
        f"SELECT (SELECT max(file_path) FROM {TABLE}.files)",
        f"SELECT EXISTS (SELECT 1 FROM {TABLE}.files)",
        f"SELECT * FROM {DATASET} JOIN LATERAL (SELECT * FROM {TABLE}.files) ON true",
        f"SELECT sum(1) OVER w FROM {DATASET} WINDOW w AS (ORDER BY (SELECT max(file_path) FROM {TABLE}.files))",
    ],
    "unknown dataset": [
        "SELECT * FROM our_view",
        "SELECT * FROM hypaware.our_global_view",
        "WITH `hypaware, our_global_view` AS (SELECT 1) SELECT * FROM hypaware.our_global_view",
        "WITH a AS (SELECT * FROM spark_catalog.default.x) SELECT * FROM a",
        "SELECT * FROM global_temp.our_view",
        "SELECT * FROM information_schema.tables",
        f"SELECT * FROM `{TABLE}`",
        "SELECT * FROM `/etc/hostname`",
        "SELECT * FROM org.apache.spark.sql.execution.datasources.text.`/etc/hostname`",
    ],
    "Did you mean ai_gateway_messages?": ["SELECT * FROM ai_gateway_message", "SELECT * FROM gateway_messages"],
    "Known: ai_gateway_exchanges, ai_gateway_messages, otel_logs, otel_metrics, otel_spans.": [
        "SELECT * FROM ai_gateway_message",
        "SELECT * FROM hypaware.message",
        "SELECT * FROM xyz",
    ],
    "our_view is not a dataset": [
        "SELECT * FROM (WITH our_view AS (SELECT 1) SELECT * FROM our_view) JOIN our_view",
        "WITH a AS (SELECT * FROM our_view), our_view AS (SELECT 1) SELECT * FROM a",
    ],
    "time travel": [
        f"SELECT * FROM {DATASET} VERSION AS OF 1",
        f"SELECT * FROM {DATASET} FOR SYSTEM_TIME AS OF '2026-11-15'",
    ],
    "STREAM": [f"SELECT * FROM STREAM {DATASET}", f"SELECT * FROM STREAM({DATASET})"],
    "table function": [
        "SELECT * FROM sql_keywords()",
        "SELECT * FROM python_worker_logs()",
        "SELECT * FROM read_files('/etc/hostname')",
        "SELECT * FROM our_table_function(1)",
        f"SELECT * FROM {DATASET}, LATERAL our_table_function(role)",
        f"SELECT * FROM our_table_function(TABLE({DATASET}))",
        f"SELECT * FROM {CALL}",
    ],
    "PythonUDF": ["SELECT our_function(1)"],
    "VariableReference": ["SELECT our_variable"],
    "within a WINDOW": [
        f"SELECT 1 FROM {DATASET} WINDOW w AS (ORDER BY (SELECT rank() OVER v FROM range(9) WINDOW v AS (ORDER BY 1)))",
    ],
}  # fmt: skip
LOOKING_AROUND = [
    "EXPLAIN SELECT 1",
    f"DESCRIBE {DATASET}",
    f"DESCRIBE TABLE hypaware.{DATASET}",
    "DESCRIBE QUERY SELECT 1",
    "SHOW TABLES IN hyp.hypaware",
    f"SHOW COLUMNS IN {DATASET}",
    f"SHOW CREATE TABLE {DATASET}",
    "SHOW FUNCTIONS",
    "LIST JARS",
]
HIDDEN = ["_hyp_source", f"{DATASET}._hyp_ingest_seq", "_file", "_pos", "_partition", "_metadata", "_spec_id"]


@pytest.fixture(scope="module", autouse=True)
def bait(engine: EngineSession) -> Iterator[Views]:
    """Create objects in the session of the queries that no query may reach."""
    from pyspark.sql.functions import udtf

    class Rows:
        def eval(self, *args: object) -> Iterator[tuple[int]]:
            yield (1,)

    views = get_views(engine.spark)
    session = views.session
    session.sql("CREATE OR REPLACE TEMPORARY VIEW our_view AS SELECT 'secret' AS secret")
    session.sql("CREATE OR REPLACE GLOBAL TEMPORARY VIEW our_global_view AS SELECT 'secret' AS secret")
    session.udf.register("our_function", lambda value: 1)
    session.udtf.register("our_table_function", udtf(Rows, returnType="a INT"))
    session.sql("DECLARE OR REPLACE our_variable = 'secret'")
    yield views
    session.catalog.dropTempView("our_view")
    session.catalog.dropGlobalTempView("our_global_view")


@pytest.mark.parametrize("sql", ALLOWED)
def test_a_read_only_select_is_answered(runner: QueryRunner, sql: str) -> None:
    assert isinstance(runner.rows(sql), list)


@pytest.mark.parametrize(("says", "sql"), [(says, sql) for says, statements in REFUSED.items() for sql in statements])
def test_everything_else_is_rejected_by_name(runner: QueryRunner, spark: SparkSession, says: str, sql: str) -> None:
    with pytest.raises(QueryRefused) as raised:
        runner.run(sql)

    assert says in raised.value.message
    assert raised.value.kind == "query_refused"
    assert runner.chunks == []
    assert spark._jvm.java.lang.System.getProperty("hyp.canary") is None
    assert not Path("/tmp/hyp-evil").exists()


@pytest.mark.parametrize("sql", LOOKING_AROUND)
def test_show_and_describe_are_pointed_to_the_schema_command(runner: QueryRunner, sql: str) -> None:
    with pytest.raises(QueryRefused) as raised:
        runner.run(sql)

    assert raised.value.repair == ("hyp query schema",)


@pytest.mark.parametrize("column", HIDDEN)
def test_internal_and_iceberg_columns_cannot_be_selected(runner: QueryRunner, column: str) -> None:
    for sql in (
        f"SELECT {column} FROM {DATASET}",
        f"SELECT {column} FROM hypaware.{DATASET}",
        f"SELECT 1 FROM {DATASET} ORDER BY {column}",
    ):
        with pytest.raises(HypError, match="cannot be resolved") as raised:
            runner.run(sql)
        assert raised.value.kind == "query_invalid"


def test_the_check_of_the_analyzed_plan_works_without_the_first_check(bait: Views) -> None:
    """Each of the two checks works alone for what both can see."""
    for sql in (
        f"SELECT {CALL}",
        f"SELECT 1 WHERE 'a' IN (SELECT {CALL})",
        f"SELECT * FROM {TABLE}",
        f"SELECT (SELECT max(file_path) FROM {TABLE}.files)",
        "SELECT from_xml('<a/>', 'b INT')",
        "SELECT TRANSFORM(1) USING 'cat' AS (a STRING)",
        "SELECT secret FROM our_view",
        "SELECT secret FROM hypaware.our_global_view",
    ):
        analyzed = bait.session.sql(sql)._jdf.queryExecution().analyzed()
        with pytest.raises(QueryRefused):
            guard.check_analyzed(analyzed, bait.java, {DATASET})


def test_every_function_of_this_spark_version_was_reviewed(spark: SparkSession) -> None:
    """A new Spark version adds functions. Add them to the list after a review."""
    known = Path(__file__).with_name("spark_functions.txt").read_text(encoding="utf-8").split()

    found = [row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]

    assert sorted(set(found) - set(known)) == []
    assert set(found) >= guard.REFUSED_FUNCTIONS
    assert set(found) >= guard.TABLE_FUNCTIONS
