"""Damaged tables during a purge: it runs only if none of them holds a row of the purge.

The metadata of a damaged table cannot say which files are live, so every data file in its directories is searched, and
its rows in the spool. If one of them matches or cannot be read, the purge is refused before it changes anything: it
could not prove that the rows are gone, and a rebuild would bring them back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from hypaware.errors import LakeError, Retryable
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health
from hypaware.lake.build import BuildFailure
from hypaware.maintain.apply_settlements import PendingSettlements
from hypaware.maintain.purge import copies, search
from hypaware.maintain.purge.search import TaskRunner
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.model import datasets


def check_damaged_tables(
    home: Home, selector: PurgeSelector, run: TaskRunner, note: Callable[[str], None]
) -> frozenset[str]:
    """Return the damaged tables, none of which holds a row of the purge, as every file of theirs on disk shows.

    Raises LakeError with the repair if one does, or if that cannot be known. Nothing has been changed then.
    """
    damaged = health.find_damaged_tables(home)
    if not damaged:
        return frozenset()
    # Rows of a folder without the folder's name are found by their session, in whichever table names it.
    try:
        sessions = {
            *search.find_sessions(home, selector, run, damaged),
            *search.sessions_of_rows(selector, partial(copies.unflushed_rows, home, {})),
        }
        for name, error in damaged.items():
            if reason := _reason_to_refuse(home, selector, sorted(sessions), name, error, run):
                message = f"nothing was purged, because {reason}. {error.message}"
                raise LakeError(message, kind=error.kind, repair=error.repair)
    except (OSError, pa.ArrowException, Retryable) as problem:
        first = next(iter(damaged.values()))
        message = f"nothing was purged, because a damaged table may hold such rows ({problem}). {first.message}"
        raise LakeError(message, kind=first.kind, repair=first.repair) from problem
    for name, error in damaged.items():
        note(f"warning: no file of {name} holds a row of this purge, and the table is left alone: {error.message}")
    return frozenset(damaged)


def _reason_to_refuse(
    home: Home,
    selector: PurgeSelector,
    sessions: Sequence[str],
    name: str,
    error: LakeError,
    run: TaskRunner,
) -> str | None:
    if error.kind != "lake_damaged":
        return f"rows of {name} that were recorded are missing, and may come back with a backup"
    if name not in datasets.list_names():
        return f"{name} is damaged and its plugin is not installed"
    dataset = datasets.get(name)
    within = selector.for_dataset(dataset, sessions)
    if within is None:
        return None
    if dataset.match_rules is not None and PendingSettlements.read(home, dataset):
        return f"settlements of {name} cannot be applied while it is damaged"
    unreadable: dict[Path, OSError] = {}
    in_spool = any(within.matches(dataset, row) for row in copies.unflushed_rows(home, unreadable, dataset))
    if unreadable:
        return f"a segment of {name} cannot be read ({next(iter(unreadable))})"
    if in_spool:
        return f"such rows of {name} are in the spool and cannot be flushed while the table is damaged"
    files = [(path, path.stat().st_size) for path in metadata.list_files_on_disk(home, name)]
    for result in run(list(search.search_tasks(dataset, files, within, None))):
        if isinstance(result, BuildFailure):
            return f"a data file of {name} cannot be read ({result.reason})"
        if any(found.rows for found in result.reports):
            return f"files of {name} hold such rows"
    return None
