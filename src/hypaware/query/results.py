"""Read the result of a checked statement as Arrow batches, in order.

| result | how it is read |
|---|---|
| at most a few thousand rows are requested | partition by partition, until there are enough rows |
| small: a limit, one row, groups of a few MiB | in one job, into memory |
| unknown size | in one job, through files (`spill`), with constant memory |
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hypaware.errors import HypError
from hypaware.query import spill
from hypaware.query.guard import Statement, check_analyzed
from hypaware.query.views import SparkClasses, Views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FEW_ROWS = 2_000
_NO_BOUND = 2**31 - 1
_SMALL_BYTES = 8 << 20
_MAX_PARTITIONS_AT_ONCE = 16
# If only these operators follow the last shuffle, the result is no larger than the shuffled data.
_SIZE_PRESERVING = frozenset(
    {
        *("AQEShuffleReadExec", "ColumnarToRowExec", "FilterExec", "InputAdapter", "ProjectExec", "SortExec"),
        *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec", "WholeStageCodegenExec"),
    }
)


@dataclass(frozen=True)
class QueryResult:
    schema: pa.Schema
    batches: Generator[pa.RecordBatch, None, None]


def read_result(views: Views, statement: Statement, max_rows: int | None, known: Collection[str]) -> QueryResult:
    """Check the analyzed plan over the known datasets and run it. Up to `max_rows` + 1 rows are returned.

    The first batch is read before this returns: Spark reports only then that a table was replaced.
    """
    session, java = views.session, views.java
    bounds = (statement.limit, None if max_rows is None else max_rows + 1)
    wanted = min((bound for bound in bounds if bound is not None), default=_NO_BOUND)
    dataset = java.dataset.ofRows(session._jsparkSession, _limit_plan(java, statement, wanted, max_rows))
    check_analyzed(dataset.queryExecution().analyzed(), java, known)
    dataset = _to_arrow_types(session, dataset)
    schema_message = java.arrow.toArrowSchema(dataset.schema(), "UTC", False, False).serializeAsMessage()
    schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    if not schema.names:
        raise HypError("this SELECT has no columns", kind="query_invalid")
    few = wanted <= _FEW_ROWS
    batches = _read_first(session, dataset, schema, wanted) if few else _read_all(session, dataset, schema)
    return QueryResult(schema, _prepend(next(batches, None), batches))


def _prepend(
    first: pa.RecordBatch | None, rest: Generator[pa.RecordBatch, None, None]
) -> Generator[pa.RecordBatch, None, None]:
    with closing(rest):
        if first is not None:
            yield first
        yield from rest


def _limit_plan(java: SparkClasses, statement: Statement, wanted: int, max_rows: int | None) -> Any:
    """Limit the rows of each partition.

    If the order depends on all partitions, Spark must merge them. Otherwise the first partitions are enough, and the
    others are never read.
    """
    if wanted <= _FEW_ROWS and statement.ordered:
        return java.limit(wanted, statement.plan)
    if wanted <= _FEW_ROWS:
        plan = statement.plan if statement.limit is None else statement.plan.child().child()
        return java.limit_of_each_partition(wanted, plan)
    if max_rows is not None and max_rows < _NO_BOUND and not statement.ordered:
        return java.limit_of_each_partition(max_rows + 1, statement.plan)
    return statement.plan


def _read_first(
    session: SparkSession, dataset: Any, schema: pa.Schema, wanted: int
) -> Generator[pa.RecordBatch, None, None]:
    rdd = dataset.toArrowBatchRdd().toJavaRDD()
    start, count = 0, rdd.getNumPartitions()
    width = max(2, session.sparkContext.defaultParallelism)
    while start < count and wanted > 0:
        end = min(count, start + min(width, _MAX_PARTITIONS_AT_ONCE))
        for batch in _read_partitions(session, rdd, schema, range(start, end)):
            if batch.num_rows and wanted > 0:
                yield batch.slice(0, wanted)
                wanted -= batch.num_rows
        start, width = end, width * 4


def _read_all(session: SparkSession, dataset: Any, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    execution = dataset.queryExecution()
    max_rows = execution.optimizedPlan().maxRows()
    rdd = dataset.toArrowBatchRdd().toJavaRDD()
    count = rdd.getNumPartitions()
    if (max_rows.isDefined() and max_rows.get() <= _FEW_ROWS) or _is_small(execution.executedPlan()):
        yield from _read_partitions(session, rdd, schema, range(count))
    elif session.sparkContext.master.startswith("local"):
        yield from spill.read_spilled(session.sparkContext, rdd, schema)
    else:
        # Tasks of a cluster cannot write to our disk.
        for number in range(count):
            yield from _read_partitions(session, rdd, schema, range(number, number + 1))


def _is_small(plan: Any) -> bool:
    """Return whether the finished shuffles show that the result is at most a few MiB."""
    while True:
        match plan.getClass().getSimpleName():
            case "AdaptiveSparkPlanExec":
                plan = plan.executedPlan()
            case "ResultQueryStageExec":
                plan = plan.plan()
            case "ShuffleQueryStageExec":
                return bool(plan.getRuntimeStatistics().sizeInBytes() <= _SMALL_BYTES)
            case name if name in _SIZE_PRESERVING:
                plan = plan.child()
            case _:
                return False


def _read_partitions(session: SparkSession, rdd: Any, schema: pa.Schema, numbers: range) -> Iterator[pa.RecordBatch]:
    messages = spill.run_partitions(session.sparkContext, rdd, numbers)
    return spill.combine_batches(pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)


def _to_arrow_types(session: SparkSession, dataset: Any) -> Any:
    """Convert intervals to text and variants to JSON text, because Arrow readers do not support them."""
    from pyspark.sql import DataFrame

    fields = json.loads(dataset.schema().json())["fields"]
    columns = [f"c{index}" for index in range(len(fields))]
    converted = []
    for field, name in zip(fields, columns, strict=True):
        types = json.dumps(_type_names(field["type"]))
        if '"variant"' in types:
            converted.append(f"to_json({name})")
        elif '"interval' in types:
            converted.append(f"CAST({name} AS STRING)")
        else:
            converted.append(name)
    if converted == columns:
        return dataset
    frame = DataFrame(dataset, session).toDF(*columns).selectExpr(*converted)
    return frame.toDF(*(field["name"] for field in fields))._jdf


def _type_names(type_: Any) -> Any:
    """Return only the types within a type, because a field may be named "variant"."""
    match type_:
        case {"type": "struct", "fields": fields}:
            return [_type_names(field["type"]) for field in fields]
        case {"type": "array", "elementType": element}:
            return [_type_names(element)]
        case {"type": "map", "keyType": key, "valueType": value}:
            return [_type_names(key), _type_names(value)]
    return type_
