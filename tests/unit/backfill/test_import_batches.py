"""The import into a light lake: every part once, growing files, windows, existing rows."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pytest

from hypaware.backfill import batches
from hypaware.backfill.source_rows import SourcePiece
from hypaware.backfill.survey import read_import_state
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.lake import build, health
from hypaware.lake.build import BuildFailure
from hypaware.model.datasets import SEQ
from tests.support import claude_files
from tests.support.claude_files import aged, grow, turns, write
from tests.support.light_home import DATASET, append, flush, import_history
from tests.support.light_lake import LightLake, read_lake


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    return tmp_path / "claude" / "projects" / "-project"


@pytest.fixture
def environment(projects: Path) -> dict[str, str]:
    return {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(projects.parents[1])}


def lake(home: Home) -> dict[str, dict[str, Any]]:
    rows = read_lake(home, DATASET)
    by_part = {row["part_id"]: row for row in rows}
    assert len(by_part) == len(rows), "a part is there twice"
    assert len({row[SEQ] for row in rows}) == len(rows)
    return by_part


def output_tokens(home: Home) -> int:
    usages = [orjson.loads(row["attributes"]).get("usage") for row in lake(home).values()]
    return sum(usage["output_tokens"] for usage in usages if usage)


def both(*some: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return chain.from_iterable(some)


@pytest.mark.hazard(50)
def test_a_second_import_of_the_same_history_adds_nothing_and_opens_nothing(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    path = write(projects / "s.jsonl", turns("s", 5))
    assert import_history(home, environment).rows.written == 15
    path.chmod(0)
    again = import_history(home, environment)
    assert (again.rows.written, again.rows_skipped, again.files_unchanged, again.files_skipped) == (0, 0, 1, {})
    assert len(lake(home)) == 15
    assert output_tokens(home) == 50


def test_without_checkpoints_an_import_reads_everything_and_adds_nothing(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "s.jsonl", turns("s", 5))
    import_history(home, environment)
    for name in ("state.db", "state.mirror.json"):
        (home.root / name).unlink()
    again = import_history(home, environment)
    assert (again.rows.written, again.rows_skipped, again.files_unchanged) == (0, 15, 0)
    assert again.tokens.total() == 0, "the tokens of rows that were there are not columns again"
    assert len(lake(home)) == 15


@pytest.mark.hazard(1)
@pytest.mark.hazard(83)
def test_spooled_rows_are_not_imported_again(home: Home, projects: Path, environment: dict[str, str]) -> None:
    write(projects / "s.jsonl", turns("s", 3))
    import_history(home, environment)
    rows = [public(row) for row in lake(home).values()]
    fresh = Home(home.root.with_name("fresh"))
    append(fresh, [{**row, "gateway_id": None} for row in rows[:4]])
    assert import_history(fresh, environment).rows.written == len(rows) - 4
    assert flush(fresh).rows.written == 0
    assert lake(fresh).keys() == lake(home).keys()


def public(row: dict[str, Any]) -> dict[str, Any]:
    columns = {name: value for name, value in row.items() if value is not None and not name.startswith("_hyp")}
    return {name: value.isoformat() if hasattr(value, "isoformat") else value for name, value in columns.items()}


@pytest.mark.hazard(82)
def test_a_spooled_row_that_a_flush_rejects_is_imported(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "s.jsonl", turns("s", 1, lines=1))
    append(home, [])
    sealed = home.spool / DATASET / "sealed"
    sealed.mkdir(parents=True, exist_ok=True)
    spoilt = {"n": 0, "v": 1, "row": {"message_id": "s-u0", "part_index": 0, "part_id": "s-u0#0"}}
    (sealed / "1-aa.1.jsonl").write_bytes(orjson.dumps(spoilt) + b"\n")
    assert import_history(home, environment).rows.written == 2
    assert "s-u0#0" in lake(home)


def test_only_the_new_lines_of_a_grown_file_are_imported(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    path = write(projects / "s.jsonl", turns("s", 3))
    import_history(home, environment)
    grow(path, turns("s", 2, first=3))
    grown = import_history(home, environment)
    assert (grown.rows.written, grown.rows_skipped) == (6, 0)
    assert [row["message_index"] for row in sorted(lake(home).values(), key=lambda row: row[SEQ])] == list(range(15))
    assert output_tokens(home) == 50


@pytest.mark.hazard(52)
@pytest.mark.hazard(80)
def test_an_unfinished_response_is_held_back_until_it_is_complete_or_the_file_is_quiet(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    lines = list(turns("s", 2, lines=3))
    path = write(projects / "s.jsonl", iter(lines[:6]), age=0)
    first = import_history(home, environment)
    assert (first.rows.written, first.held) == (5, 1)
    assert import_history(home, environment).rows.written == 0, "nobody has written to it, nothing is due"
    aged(path, claude_files.LONG_AGO)
    assert import_history(home, environment).rows.written == 1, "quiet: what is there is all there is"
    grow(path, iter(lines[6:]))
    assert import_history(home, environment).rows.written == 2
    assert len(lake(home)) == 8
    assert output_tokens(home) == 20


@pytest.mark.hazard(96)
def test_lines_of_a_response_after_a_long_pause_carry_only_the_difference(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    path = write(projects / "s.jsonl", turns("s", 1, lines=1, output=10))
    import_history(home, environment)
    late = list(turns("s", 1, lines=2, output=25))[2:]
    grow(path, iter(late))
    import_history(home, environment)
    assert output_tokens(home) == 25


def test_a_rewritten_file_is_read_from_its_beginning(home: Home, projects: Path, environment: dict[str, str]) -> None:
    path = write(projects / "s.jsonl", turns("s", 3))
    import_history(home, environment)
    inode = path.stat().st_ino
    with path.open("r+b") as file:
        file.writelines(orjson.dumps(line) + b"\n" for line in both(turns("t", 4), turns("s", 3)))
    aged(path, 5)
    assert path.stat().st_ino == inode
    aged(path, claude_files.LONG_AGO - 5)
    again = import_history(home, environment)
    assert (again.rows.written, again.rows_skipped) == (12, 9)


@pytest.mark.hazard(66)
def test_a_forked_session_adds_only_its_own_lines(home: Home, projects: Path, environment: dict[str, str]) -> None:
    original = list(turns("s", 3))
    copied = [{**line, "sessionId": "fork"} for line in original]
    own = turns("fork", 1, first=3)
    write(projects / "z-original.jsonl", iter(original), age=claude_files.LONG_AGO)
    write(projects / "a-fork.jsonl", both(iter(copied), own), age=claude_files.LONG_AGO - 60)
    outcome = import_history(home, environment)
    assert (outcome.rows.written, outcome.rows_skipped) == (12, 9)
    sessions = [row["session_id"] for row in lake(home).values()]
    assert (sessions.count("s"), sessions.count("fork")) == (9, 3)
    assert output_tokens(home) == 40


@pytest.mark.hazard(66)
@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize("continued", [False, True])
def test_an_answer_that_is_held_back_stays_with_the_session_that_a_fork_copies(
    home: Home, projects: Path, environment: dict[str, str], imported: bool, continued: bool
) -> None:
    original = list(turns("s", 3))
    copied = ({**line, "sessionId": "fork"} for line in original)
    path = write(projects / "z-original.jsonl", iter(original), age=60)
    if imported:
        assert import_history(home, environment).rows.written == 7, "the last answer may still grow"
    fork = write(projects / "a-fork.jsonl", both(copied, turns("fork", 1, first=3)), age=30)
    import_history(home, environment)
    sessions = [row["session_id"] for row in lake(home).values()]
    assert (sessions.count("s"), sessions.count("fork")) == (9, 1), "the fork's own answer may still grow"
    if continued:
        grow(path, turns("s", 1, first=3), age=20)
    aged(path, claude_files.LONG_AGO)
    aged(fork, claude_files.LONG_AGO)
    import_history(home, environment)
    sessions = [row["session_id"] for row in lake(home).values()]
    assert (sessions.count("s"), sessions.count("fork")) == (12 if continued else 9, 3)
    assert output_tokens(home) == (50 if continued else 40)
    assert import_history(home, environment).files_unchanged == 2


def test_an_answer_stays_held_back_if_another_session_is_due_that_copies_nothing(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "s.jsonl", turns("s", 3), age=60)
    assert import_history(home, environment).rows.written == 7
    write(projects / "other.jsonl", turns("t", 1, start=claude_files.START + timedelta(days=1)), age=30)
    outcome = import_history(home, environment)
    assert (outcome.rows.written, outcome.files_unchanged) == (1, 1)


def test_lines_outside_a_window_are_due_for_a_wider_one(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "s.jsonl", turns("s", 10))
    narrow = import_history(home, environment, since="2026-10-01T08:05:00.000000Z", until="2026-10-01T08:06:00.000000Z")
    assert narrow.rows.written == 4, "both ends belong to it"
    assert import_history(home, environment, since="2026-10-01T08:05:00.000000Z").rows.written == 11
    wide = import_history(home, environment)
    assert (wide.rows.written, wide.rows_skipped) == (15, 0)
    assert output_tokens(home) == 100
    assert import_history(home, environment, since="2026-10-01T08:05:00.000000Z").files_unchanged == 1


@pytest.mark.hazard(84)
def test_a_resumed_session_adds_no_duplicates(home: Home, projects: Path, environment: dict[str, str]) -> None:
    """Retention may have removed those rows and their keys, but the file still holds them."""
    path = write(projects / "s.jsonl", turns("s", 3))
    import_history(home, environment)
    (home.lake / "keys.db").unlink()
    grow(path, turns("s", 1, first=3))
    assert import_history(home, environment).rows_skipped == 0


def test_sequences_rise_with_time_regardless_of_file_names(
    home: Home, projects: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "_TASK_BYTES", 1)
    monkeypatch.setattr(batches, "BATCH_BYTES", (5000,))
    for place, name in enumerate("cab"):
        started = claude_files.START.replace(day=1 + place)
        write(projects / f"{name}.jsonl", turns(name, 4, start=started))
    import_history(home, environment)
    ordered = sorted(lake(home).values(), key=lambda row: row[SEQ])
    assert [row["message_created_at"] for row in ordered] == sorted(row["message_created_at"] for row in ordered)
    assert len(ordered) == 36


@pytest.mark.hazard(61)
def test_an_unreadable_file_is_reported_and_the_others_are_imported(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "a.jsonl", turns("a", 1))
    (projects / "loop.jsonl").symlink_to(projects / "loop.jsonl")
    (projects / "gone.jsonl").symlink_to(projects / "nowhere.jsonl")
    outcome = import_history(home, environment)
    assert outcome.rows.written == 3
    assert outcome.files_skipped.total() == 2
    assert outcome.error is None


@pytest.mark.hazard(93)
def test_a_source_that_crashes_its_worker_does_not_stop_the_others(
    home: Home, projects: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LightLake.run

    def dies_of_poison(self: LightLake, tasks: Any) -> Any:
        poisoned = any(source.snapshot.path.name == "poison.jsonl" for task in tasks for source in task.sources)
        return [BuildFailure("a Spark task died")] * len(tasks) if poisoned else real(self, tasks)

    monkeypatch.setattr(LightLake, "run", dies_of_poison)
    for name in ("a", "poison", "c", "d", "e"):
        write(projects / f"{name}.jsonl", turns(name, 2))
    outcome = import_history(home, environment)
    assert (outcome.rows.written, dict(outcome.files_skipped)) == (24, {"failed": 1})
    assert outcome.error is not None
    assert "poison.jsonl" in outcome.error.message
    monkeypatch.undo()
    assert import_history(home, environment).rows.written == 6


@pytest.mark.hazard(96)
@pytest.mark.parametrize("change", ["wider window", "new inode"])
def test_late_lines_carry_the_difference_even_if_the_source_is_read_again(
    home: Home, projects: Path, environment: dict[str, str], change: str
) -> None:
    path = write(projects / "s.jsonl", turns("s", 2, lines=1))
    window = {"since": "2026-10-01T08:01:00.000000Z"} if change == "wider window" else {}
    import_history(home, environment, **window)
    if change == "new inode":
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.replace(path)
    grow(path, iter(list(turns("s", 1, first=1, lines=2, output=25))[2:]))
    import_history(home, environment)
    assert output_tokens(home) == 35


def test_a_file_with_a_future_time_is_imported_to_its_end(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "s.jsonl", turns("s", 1), age=-86_400)
    assert import_history(home, environment).rows.written == 3


def test_held_back_messages_are_reported_by_every_import(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "s.jsonl", turns("s", 1), age=0)
    assert import_history(home, environment).held == 1
    again = import_history(home, environment)
    assert (again.held, again.files_unchanged) == (1, 1)


@pytest.mark.hazard(61)
def test_files_with_odd_names_times_and_kinds_do_not_stop_an_import(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    for number, name in enumerate([b"\xff.jsonl", rb"\xff.jsonl", b"new\nline.jsonl", b"x" * 200 + b".jsonl"]):
        write(projects / os.fsdecode(name), turns(f"s{number}", 1))
    os.utime(write(projects / "far.jsonl", turns("far", 1)), (10_413_792_000, 10_413_792_000))
    os.utime(write(projects / "old.jsonl", turns("old", 1)), (0, 0))
    os.mkfifo(projects / "pipe.jsonl")
    os.mkfifo(projects / "agent-1.meta.json")
    write(projects / "agent-1.jsonl", turns("agent", 1))
    outcome = import_history(home, environment)
    assert outcome.rows.written == 21
    assert dict(outcome.files_skipped) == {"unreadable": 1}
    assert import_history(home, environment).files_unchanged == 7


def test_a_missing_lake_is_reported_even_if_no_source_has_changed(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    """The checkpoints refer to lost rows, and the transcripts will not be kept forever."""
    write(projects / "s.jsonl", turns("s", 1))
    import_history(home, environment)
    shutil.rmtree(home.lake)
    with pytest.raises(LakeError, match="has no such table"):
        health.check_floor(home, DATASET, read_import_state(home, "claude", DATASET).recorded)


def test_a_session_over_many_days_opens_a_bounded_number_of_files(
    home: Home, projects: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_MAX_OPEN_FILES", 3)
    monkeypatch.setattr(build, "_BUFFER_BYTES", 2000)
    days = [claude_files.START + timedelta(days=day % 20) for day in range(60)]
    lines = [next(turns(f"s{number}", 1, start=day)) for number, day in enumerate(days)]
    write(projects / "s.jsonl", iter(lines))
    assert import_history(home, environment).rows.written == 60
    assert len(lake(home)) == 60


@pytest.mark.hazard(50)
def test_a_source_that_fails_halfway_adds_no_rows_and_stays_due(
    home: Home, projects: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without a checkpoint would make later differences wrong, and must not suppress another copy."""
    write(projects / "a.jsonl", turns("s", 3))
    copied = iter([{**line, "sessionId": "copy"} for line in turns("s", 3)])
    write(projects / "b.jsonl", copied, age=claude_files.LONG_AGO - 60)
    real = SourcePiece._checkpoint

    def fails(self: SourcePiece, *read: Any) -> Any:
        if self.snapshot.path.name == "a.jsonl":
            raise RuntimeError("broken")
        return real(self, *read)

    with monkeypatch.context() as broken:
        broken.setattr(SourcePiece, "_checkpoint", fails)
        outcome = import_history(home, environment)
    assert outcome.error is not None
    assert (outcome.rows.written, outcome.rows_skipped, outcome.items) == (9, 0, 1)
    assert {row["session_id"] for row in lake(home).values()} == {"copy"}
    again = import_history(home, environment)
    assert (again.rows.written, again.rows_skipped) == (0, 9)
    assert output_tokens(home) == 30
