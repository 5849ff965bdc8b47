"""Translate Java exceptions into those of the sink interface.

An exception is classified by its own class and by those of its causes, the most specific first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from hypaware.export.sink import ChunkRefused, DestinationBusy, DestinationDenied, DestinationUnreachable, RangeOverlap

_ICEBERG = "org.apache.iceberg.exceptions."
_MOST_CAUSES = 20
# Prefixes of SQL states: wrong user or password, no such database, no permission, no such schema.
_SQL_DENIED = ("28", "3D", "42501", "3F")
_SQL_BUSY = ("53", "57P03")
_SQL_EXCEPTION = re.compile(r"java\.sql\.SQL\w*Exception|org\.(postgresql|sqlite)\.\S*Exception")
_SQLITE_BUSY = re.compile(r"SQLITE_(BUSY|LOCKED)")
_SQLITE_DENIED = re.compile(r"SQLITE_(CANTOPEN|READONLY|PERM|AUTH|NOTADB)|path to .* does not exist")
_NO_CLASS = re.compile(r"ClassNotFoundException|NoClassDefFoundError|NoSuchMethodException|No suitable driver")
_NO_PERMISSION = re.compile(r"AccessControlException|AccessDeniedException|Permission denied")
_HTTP_STATUS = re.compile(r"Status Code: (401|403|404|503)")


@dataclass(frozen=True)
class JavaCause:
    kind: str
    message: str
    sql_state: str = ""


def java_causes(error: BaseException) -> list[JavaCause]:
    """Return the Java exception and its causes, outermost first; empty if the error is not from Java."""
    raised = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found: list[JavaCause] = []
    while raised is not None and len(found) < _MOST_CAUSES:
        kind = str(raised.getClass().getName())
        state = raised.getSQLState() if _SQL_EXCEPTION.fullmatch(kind) else None
        found.append(JavaCause(kind, str(raised.getMessage() or ""), str(state or "")))
        raised = raised.getCause()
    return found


def is_iceberg_error(error: BaseException, *names: str) -> bool:
    """Return whether one of these Iceberg exceptions is among the causes."""
    return any(cause.kind == _ICEBERG + name for cause in java_causes(error) for name in names)


@contextmanager
def translate_java_errors(address: str) -> Iterator[None]:
    """Translate Java exceptions into DestinationDenied, -Busy or -Unreachable; those of the interface pass through."""
    # Imported here, so that the crash points of the sink can be listed without Spark.
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        yield
    except (DestinationDenied, DestinationBusy, DestinationUnreachable, RangeOverlap, ChunkRefused):
        raise
    except (Py4JJavaError, CapturedException) as error:
        raise classify_error(java_causes(error), address) from error
    except (Py4JError, OSError) as error:
        raise DestinationUnreachable(f"{address}: the engine's JVM or its disk failed: {error}") from error


def classify_error(
    found: list[JavaCause], address: str
) -> DestinationDenied | DestinationBusy | DestinationUnreachable:
    # The first line of the innermost message names the original cause.
    reason = found[0].kind if found else "no reason given"
    for cause in found:
        if cause.message:
            reason = f"{cause.message.splitlines()[0][:300]} ({cause.kind.rpartition('.')[2]})"
    problem = f"{address}: {reason}"
    text = " / ".join(f"{cause.kind}: {cause.message}" for cause in found)
    names = {cause.kind.removeprefix(_ICEBERG) for cause in found}
    states = [cause.sql_state for cause in found if cause.sql_state]
    if names & {"CommitStateUnknownException"}:
        return DestinationUnreachable(problem)
    denied = partial(DestinationDenied, repair="hyp config show")
    if names & {"NotAuthorizedException"} or any(state.startswith("28") for state in states):
        return denied(f"{problem}. The credentials are not accepted", kind="bad_credentials")
    if names & {"ForbiddenException"} or _NO_PERMISSION.search(text) or any(s.startswith("42501") for s in states):
        return denied(f"{problem}. The destination denies access", kind="no_permission")
    if _NO_CLASS.search(text):
        problem = f"{problem}. The catalog or store needs Java classes that the engine does not have"
        return denied(problem, kind="destination_needs_jars")
    if any(state.startswith(_SQL_DENIED) for state in states) or _SQLITE_DENIED.search(text):
        return denied(problem, kind="destination_misconfigured")
    if _SQLITE_BUSY.search(text) or any(state.startswith(_SQL_BUSY) for state in states):
        return DestinationBusy(problem)
    if names & {"CommitFailedException", "ServiceUnavailableException"}:
        return DestinationBusy(f"{problem}. Other writers are committing to the table")
    if (status := _HTTP_STATUS.search(text)) and "awssdk" in text:
        if status[1] == "503":
            return DestinationBusy(problem)
        problem = f"{problem}. The store denies access, or the bucket does not exist"
        return DestinationDenied(problem, kind="no_permission")
    if "Table UUID does not match" in text:
        problem = f"{problem}. The table was dropped and created again; run the command again"
        return DestinationDenied(problem, kind="destination_changed")
    if names & {"BadRequestException", "java.lang.IllegalArgumentException", "java.net.URISyntaxException"}:
        return denied(problem, kind="destination_misconfigured")
    return DestinationUnreachable(problem)
