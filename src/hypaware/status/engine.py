"""The engine: its own status, and whether Java and its jars are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hypaware.engine import client, jars, java
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.status.diagnostic import Diagnostic, Found, reason_of, warning
from hypaware.status.within import within

_SECONDS = 1.5


def look(home: Home, cache: Path, environment: Mapping[str, str]) -> Found[dict[str, Any]]:
    status, missing = _engine_status(home), _missing_jars(cache)
    # A running engine has found its Java, perhaps in another environment than this one.
    java_error = None if status["state"] == "running" else _java_error(environment)
    facts = {**status, "installed": not missing and java_error is None}
    return Found(facts, tuple(_diagnostics(facts, missing, java_error)))


def _engine_status(home: Home) -> dict[str, Any]:
    try:
        return within(_SECONDS, lambda: client.status(home))
    except Exception as error:
        return {"state": "not_answering", "error": reason_of(error)}


def _missing_jars(cache: Path) -> list[str]:
    """Return the jars that are missing, by name and size. `hyp doctor` verifies their hashes."""
    folder = jars.folder(cache, jars.locked())
    return [jar.file_name for jar in jars.locked() if _size(folder / jar.file_name) != jar.size]


def _java_error(environment: Mapping[str, str]) -> NotReady | None:
    try:
        within(_SECONDS, lambda: java.find(environment))
    except NotReady as error:
        return error
    except TimeoutError:
        # A Java that is slow to answer exists; `hyp doctor` waits for it.
        return None
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _diagnostics(facts: dict[str, Any], missing: list[str], java_error: NotReady | None) -> Iterator[Diagnostic]:
    if java_error:
        yield warning(java_error.kind, f"{java_error.message}: flushes and queries cannot run", *java_error.repair)
    if missing:
        yield warning(
            "engine_not_installed",
            f"the engine is not installed ({len(missing)} jars are missing): flushes and queries cannot run",
            "hyp engine install",
        )
    if facts["state"] == "not_answering":
        yield warning("engine_not_answering", "the engine does not answer", "hyp engine stop")
