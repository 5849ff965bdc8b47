"""The real clients resume what `hyp restore-session` wrote: they send its history, and nothing is recorded twice."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from hypaware.clients.recorded_session import list_carried_parts
from tests.support import claude_transcripts, codex_rollouts
from tests.support.client_script import COMMAND, LAST_WORD, Script
from tests.support.command import Hyp
from tests.support.opencode_script import OPENCODE, opencode_user, speak
from tests.support.ports import held_port
from tests.support.raw_exchanges import MESSAGES
from tests.support.real_clients import (
    CLAUDE,
    CODEX,
    FREELY,
    NOT_FOLLOWED,
    Client,
    User,
    attach,
    find_program,
    running_daemon,
    user_of,
)
from tests.support.restored_sessions import by_session, read_rows
from tests.support.upstream_stub import ReceivedRequest, StubResponse

pytestmark = pytest.mark.real_clients

PROMPT = "Say what the command says."
NEXT_PROMPT = "Go on after the restore."
OUTPUT = "words of the tool"
CALLS = {CLAUDE.name: ["tool_use", "tool_result"], CODEX.name: ["function_call", "function_call_output"]}
HISTORY = {CLAUDE.name: ".claude/projects", CODEX.name: ".codex/sessions", OPENCODE.name: ".local/share/opencode"}


@pytest.fixture
def hyp(tmp_path: Path) -> Iterator[Hyp]:
    hyp = Hyp(tmp_path / "hyp")
    yield hyp
    hyp.run("engine", "stop")


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


def record(user: User, hyp: Hyp) -> str:
    """Have the client run a session, import it, and delete the client's history. Return the session's id."""
    assert LAST_WORD in user.says(*user.client.first)
    backfill(user, hyp)
    ((session,),) = {tuple(row.values()) for row in hyp.query(f"SELECT DISTINCT session_id FROM {MESSAGES}")}
    shutil.rmtree(user.folder / HISTORY[user.client.name])
    return str(session)


def backfill(user: User, hyp: Hyp) -> dict[str, Any]:
    for path in user.folder.glob(user.client.transcripts):
        # The last response of a file that was just written is held back.
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    return dict(hyp.ok("backfill", user.client.name, **user.environment))


def restore(user: User, hyp: Hyp, session: str, *args: str) -> dict[str, Any]:
    return dict(hyp.ok("restore-session", session, *args, **user.environment))


def with_client(user: User, client: Client) -> User:
    return replace(user, client=client, program=find_program(client.name))


def resume(user: User, session: str) -> list[Any]:
    """Have the client continue the session, and return what it sends to the model first."""
    seen = len(user.stub.seen)
    if user.client is CLAUDE:
        args: tuple[str, ...] = ("-p", "--resume", session, "--allowedTools", "Bash", "--", NEXT_PROMPT)
    else:
        args = ("exec", "resume", session, *FREELY, NEXT_PROMPT)
    assert LAST_WORD in user.says(*args)
    key, path = ("messages", "/v1/messages") if user.client is CLAUDE else ("input", "/responses")
    for request in user.stub.seen[seen:]:
        if request.method == "POST" and request.target.partition("?")[0].endswith(path):
            packed = request.header("content-encoding") == "zstd"
            sent = json.loads(zstd.decompress(request.body) if packed else request.body)[key]
            if NEXT_PROMPT in json.dumps(sent):
                return list(sent)
    raise AssertionError("the client has not sent the prompt")


def describe(sent: list[Any]) -> str:
    """Return what was said, in order, without what the client adds: words, calls and results."""
    told = json.dumps(sent)
    marks = (PROMPT, COMMAND, OUTPUT, LAST_WORD, NEXT_PROMPT)
    places = sorted((told.find(mark), mark) for mark in marks if mark in told)
    return " | ".join(mark for _, mark in places)


def list_blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the blocks of a message, or the item itself."""
    content = message.get("content")
    return content if isinstance(content, list) else [message] if "type" in message else []


@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_a_deleted_session_is_resumed_with_its_history_and_recorded_once(
    client: Client, tmp_path: Path, hyp: Hyp
) -> None:
    with user_of(client, tmp_path, Script().answer) as user:
        session = record(user, hyp)
        before = hyp.query(f"SELECT * FROM {MESSAGES} ORDER BY part_id")

        report = restore(user, hyp, session)
        assert report["written"]
        assert not report["carried_over"]
        (provider,) = backfill(user, hyp)["providers"]
        assert (provider["status"], provider["rows_written"]) == ("ok", 0)
        assert hyp.query(f"SELECT * FROM {MESSAGES} ORDER BY part_id") == before

        sent = resume(user, report["restored_session_id"])
        assert describe(sent) == " | ".join((PROMPT, COMMAND, OUTPUT, LAST_WORD, NEXT_PROMPT))

        backfill(user, hyp)
        after = hyp.query(f"SELECT * FROM {MESSAGES} ORDER BY part_id")
        known = {row["part_id"] for row in before}
        assert [row for row in after if row["part_id"] in known] == before
        texts = [row["content_text"] for row in after if row["role"] == "user"]
        assert texts.count(PROMPT) == texts.count(NEXT_PROMPT) == 1
        assert {row["session_id"] for row in after} == {session}


