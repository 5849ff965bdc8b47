"""Translate Spark's errors for the author of a query: the problem and its position, without stack and plan.

The kind `query_invalid` means that the query itself is wrong, `query_failed` that it failed on the data.
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
_DISK_FULL = "No space left on device"


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise Spark's errors as HypError. A lost JVM and a cancelled job are handled by the engine."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, ParseException, PySparkException

    try:
        yield
    except (ParseException, AnalysisException) as error:
        raise HypError(readable_message(str(error)), kind="query_invalid") from None
    except (PySparkException, Py4JJavaError) as error:
        raise _to_error(str(error)) from error


def _to_error(text: str) -> HypError:
    if _DISK_FULL in text:
        return Retryable("the disk is too full for this query's result; nothing was changed", kind="disk_full")
    if "StackOverflowError" in text or "nesting depth" in text:
        return HypError("the query is nested too deeply", kind="query_invalid")
    if found := _CONDITION.search(text):
        # SQLSTATE classes 42 and 0A blame the query itself, all others the data.
        kind = "query_invalid" if found[3].startswith(("42", "0A")) else "query_failed"
        return HypError(readable_message(text), kind=kind)
    if "NotFoundException: File does not exist" in text or "is not a Parquet file" in text:
        return LakeError(
            "a data file of the lake is missing or damaged; run hyp verify to find it",
            kind="lake_damaged",
            repair="hyp verify",
        )
    cause = _IN_A_TASK.search(text) or _IN_THE_DRIVER.search(text)
    what = cause[1] if cause else text.strip().splitlines()[0]
    return HypError(f"Spark failed on this query: {what.strip()}", kind="query_failed")


def readable_message(text: str) -> str:
    """Reduce an error message of Spark to its main sentence, with line and column."""
    found = _CONDITION.search(text)
    message = found[2] if found else text.strip().splitlines()[0]
    message = " ".join(_SETTINGS.sub("", message).split())
    if place := _POSITION.search(text):
        # "position" counts columns from 1, "pos" from 0.
        column = int(place[3]) + (0 if place[2] else 1)
        message = f"{message.rstrip('.')} (line {place[1]}, column {column})"
    return message
