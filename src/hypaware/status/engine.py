"""The engine: what it says of itself, and whether what it needs is installed."""

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
    told, missing = _asked(home), _missing(cache)
    # One that runs has found its Java, perhaps in another environment than this one.
    no_java = None if told["state"] == "running" else _no_java(environment)
    facts = {**told, "installed": not missing and no_java is None}
    return Found(facts, tuple(_diagnostics(facts, missing, no_java)))


def _asked(home: Home) -> dict[str, Any]:
    try:
        return within(_SECONDS, lambda: client.status(home))
    except Exception as trouble:
        return {"state": "not_answering", "error": reason_of(trouble)}


def _missing(cache: Path) -> list[str]:
    """By name and size; `hyp doctor` looks at every byte."""
    where = jars.folder(cache, jars.locked())
    return [jar.file_name for jar in jars.locked() if _size(where / jar.file_name) != jar.size]


def _no_java(environment: Mapping[str, str]) -> NotReady | None:
    try:
        within(_SECONDS, lambda: java.find(environment))
    except NotReady as reason:
        return reason
    except TimeoutError:
        # One that has to be asked is there; `hyp doctor` waits for its answer.
        return None
    return None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _diagnostics(facts: dict[str, Any], missing: list[str], no_java: NotReady | None) -> Iterator[Diagnostic]:
    if no_java:
        yield warning(no_java.kind, f"{no_java.message}: nothing can be committed or asked", *no_java.repair)
    if missing:
        yield warning(
            "engine_not_installed",
            f"the engine is not installed, so nothing can be committed or asked ({len(missing)} jars are missing)",
            "hyp engine install",
        )
    if facts["state"] == "not_answering":
        yield warning("engine_not_answering", "the engine does not answer", "hyp engine stop")
