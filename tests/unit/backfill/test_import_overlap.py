"""Batches that are built while the one before is committed: the same rows, in order, and none after a failure."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from hypaware.backfill import batches
from hypaware.backfill.batches import BatchQueue, ImportBatch, StartedBatch, group_by_size
from hypaware.backfill.import_job import ImportProgress
from hypaware.backfill.providers import load_providers
from hypaware.backfill.report import ImportReport
from hypaware.backfill.source_rows import SourcePiece
from hypaware.backfill.survey import DueSource, SourceSurvey
from hypaware.clients.client import Source
from hypaware.clients.reader import SourceSnapshot
from hypaware.errors import Cancelled
from hypaware.home import Home
from hypaware.lake import commit
from hypaware.lake.build import BuildSettings, Task
from hypaware.model.datasets import BATCH_ID, SEQ
from hypaware.state import flushes
from hypaware.state.flushes import Flush, SourceCheckpoint
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support import claude_files
from tests.support.claude_files import turns, write
from tests.support.light_home import DATASET, append, flush, import_history
from tests.support.light_lake import LightLake, read_lake
from tests.support.live_rows import Part

SESSIONS = "abcde"
IN_ORDER = ["a", "fork", "b", "c", "d", "e"]
ROWS = {**dict.fromkeys(SESSIONS, 12), "fork": 3}
_PATIENCE = 120


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Write five sessions, one after another, and a fork of the first, which is read after it."""
    projects = tmp_path / "claude" / "projects" / "-project"
    for day, name in enumerate(SESSIONS, 1):
        write(projects / f"{name}.jsonl", turns(name, 4, start=claude_files.START.replace(day=day)))
    original = turns("a", 4, start=claude_files.START.replace(day=1))
    copied = [{**line, "sessionId": "fork"} for line in original]
    own = turns("fork", 1, first=4, start=claude_files.START.replace(day=1))
    write(projects / "fork.jsonl", iter([*copied, *own]), age=claude_files.LONG_AGO - 60)
    return {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}


@pytest.fixture
def one_source_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", (1,))


def lake(home: Home) -> list[dict[str, Any]]:
    return sorted(read_lake(home, DATASET), key=lambda row: row[SEQ])


def state(home: Home) -> tuple[list[Any], set[str]]:
    """Return the unfinished flushes, and the data files that no table has."""
    live = {row[BATCH_ID] for row in lake(home)}
    files = {path.name for path in home.warehouse.rglob("*.parquet") if path.name[:36] not in live}
    with closing(open_home(home).store) as store, store.reading() as connection:
        return flushes.unfinished_flushes(connection), files


def write_rescued_prompt(environment: dict[str, str]) -> None:
    """Write a prompt whose transcript is gone. It becomes a live row, and is read before the transcripts."""
    prompt = {"display": "was deleted", "timestamp": 1_700_000_000_000, "project": "/p", "sessionId": "gone"}
    history = Path(environment["CLAUDE_CONFIG_DIR"]) / "history.jsonl"
    history.write_bytes(orjson.dumps(prompt) + b"\n")
    os.utime(history, (0, 0))


def is_complete(home: Home) -> bool:
    parts = Counter(row["part_id"] for row in lake(home))
    sessions = Counter(row["session_id"] for row in lake(home))
    return set(parts.values()) == {1} and sessions == ROWS


