"""From a checked statement to Arrow batches, in the order of the result.

| what is known about the result | how it is read |
|---|---|
| at most a few thousand rows are wanted | partition by partition until there are enough of them |
| it is small: a limit, one row, groups that fit into a few MiB | in one job, straight into memory |
| nothing | in one job, through files (`spill`): flat memory, whatever comes |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hypaware.errors import HypError
from hypaware.query import batches, partitions, spill
from hypaware.query.guard import Statement
from hypaware.query.spark_classes import SparkClasses
from hypaware.query.views import Views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FEW_ROWS = 2_000
_NO_BOUND = 2**31 - 1
_SMALL_BYTES = 8 << 20
_MOST_PARTITIONS_AT_ONCE = 16
# What may stand between the last shuffle and a result for it to be no larger than what was shuffled.
_NEVER_GROWS = frozenset(
    {
        *("AQEShuffleReadExec", "ColumnarToRowExec", "FilterExec", "InputAdapter", "ProjectExec", "SortExec"),
        *("HashAggregateExec", "ObjectHashAggregateExec", "SortAggregateExec", "WholeStageCodegenExec"),
    }
)


@dataclass(frozen=True)
class Result:
    schema: pa.Schema
    batches: Generator[pa.RecordBatch, None, None]


def read(views: Views, statement: Statement, max_rows: int | None, check: Callable[[Any], None]) -> Result:
    """`check` sees the analyzed plan before anything runs. One row more than `max_rows` comes, if there is one."""
    session = views.session
    wanted = _wanted(statement.limit, max_rows)
    plan = _limited(views.java, statement, wanted, max_rows)
    dataset = views.java.dataset(session._jsparkSession, plan)
    check(dataset.queryExecution().analyzed())
    dataset = _presentable(session, dataset)
    schema = pa.ipc.read_schema(pa.py_buffer(views.java.arrow_schema_message(dataset.schema())))
    if not schema.names:
        raise HypError("this SELECT has no columns", kind="query_invalid")
    if wanted <= _FEW_ROWS:
        return Result(schema, _take(session, dataset, schema, wanted))
    return Result(schema, _all(session, dataset, schema))


def _wanted(limit: int | None, max_rows: int | None) -> int:
    bounds = (limit, None if max_rows is None else max_rows + 1)
    return min((bound for bound in bounds if bound is not None), default=_NO_BOUND)


def _limited(java: SparkClasses, statement: Statement, wanted: int, max_rows: int | None) -> Any:
    """Each partition gives so many rows at most. Where all of them decide which rows come first, Spark must merge
    them, if they are few; else the first partitions will do, and the others are never read."""
    if wanted <= _FEW_ROWS and statement.ordered:
        return java.limit(wanted, statement.plan)
    if wanted <= _FEW_ROWS:
        plan = statement.plan if statement.limit is None else statement.plan.child().child()
        return java.limit_of_each_partition(wanted, plan)
    if max_rows is not None and max_rows < _NO_BOUND and not statement.ordered:
        return java.limit_of_each_partition(max_rows + 1, statement.plan)
    return statement.plan


def _take(session: SparkSession, dataset: Any, schema: pa.Schema, wanted: int) -> Generator[pa.RecordBatch, None, None]:
    rdd = dataset.toArrowBatchRdd().toJavaRDD()
    begin, count = 0, rdd.getNumPartitions()
    width = max(2, session.sparkContext.defaultParallelism)
    while begin < count and wanted > 0:
        end = min(count, begin + min(width, _MOST_PARTITIONS_AT_ONCE))
        for batch in _run(session, rdd, schema, range(begin, end)):
            if batch.num_rows and wanted > 0:
                yield batch.slice(0, wanted)
                wanted -= batch.num_rows
        begin, width = end, width * 4


def _all(session: SparkSession, dataset: Any, schema: pa.Schema) -> Generator[pa.RecordBatch, None, None]:
    execution = dataset.queryExecution()
    most = execution.optimizedPlan().maxRows()
    rdd = dataset.toArrowBatchRdd().toJavaRDD()
    count = rdd.getNumPartitions()
    if (most.isDefined() and most.get() <= _FEW_ROWS) or _is_small(execution.executedPlan()):
        yield from _run(session, rdd, schema, range(count))
    elif session.sparkContext.master.startswith("local"):
        yield from spill.read(session.sparkContext, rdd, schema)
    else:
        # Tasks of a cluster have other disks than ours.
        for number in range(count):
            yield from _run(session, rdd, schema, range(number, number + 1))


def _is_small(plan: Any) -> bool:
    """Whether only groups of a few MiB are left to be read, which the finished shuffles before them tell."""
    while True:
        match plan.getClass().getSimpleName():
            case "AdaptiveSparkPlanExec":
                plan = plan.executedPlan()
            case "ResultQueryStageExec":
                plan = plan.plan()
            case "ShuffleQueryStageExec":
                return bool(plan.getRuntimeStatistics().sizeInBytes() <= _SMALL_BYTES)
            case name if name in _NEVER_GROWS:
                plan = plan.child()
            case _:
                return False


def _run(session: SparkSession, rdd: Any, schema: pa.Schema, numbers: range) -> Iterator[pa.RecordBatch]:
    messages = partitions.run(session.sparkContext, rdd, numbers)
    return batches.joined(pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages)


def _presentable(session: SparkSession, dataset: Any) -> Any:
    """Intervals and variants, which Arrow or its readers do not know, as text and as JSON text."""
    from pyspark.sql import DataFrame

    fields = json.loads(dataset.schema().json())["fields"]
    shown = [_as_shown(field["type"], f"c{at}") for at, field in enumerate(fields)]
    if not any(shown):
        return dataset
    plain = [f"c{at}" for at in range(len(fields))]
    frame = DataFrame(dataset, session).toDF(*plain)
    frame = frame.selectExpr(*(how or name for how, name in zip(shown, plain, strict=True)))
    return frame.toDF(*(field["name"] for field in fields))._jdf


def _as_shown(type_: Any, name: str) -> str | None:
    written = json.dumps(_without_names(type_))
    if '"variant"' in written:
        return f"to_json({name})"
    if '"interval' in written:
        return f"CAST({name} AS STRING)"
    return None


def _without_names(type_: Any) -> Any:
    """The types in a type: a field may be called "variant"."""
    match type_:
        case {"type": "struct", "fields": fields}:
            return [_without_names(field["type"]) for field in fields]
        case {"type": "array", "elementType": element}:
            return [_without_names(element)]
        case {"type": "map", "keyType": key, "valueType": value}:
            return [_without_names(key), _without_names(value)]
    return type_
