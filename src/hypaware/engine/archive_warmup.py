"""The workload from which a class archive is built: the first operations of an engine, on a temporary lake.

`python -m hypaware.engine.archive_warmup CACHE ARCHIVE`. The JVM writes the archive when it exits. Only the set of
loaded classes matters; a class that is not used here is loaded in the normal, slower way.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware.engine import session
from hypaware.home import Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DUMP_SECONDS = 600.0
_TABLE = f"{session.CATALOG}.training.rows"
_QUERIES = (
    "SELECT count(*) FROM shown",
    "SELECT model, role, count(*) AS n, sum(tokens) FROM shown GROUP BY model, role ORDER BY n DESC, 1",
    "SELECT count(*) FROM shown WHERE body LIKE '%data%' AND source = 'a'",
    "SELECT * FROM shown WHERE at >= timestamp '2026-11-02' ORDER BY seq DESC LIMIT 10",
    "SELECT date_trunc('day', at), count(DISTINCT model), max(length(body)) FROM shown GROUP BY 1",
    "WITH best AS (SELECT source, max(seq) AS seq FROM shown GROUP BY source) "
    "SELECT * FROM shown JOIN best USING (source, seq)",
    "SELECT seq, row_number() OVER (PARTITION BY source ORDER BY seq) FROM shown",
    "SELECT get_json_object(extra, '$.k'), sha2(body, 256), unhex('00') FROM shown WHERE seq > 5 AND seq <= 100",
    f"SELECT snapshot_id, summary['hyp'] FROM {_TABLE}.snapshots",
    f"SELECT file_path, record_count FROM {_TABLE}.files",
)


def main(cache: Path, archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".training-", dir=archive.parent) as folder:
        home = Home(Path(folder))
        opened = session.open_session(home, cache=cache, archive_options=[f"-XX:ArchiveClassesAtExit={archive}"])
        try:
            opened.own_lake(lambda *_: None)
            run_workload(opened.spark)
        finally:
            opened.close(timeout=_DUMP_SECONDS)


def run_workload(spark: SparkSession) -> None:
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {session.CATALOG}.training")
    spark.sql(
        f"CREATE TABLE {_TABLE} (seq bigint, source string, at timestamp, model string, role string, tokens int, "
        "score double, ok boolean, extra string, body string) USING iceberg PARTITIONED BY (source, days(at)) "
        "TBLPROPERTIES ('format-version' = '2', 'write.parquet.compression-codec' = 'zstd')"
    )
    spark.sql(
        f"INSERT INTO {_TABLE} SELECT id, 'a', timestamp '2026-11-01 10:00:00' + make_interval(0, 0, 0, id), "
        "concat('m', id % 3), 'r', cast(id AS int), id / 2, true, '{\"k\": 1}', concat('some data ', id) FROM range(5)"
    )
    _append(spark)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW shown AS SELECT * FROM {_TABLE}")
    for query in _QUERIES:
        spark.sql(query).collect()
        spark._jsparkSession.sessionState().sqlParser().parsePlan(query).toString()
    spark.sql(_QUERIES[3]).toArrow()
    spark.sparkContext.parallelize(range(4), 2).map(abs).collect()


def _append(spark: SparkSession) -> None:
    """Commit through Iceberg's API, as the flush does, here with a file that the table already has."""
    iceberg: Any = spark._jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, _TABLE)
    (path, *_), *_ = spark.sql(f"SELECT file_path FROM {_TABLE}.files").collect()
    opened = table.io().newInputFile(path)
    metrics = iceberg.parquet.ParquetUtil.fileMetrics(opened, iceberg.MetricsConfig.forTable(table))
    partition = iceberg.PartitionData(table.spec().partitionType())
    partition.set(0, "b")
    partition.set(1, 20_000)
    builder = iceberg.DataFiles.builder(table.spec()).withInputFile(opened).withMetrics(metrics)
    transaction = table.newTransaction()
    file = builder.withPartition(partition).withFormat("parquet").build()
    transaction.newAppend().appendFile(file).set("hyp", "training").commit()
    transaction.updateProperties().set("hyp", "training").commit()
    transaction.commitTransaction()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
