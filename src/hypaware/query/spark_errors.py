"""Spark's errors in words for the one who wrote the query: what, where, the nearest names; no stack, no plan.

`query_invalid` is a query that Spark cannot make sense of, `query_failed` one that failed on the data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from hypaware.errors import HypError, LakeError, Retryable

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.*?)\s*SQLSTATE: ([0-9A-Z]{5})", re.DOTALL)
_POSITION = re.compile(r"\(?line (\d+),? pos(ition)? (\d+)")
_SETTINGS = re.compile(r"\s*If necessary,? (?:set|you can set) [^.]*(?:\.[^. ]+)*[^.]* to bypass this error\.?")
_IN_A_TASK = re.compile(r"most recent failure: Lost task [^:\n]*: (.*)")
_IN_THE_DRIVER = re.compile(r"An error occurred while calling \S+\n: (.*)")
_NO_ROOM = "No space left on device"


@contextmanager
def translated() -> Iterator[None]:
    """Turns what Spark says into a HypError. That the JVM is gone, or the job cancelled, the engine knows better."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (ParseException, AnalysisException) as error:
        raise HypError(readable(str(error)), kind="query_invalid") from None
    except (PySparkException, Py4JJavaError) as error:
        raise _failure(str(error)) from error


def _failure(text: str) -> HypError:
    if _NO_ROOM in text:
        return Retryable("the disk is too full for this query's result; nothing was changed", kind="disk_full")
    if "StackOverflowError" in text or "nesting depth" in text:
        return HypError("the query is nested too deeply", kind="query_invalid")
    if found := _CONDITION.search(text):
        # Classes 42 and 0A: the query as written. The rest is about the values that it met.
        kind = "query_invalid" if found[3].startswith(("42", "0A")) else "query_failed"
        return HypError(readable(text), kind=kind)
    if "NotFoundException: File does not exist" in text or "is not a Parquet file" in text:
        return LakeError(
            "a data file that the lake names is missing or damaged; hyp verify says which",
            kind="lake_damaged",
            repair="hyp verify",
        )
    cause = _IN_A_TASK.search(text) or _IN_THE_DRIVER.search(text)
    what = cause[1] if cause else text.strip().splitlines()[0]
    return HypError(f"Spark failed on this query: {what.strip()}", kind="query_failed")


def readable(text: str) -> str:
    """The one sentence that matters of an error message of Spark."""
    found = _CONDITION.search(text)
    message = found[2] if found else text.strip().splitlines()[0]
    message = " ".join(_SETTINGS.sub("", message).split())
    if place := _POSITION.search(text):
        # Only the long form counts columns from 1.
        column = int(place[3]) + (0 if place[2] else 1)
        message = f"{message.rstrip('.')} (line {place[1]}, column {column})"
    return message


def keep_quiet() -> None:
    """PySpark prints every error of a query, with its stack, to this process's stderr. Ours are raised, once."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
