"""The engine: what it says of itself, and whether what it needs is installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypaware.engine import client, jars
from hypaware.home import Home
from hypaware.status.diagnostic import Diagnostic, Found, reason_of, warning
from hypaware.status.within import within

_SECONDS = 1.5


def look(home: Home, cache: Path) -> Found[dict[str, Any]]:
    facts = {**_asked(home), "installed": not (missing := _missing(cache))}
    return Found(facts, tuple(_diagnostics(facts, missing)))


def _asked(home: Home) -> dict[str, Any]:
    try:
        return within(_SECONDS, lambda: client.status(home))
    except Exception as trouble:
        return {"state": "not_answering", "error": reason_of(trouble)}


def _missing(cache: Path) -> list[str]:
    """By name and size; `hyp doctor` looks at every byte."""
    where = jars.folder(cache, jars.locked())
    return [jar.file_name for jar in jars.locked() if _size(where / jar.file_name) != jar.size]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _diagnostics(facts: dict[str, Any], missing: list[str]) -> Iterator[Diagnostic]:
    if missing:
        yield warning(
            "engine_not_installed",
            f"the engine is not installed, so nothing can be committed or asked ({len(missing)} jars are missing)",
            "hyp engine install",
        )
    if facts["state"] == "not_answering":
        yield warning("engine_not_answering", "the engine does not answer", "hyp engine stop")
