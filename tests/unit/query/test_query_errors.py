"""Translation of Spark's error messages."""

from __future__ import annotations

import pytest

from hypaware.errors import HypError
from hypaware.query import errors

UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `rol` \
cannot be resolved. Did you mean one of the following? [`role`, `model`]. SQLSTATE: 42703; line 2 pos 7;
'Project ['rol]
+- SubqueryAlias ai_gateway_messages
"""
SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
selec 1
^^^
"""
IN_A_TASK = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.runJob.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): org.apache.spark.SparkNumberFormatException: \
[CAST_INVALID_INPUT] The value 'x' of the type "STRING" cannot be cast to "INT" because it is malformed. \
Use `try_cast` to tolerate malformed input and return NULL \
instead. If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22018
== SQL (line 1, position 8) ==
select cast(content_text as int)
       ^^^^^^^^^^^^^^^^^^^^^^^^^
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.invalidInputInCastToNumberError(QueryExecutionErrors.scala:147)
"""
A_BUG_OF_SPARK = """An error occurred while calling o1896.optimizedPlan.
: java.lang.ClassCastException: class A cannot be cast to class B
\tat org.apache.spark.sql.catalyst.expressions.aggregate.ListAgg(collect.scala:543)
"""
LOST_FILE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.runJob.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver): java.io.FileNotFoundException: /x is gone
\tat java.base/java.io.FileInputStream.open0(Native Method)
"""


def test_an_unknown_column_is_reported_with_its_position_and_similar_names() -> None:
    assert errors.readable_message(UNRESOLVED) == (
        "A column, variable, or function parameter with name `rol` cannot be resolved. "
        "Did you mean one of the following? [`role`, `model`] (line 2, column 8)"
    )


def test_a_syntax_error_is_reported_with_its_position() -> None:
    assert errors.readable_message(SYNTAX) == "Syntax error at or near 'selec' (line 1, column 1)"


def test_a_value_error_in_a_task_is_reported_without_stack_and_spark_settings() -> None:
    assert errors.readable_message(IN_A_TASK) == (
        'The value \'x\' of the type "STRING" cannot be cast to "INT" because it is malformed. '
        "Use `try_cast` to tolerate malformed input and return NULL instead (line 1, column 8)"
    )


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (IN_A_TASK, "query_failed", "The value 'x'"),
        (UNRESOLVED, "query_invalid", "A column"),
        (A_BUG_OF_SPARK, "query_failed", "ClassCastException: class A cannot be cast to class B"),
        (LOST_FILE, "query_failed", "FileNotFoundException: /x is gone"),
        ("java.lang.StackOverflowError\n\tat x", "query_invalid", "nested too deeply"),
        ("OSError: [Errno 28] No space left on device", "disk_full", "the disk is too full"),
    ],
)
def test_every_spark_error_becomes_one_line_with_its_kind(text: str, kind: str, message: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(HypError) as raised, errors.translate_errors():
        raise PySparkException(message=text)

    assert raised.value.kind == kind
    assert message in raised.value.message
    assert "\n" not in raised.value.message


def test_errors_of_other_origin_are_not_translated() -> None:
    with pytest.raises(ZeroDivisionError), errors.translate_errors():
        raise ZeroDivisionError
