"""Translate Java exceptions into those of the sink interface.

An exception is classified by its own class and by those of its causes, the most specific first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hypaware.export.sink import Busy, Denied, Overlap, Refused, Unreachable

_ICEBERG = "org.apache.iceberg.exceptions."
_MOST_CAUSES = 20
_CONFIG = "hyp config show"

# Prefixes of SQL states: wrong user or password, no such database, no permission, no such schema.
_SQL_DENIED = ("28", "3D", "42501", "3F")
_SQL_BUSY = ("53", "57P03")
_SQL_EXCEPTION = re.compile(r"java\.sql\.SQL\w*Exception|org\.(postgresql|sqlite)\.\S*Exception")
_SQLITE_BUSY = re.compile(r"SQLITE_(BUSY|LOCKED)")
_SQLITE_DENIED = re.compile(r"SQLITE_(CANTOPEN|READONLY|PERM|AUTH|NOTADB)|path to .* does not exist")
_NO_CLASS = re.compile(r"ClassNotFoundException|NoClassDefFoundError|NoSuchMethodException|No suitable driver")
_NO_RIGHT = re.compile(r"AccessControlException|AccessDeniedException|Permission denied")
_HTTP_STATUS = re.compile(r"Status Code: (401|403|404|503)")


@dataclass(frozen=True)
class Cause:
    kind: str
    message: str
    sql_state: str = ""


def causes(error: BaseException) -> list[Cause]:
    """Return the Java exception and its causes, outermost first; empty if the error is not from Java."""
    raised = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    found: list[Cause] = []
    while raised is not None and len(found) < _MOST_CAUSES:
        kind = str(raised.getClass().getName())
        state = raised.getSQLState() if _SQL_EXCEPTION.fullmatch(kind) else None
        found.append(Cause(kind, str(raised.getMessage() or ""), str(state or "")))
        raised = raised.getCause()
    return found


def is_a(error: BaseException, *names: str) -> bool:
    """Return whether one of these Iceberg exceptions is among the causes."""
    return any(cause.kind == _ICEBERG + name for cause in causes(error) for name in names)


@contextmanager
def told(address: str) -> Iterator[None]:
    """Translate Java exceptions into Denied, Busy or Unreachable. Exceptions of the sink interface pass through."""
    # Imported here, so that the crash points of the sink can be listed without Spark.
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors.exceptions.captured import CapturedException

    try:
        yield
    except (Denied, Busy, Unreachable, Overlap, Refused):
        raise
    except (Py4JJavaError, CapturedException) as error:
        raise judged(causes(error), address) from error
    except (Py4JError, OSError) as error:
        raise Unreachable(f"{address}: the engine's JVM or its disk failed: {error}") from error


def judged(found: list[Cause], address: str) -> Denied | Busy | Unreachable:
    problem = f"{address}: {_telling(found)}"
    text = " / ".join(f"{cause.kind}: {cause.message}" for cause in found)
    names = {cause.kind.removeprefix(_ICEBERG) for cause in found}
    states = [cause.sql_state for cause in found if cause.sql_state]
    if names & {"CommitStateUnknownException"}:
        return Unreachable(problem)
    if names & {"NotAuthorizedException"} or any(state.startswith("28") for state in states):
        return Denied(f"{problem}. The credentials are not accepted", kind="bad_credentials", repair=_CONFIG)
    if names & {"ForbiddenException"} or _NO_RIGHT.search(text) or any(s.startswith("42501") for s in states):
        return Denied(f"{problem}. The destination denies access", kind="no_permission", repair=_CONFIG)
    if _NO_CLASS.search(text):
        return Denied(
            f"{problem}. The catalog or store needs Java classes that the engine does not have",
            kind="destination_needs_jars",
            repair=_CONFIG,
        )
    if any(state.startswith(_SQL_DENIED) for state in states) or _SQLITE_DENIED.search(text):
        return Denied(problem, kind="destination_misconfigured", repair=_CONFIG)
    if _SQLITE_BUSY.search(text) or any(state.startswith(_SQL_BUSY) for state in states):
        return Busy(problem)
    if names & {"CommitFailedException", "ServiceUnavailableException"}:
        return Busy(f"{problem}. Other writers are committing to the table")
    if (status := _HTTP_STATUS.search(text)) and "awssdk" in text:
        if status[1] == "503":
            return Busy(problem)
        return Denied(f"{problem}. The store denies access, or the bucket does not exist", kind="no_permission")
    if "Table UUID does not match" in text:
        return Denied(
            f"{problem}. The table was dropped and created again; run the command again", kind="destination_changed"
        )
    if names & {"BadRequestException", "java.lang.IllegalArgumentException", "java.net.URISyntaxException"}:
        return Denied(problem, kind="destination_misconfigured", repair=_CONFIG)
    return Unreachable(problem)


def _telling(found: list[Cause]) -> str:
    """Return the first line of the innermost message, which names the original cause."""
    for cause in reversed(found):
        if cause.message:
            return f"{cause.message.splitlines()[0][:300]} ({cause.kind.rpartition('.')[2]})"
    return found[0].kind if found else "no reason given"
