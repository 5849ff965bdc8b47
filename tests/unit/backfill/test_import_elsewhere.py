"""A source that is read on another machine, which has neither its file nor anything else of the home's machine."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hypaware.backfill.request import ImportPolicy
from hypaware.backfill.source_rows import ImportContext, SourcePiece, SourceReport
from hypaware.clients import git, session_hook
from hypaware.config import Config
from hypaware.follow.source_recorder import _SourceResult
from hypaware.home import Home, machine_facts
from hypaware.home.machine_facts import Question, Unanswered
from hypaware.lake.task_input import PackedInput, copied_inputs, pack_inputs
from hypaware.model.datasets import Row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from hypaware.privacy import ignored_sessions
from tests.support.claude_files import turns, write
from tests.support.history import pin
from tests.support.opencode_database import make_database


@contextmanager
def hidden(folder: Path) -> Iterator[None]:
    aside = folder.rename(folder.with_name("hidden"))
    try:
        yield
    finally:
        aside.rename(folder)


def read(piece: SourcePiece) -> tuple[list[Row], SourceReport]:
    result = _SourceResult()
    rows = [row for _, row in piece.rows(AI_GATEWAY_MESSAGES, result)]
    (report,) = result.reports
    return rows, report


def read_elsewhere(piece: SourcePiece, machine: Path) -> tuple[list[Row], SourceReport, int]:
    """Read a copy while `machine` is hidden, and again as long as there are questions. Return the number of rounds."""
    answers: dict[Question, Any] = {}
    packed: list[PackedInput] = []
    pieces = list(pack_inputs([piece], packed))
    for number in range(1, 6):
        try:
            with hidden(machine), copied_inputs(packed, pieces) as (copy,), machine_facts.only_known(answers):
                rows, report = read(replace(piece, copy=copy))
            return rows, report, number
        except Unanswered as asked:
            answers.update({question: answer() for question, answer in asked.questions.items()})
    raise AssertionError("there is no end of questions")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """All that only the machine of the home has."""
    git.forget_repositories()
    (tmp_path / "machine").mkdir()
    return tmp_path / "machine"


def claude_piece(machine: Path, session: str, cwd: Path | None) -> SourcePiece:
    home = Home(machine / "home")
    home.root.mkdir(exist_ok=True)
    lines = ({**line, "cwd": str(cwd) if cwd else ""} for line in turns(session, 3))
    path = write(machine / "claude" / "projects" / "-p" / f"{session}.jsonl", lines)
    environment = {"HOME": str(machine), "CLAUDE_CONFIG_DIR": str(machine / "claude"), "HYP_HOME": str(home.root)}
    policy = ImportPolicy.from_config(home, Config())
    context = ImportContext("claude", AI_GATEWAY_MESSAGES.name, environment, "gateway", policy)
    return SourcePiece(context, 1, 1000, pin(path))


def make_project(machine: Path) -> Path:
    project = machine / "project"
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    origin = "https://example.com/project.git"
    subprocess.run(["git", "-C", str(project), "remote", "add", "origin", origin], check=True)
    return project


@pytest.mark.hazard(116)
def test_a_source_gives_the_same_rows_and_checkpoint_on_a_machine_that_has_nothing_of_it(machine: Path) -> None:
    piece = claude_piece(machine, "session", make_project(machine))
    expected, expected_report = read(piece)
    found, report, rounds = read_elsewhere(piece, machine)
    assert found == expected
    assert {row["git_remote"] for row in found} == {"https://example.com/project.git"}
    assert report == expected_report
    assert rounds == 2


def test_rows_of_an_ignored_folder_are_not_imported_on_a_machine_without_the_folder(machine: Path) -> None:
    project = make_project(machine)
    (project / ".hypignore").write_text("")
    found, report, _ = read_elsewhere(claude_piece(machine, "session", project), machine)
    assert found == []
    assert report.ignored == {"folder_ignored": 9}


def test_rows_of_an_ignored_session_are_not_imported_on_a_machine_without_the_list(machine: Path) -> None:
    piece = claude_piece(machine, "session", make_project(machine))
    ignored_sessions.ignore_session(Home(machine / "home"), "session")
    found, report, _ = read_elsewhere(piece, machine)
    assert found == []
    assert report.ignored == {"session_ignored": 9}


def test_the_folder_that_a_hook_recorded_decides_on_a_machine_without_the_record(machine: Path) -> None:
    project = make_project(machine)
    (project / ".hypignore").write_text("")
    piece = claude_piece(machine, "session", None)
    payload = {"session_id": "session", "cwd": str(project), "hook_event_name": "SessionStart"}
    assert session_hook.record_context(Home(machine / "home"), "claude", payload)
    found, report, _ = read_elsewhere(piece, machine)
    assert (found, sum(report.ignored.values())) == ([], 9)


def test_a_database_is_copied_consistently_and_gives_the_same_rows(machine: Path) -> None:
    path = make_database(machine)
    context = ImportContext("opencode", AI_GATEWAY_MESSAGES.name, {"HOME": str(machine)}, "gateway")
    piece = SourcePiece(context, 1, 1 << 20, pin(path))
    expected, expected_report = read(piece)
    found, report, _ = read_elsewhere(piece, machine)
    assert found
    assert (found, report.checkpoint) == (expected, expected_report.checkpoint)


@pytest.mark.hazard(116)
def test_a_source_that_really_vanished_is_reported_as_vanished(machine: Path) -> None:
    piece = claude_piece(machine, "session", None)
    piece.snapshot.path.unlink()
    found, report, _ = read_elsewhere(piece, machine)
    assert (found, report.changed, report.checkpoint) == ([], "vanished", None)


@pytest.mark.hazard(116)
def test_a_file_that_only_the_executor_lacks_is_an_error_that_names_the_machine(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "worker-7")
    piece = replace(claude_piece(machine, "session", None), copy=machine / "missing copy")
    found, report = read(piece)
    assert (found, report.changed) == ([], None)
    assert report.error is not None
    assert "worker-7" in report.error
    assert "missing copy" in report.error