def test_rows_and_keys_do_not_depend_on_how_a_history_is_divided_into_batches(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rescued prompt makes the first batch live, so native rows of later batches need match keys too."""
    write_rescued_prompt(environment)
    found = []
    for name, limits in (("whole", (1 << 30,)), ("divided", (1,))):
        monkeypatch.setattr(batches, "BATCH_BYTES", limits)
        home = Home(tmp_path / name)
        import_history(home, {**environment, "HYP_HOME": str(home.root)})
        rows = [{**row, BATCH_ID: None, "gateway_id": None} for row in lake(home)]
        for row in rows:
            row.pop("_hyp_cache_row_id")
        with closing(sqlite3.connect(home.keys)) as db:
            keys = db.execute("SELECT hash, seq FROM keys ORDER BY hash").fetchall()
            matches = db.execute("SELECT hash, seq, mark, at FROM matches ORDER BY hash, seq").fetchall()
        found.append((rows, keys, matches, len({row[BATCH_ID] for row in lake(home)})))
    whole, divided = found
    assert whole[:3] == divided[:3]
    assert len(whole[0]) == 64
    assert len(whole[2]) >= 64
    assert (whole[3], divided[3]) == (1, 7)


@pytest.mark.usefixtures("one_source_a_batch")
def test_a_live_row_is_not_dropped_for_a_row_of_a_transcript_that_could_not_be_read(
    home: Home, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matching begins with the first batch. The transcript's rows are in the file of a batch that was built before."""
    write_rescued_prompt(environment)
    real = SourcePiece._checkpoint

    def fail_for_one(self: SourcePiece, *rest: Any) -> SourceCheckpoint:
        if self.snapshot.path.stem == "fork":
            raise ValueError("cannot be read to its end")
        return real(self, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(SourcePiece, "_checkpoint", fail_for_one)
        import_history(home, environment)
    assert not [row for row in lake(home) if row["session_id"] == "fork"]

    append(home, [Part(0, text="question 4", session="fork").live(late=True)])
    flush(home)

    assert [row["content_text"] for row in lake(home) if row["session_id"] == "fork"] == ["question 4"]


@pytest.mark.usefixtures("one_source_a_batch")
def test_the_next_batches_are_built_while_one_is_committed(
    home: Home, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = threading.Event()
    real_run, real_commit = LightLake.run, commit.commit_flush

    def run(self: LightLake, tasks: Sequence[Task]) -> Any:
        if _is_of("b", tasks):
            started.set()
        return real_run(self, tasks)

    def commit_later(*given: Any) -> Any:
        assert started.wait(_PATIENCE), "the second batch is not built before the first is committed"
        return real_commit(*given)

    monkeypatch.setattr(LightLake, "run", run)
    monkeypatch.setattr(commit, "commit_flush", commit_later)
    import_history(home, environment)
    assert is_complete(home)


@pytest.mark.hazard(50)
@pytest.mark.usefixtures("one_source_a_batch")
@pytest.mark.parametrize(
    "point",
    [
        "lake.intake.after-pend",
        "lake.commit.before-commit",
        "lake.commit.after-commit",
        "lake.record.after-commit",
        "lake.keys.after-commit",
    ],
)
def test_an_import_killed_at_a_commit_during_the_next_build_is_finished_without_duplicates(
    home: Home, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with monkeypatch.context() as patched:
        _hold_build_of("fork", patched)
        assert not run_in_child(lambda: (import_history(home, environment), None)[1], crash_at=point)
    unfinished, orphans = state(home)
    assert len(unfinished) >= 2, "batches after the first were reserved"
    assert len(orphans) >= 2, "files of the second and third batch are written"
    import_history(home, environment)
    assert is_complete(home)
    assert state(home) == ([], set())
    again = import_history(home, environment)
    assert (again.rows.written, again.files_unchanged) == (0, 6)


@pytest.mark.usefixtures("one_source_a_batch")
@pytest.mark.parametrize("kept", [0, 1, 3])
def test_after_a_failed_commit_earlier_batches_are_kept_and_later_ones_discarded(
    home: Home, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    real, commits = commit.commit_flush, list[str]()

    def commit_some(target: Any, flush: Any, *rest: Any) -> Any:
        if len(commits) == kept:
            with commit.discard_on_error(target, flush):
                raise OSError(28, "No space left on device")
        commits.append(flush.id)
        return real(target, flush, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(commit, "commit_flush", commit_some)
        with pytest.raises(OSError, match="No space"):
            import_history(home, environment)
    assert Counter(row["session_id"] for row in lake(home)) == {name: ROWS[name] for name in IN_ORDER[:kept]}
    assert state(home) == ([], set())
    import_history(home, environment)
    assert is_complete(home)


@pytest.mark.usefixtures("one_source_a_batch")
def test_a_cancelled_import_keeps_the_batches_that_are_committed(
    home: Home, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = BatchQueue.take, list[object]()

    def take(self: BatchQueue) -> Any:
        if len(taken) == 2:
            raise Cancelled("backfill was cancelled")
        taken.append(None)
        return real(self)

    with monkeypatch.context() as patched:
        patched.setattr(BatchQueue, "take", take)
        with pytest.raises(Cancelled):
            import_history(home, environment)
    assert Counter(row["session_id"] for row in lake(home)) == {"a": 12, "fork": 3}
    assert state(home) == ([], set())
    import_history(home, environment)
    assert is_complete(home)


class Shown:
    """Records the progress of a job."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def progress(self, message: str, done: float, total: float, **facts: object) -> None:
        self.seen.append((done, total, facts["files"], facts["rows"]))


def test_progress_adds_the_batches_that_are_built_at_the_same_time(tmp_path: Path) -> None:
    due = [DueSource(Source(tmp_path), SourceSnapshot(tmp_path, 1, size, 0), "") for size in (30, 50)]
    entry, shown = load_providers().get("claude"), Shown()
    assert entry is not None
    progress = ImportProgress(shown, ImportReport(entry), SourceSurvey(due=due))  # type: ignore[arg-type]
    settings = BuildSettings(DATASET, "", tmp_path, {})
    first, second = (
        StartedBatch(ImportBatch((each,)), Flush(str(number), DATASET, 0, 1, ()), settings, Future())
        for number, each in enumerate(due)
    )
    progress.watch(first.flush)(20, 0, 2)
    progress.watch(second.flush)(50, 1, 3)
    progress.report.rows.written = 2
    progress.finish(first)
    assert shown.seen == [(20, 80, 0, 2), (70, 80, 1, 5), (80, 80, 2, 5)]


def test_the_first_batch_is_small_and_a_large_source_is_a_batch_of_its_own() -> None:
    class Sized:
        def __init__(self, size: int) -> None:
            self.snapshot = self
            self.size = size

    groups = group_by_size(map(Sized, [2, 2, 9, 3, 3, 3, 1]), iter([4, 6, 8, 8]))  # type: ignore[type-var]
    assert [[each.size for each in group] for group in groups] == [[2, 2], [9], [3, 3], [3, 1]]


def _is_of(session: str, tasks: Sequence[Any]) -> bool:
    return any(piece.snapshot.path.stem == session for task in tasks for piece in getattr(task, "sources", ()))


def _hold_build_of(session: str, patched: pytest.MonkeyPatch) -> None:
    """Let the build of a session write its files and never end; commits wait for these files."""
    written, never = threading.Event(), threading.Event()
    real_run, real_commit = LightLake.run, commit.commit_flush

    def run(self: LightLake, tasks: Sequence[Task]) -> Any:
        built = real_run(self, tasks)
        if _is_of(session, tasks):
            written.set()
            never.wait(_PATIENCE)
        return built

    def commit_later(*given: Any) -> Any:
        assert written.wait(_PATIENCE)
        return real_commit(*given)

    patched.setattr(LightLake, "run", run)
    patched.setattr(commit, "commit_flush", commit_later)