@pytest.mark.parametrize(
    ("source", "target"), [(CLAUDE, CODEX), (CODEX, CLAUDE)], ids=["claude-to-codex", "codex-to-claude"]
)
def test_a_session_of_one_client_is_continued_by_the_other(
    source: Client, target: Client, tmp_path: Path, hyp: Hyp
) -> None:
    with user_of(source, tmp_path, Script().answer) as user:
        session = record(user, hyp)
        other = with_client(user, target)

        report = restore(other, hyp, session, "--to", target.name)
        assert report["carried_over"]
        assert report["restored_session_id"] != session

        sent = resume(other, report["restored_session_id"])
        assert describe(sent) == " | ".join((PROMPT, COMMAND, OUTPUT, LAST_WORD, NEXT_PROMPT))
        kinds = [block["type"] for each in sent for block in list_blocks(each)]
        assert [kind for kind in kinds if kind in CALLS[target.name]] == CALLS[target.name]

        backfill(other, hyp)
        query = f"SELECT DISTINCT entrypoint FROM {MESSAGES} WHERE session_id = '{report['restored_session_id']}'"
        assert "hyp-restore-session" in {row["entrypoint"] for row in hyp.query(query)}


@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_every_sample_is_resumed_with_all_that_was_said(client: Client, tmp_path: Path, hyp: Hyp) -> None:
    """Compacted sessions, forks, subagents, signed thinking, errors, images, parallel calls, several versions."""
    with user_of(client, tmp_path, Script().answer) as user:
        # The samples were made in another folder, in which nothing can be resumed here.
        project = str(user.folder / "project")
        sessions = by_session(read_rows(client.provider, unpack_samples(client, tmp_path / "samples", project)))
        rows = [row for session in sessions.values() for message in session.messages for row in message.rows]
        hyp.ingest([{name: value for name, value in row.items() if name != "gateway_id"} for row in rows])
        for session_id, session in sessions.items():
            parts = [part for part in list_carried_parts(session, Counter()) if part.kind != "call"]
            if not parts:
                continue
            sent = resume(user, restore(user, hyp, session_id)["restored_session_id"])
            told = "".join(text for text in list_texts(sent) if text != "input_text")
            assert [part.text for part in parts if part.text.strip() not in told] == [], session_id


@pytest.mark.parametrize("client", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_a_session_that_only_the_gateway_recorded_is_given_back(
    client: Client, tmp_path: Path, hyp: Hyp, port: int
) -> None:
    follow_nothing = NOT_FOLLOWED.format(client=client.name)
    with user_of(client, tmp_path, Script().answer) as user:
        with running_daemon(user, port, follow_nothing):
            attach(user)
            assert LAST_WORD in user.says(*client.first)
        shutil.rmtree(user.folder / HISTORY[client.name])
        hyp.ok("flush")
        ((session,),) = {tuple(row.values()) for row in hyp.query(f"SELECT DISTINCT session_id FROM {MESSAGES}")}

        report = restore(user, hyp, str(session))
        sent = resume(user, report["restored_session_id"])
        assert describe(sent) == " | ".join((PROMPT, COMMAND, OUTPUT, LAST_WORD, NEXT_PROMPT))


@pytest.mark.parametrize("target", [CLAUDE, CODEX], ids=lambda client: client.name)
def test_a_session_of_opencode_is_continued(target: Client, tmp_path: Path, hyp: Hyp) -> None:
    script = Script().answer

    def answer(seen: ReceivedRequest) -> StubResponse:
        return speak(seen) if str(seen.header("user-agent")).startswith("opencode/") else script(seen)

    with opencode_user(tmp_path, answer) as user:
        session = record(user, hyp)
        other = replace(user, client=target, program=find_program(target.name))

        report = restore(other, hyp, session, "--to", target.name)
        assert report["carried_over"]
        sent = resume(other, report["restored_session_id"])
        assert describe(sent) == " | ".join((PROMPT, COMMAND, OUTPUT, LAST_WORD, NEXT_PROMPT))


def list_texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from list_texts(each)


def unpack_samples(client: Client, folder: Path, project: str) -> list[Path]:
    if client is CLAUDE:
        paths = claude_transcripts.unpacked(folder)
    else:
        folder.mkdir()
        paths = [folder / name for name in codex_rollouts.sample_names()]
        for path in paths:
            path.write_bytes(codex_rollouts.sample(path.name))
    for path in paths:
        path.write_bytes(path.read_bytes().replace(b"/home/dev/project", project.encode()))
    return paths
