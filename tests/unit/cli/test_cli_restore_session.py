"""`hyp restore-session` on rows that are still in the spool, so no Spark is needed."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from tests.support import claude_transcripts, codex_rollouts
from tests.support.claude_transcripts import OTHER_SESSION, SESSION, answers, calls, says, user
from tests.support.command import HYP, Hyp
from tests.support.history import rows_of
from tests.support.index_home import make_home
from tests.support.pseudo_terminal import ENTER, PseudoTerminal
from tests.support.restored_sessions import as_stored
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
AGENT: dict[str, Any] = {"isSidechain": True, "agentId": "a1"}
PROJECT = "-nonexistent-project"


def recorded_rows(folder: Path) -> list[dict[str, Any]]:
    lines = (
        user("u1", "Run it."),
        says("a1", calls("c1", "Task"), "u1", 1, output=7),
        user("s1", "You are an agent.", None, 2, **AGENT),
        says("s2", "Done.", "s1", 3, api="msg_s", **AGENT),
        user("r1", answers("c1"), "a1", 4),
        says("a2", "It is done.", "r1", 5, api="msg_2"),
        user("o1", "Something else.", None, 6, sessionId=OTHER_SESSION),
    )
    folder.mkdir(exist_ok=True)
    rows = claude_transcripts.imported(folder, *lines)[0]
    path = folder / codex_rollouts.NAME
    path.write_bytes(codex_rollouts.as_bytes([*codex_rollouts.BEGIN, codex_rollouts.says("assistant", "I did.")]))
    stored = (as_stored(row) for row in [*rows, *rows_of(codex_rollouts.PROVIDER, path)[0]])
    return [{name: value for name, value in row.items() if name != "gateway_id"} for row in stored]


@pytest.fixture
def recorded(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.delenv("CODEX_HOME", raising=False)
    return make_home(home.root, *recorded_rows(tmp_path / "samples"))


def transcripts(tmp_path: Path) -> list[str]:
    """Return all files in the folders of the clients."""
    user_folder = tmp_path / "user"
    return sorted(str(path.relative_to(user_folder)) for path in user_folder.rglob("*") if path.is_file())


MAIN = f".claude/projects/{PROJECT}/{SESSION}.jsonl"
SUBAGENT = f".claude/projects/{PROJECT}/{SESSION}/subagents/agent-a1.jsonl"


def test_a_session_gets_its_transcripts_back_and_the_command_that_resumes_it(
    hyp: Run, recorded: Home, tmp_path: Path
) -> None:
    code, out, err = hyp("restore-session", SESSION[:6])

    main = tmp_path / "user" / MAIN
    assert code == 0
    assert out.splitlines() == [
        f"wrote 6 messages of session {SESSION} for Claude Code:",
        f"  {main}, and 1 file of its subagents",
        f"resume it with: cd /nonexistent/project && claude --resume {SESSION}",
    ]
    assert err == "the folder /nonexistent/project does not exist on this machine; create it to resume there\n"
    assert transcripts(tmp_path) == sorted([MAIN, SUBAGENT])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (main, main.parent)] == [0o600, 0o700]
    assert [json.loads(line)["uuid"] for line in main.read_bytes().splitlines()] == ["u1", "a1", "r1", "a2"]


def test_a_session_that_the_client_still_has_is_not_changed(hyp: Run, recorded: Home, tmp_path: Path) -> None:
    elsewhere = tmp_path / "user/.claude/projects/-moved" / f"{SESSION}.jsonl"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text("the client's own\n")
    code, out, _ = hyp("restore-session", SESSION)

    assert code == 0
    assert out.startswith(f"Claude Code has this session: {elsewhere}\n")
    assert len(transcripts(tmp_path)) == 1
    assert elsewhere.read_text() == "the client's own\n"


def test_a_dry_run_shows_the_same_plan_and_writes_nothing(hyp: Run, recorded: Home, tmp_path: Path) -> None:
    told = hyp("restore-session", SESSION, "--dry-run")[1]
    plan = json.loads(hyp("restore-session", SESSION, "--dry-run", "--json")[1])
    assert transcripts(tmp_path) == []
    done = json.loads(hyp("restore-session", SESSION, "--json")[1])

    assert told.startswith(f"would write 6 messages of session {SESSION} for Claude Code:\n")
    assert plan["written"] == []
    assert done["written"] == done["files"] == plan["files"]
    assert {**plan, "dry_run": False, "written": done["written"]} == done


def test_another_client_gets_a_new_session_which_a_second_run_finds(hyp: Run, recorded: Home, tmp_path: Path) -> None:
    done = json.loads(hyp("restore-session", SESSION, "--to", "codex", "--json")[1])
    again = hyp("restore-session", SESSION, "--to", "codex")[1]

    assert done["carried_over"]
    assert done["restored_session_id"] != SESSION
    assert done["resume"] == f"codex resume {done['restored_session_id']}"
    assert done["lost"] == {"subagent": 2}
    assert done["not_carried_over"] == [
        "2 messages of subagents; what they returned is kept",
        "system prompt, tools and settings: the client uses its own",
    ]
    assert again.startswith(f"OpenAI's Codex CLI has this session: {done['written'][0]}\n")
    assert len(transcripts(tmp_path)) == 1
    back = json.loads(hyp("restore-session", codex_rollouts.THREAD, "--to", "claude", "--json")[1])
    assert back["resume"] == f"cd /home/dev && claude --resume {back['restored_session_id']}"


def test_a_file_is_written_in_place_of_the_clients_and_never_replaced(hyp: Run, recorded: Home, tmp_path: Path) -> None:
    target = tmp_path / "session.jsonl"
    first, second = (hyp("restore-session", SESSION, "-o", str(target)) for _ in range(2))

    assert first[0] == 0
    assert transcripts(tmp_path) == []
    assert (second[0], second[2]) == (1, f"error: {target} exists; a transcript is never replaced\n")
    assert len(target.read_bytes().splitlines()) == 4
    assert hyp("restore-session", SESSION, "-o", str(tmp_path / "none" / "x"))[0] == 1


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("99",), 1, "error: no recorded session has an id that starts with 99. The nearest is "),
        (("01a1", "--dry-run"), 0, f"codex resume {codex_rollouts.THREAD}"),
        (("11", "--to", "code"), 2, "use --to claude or --to codex. Did you mean codex?"),
        (("11", "--to", "gemini"), 2, "no transcript can be written for the client gemini"),
    ],
)
def test_an_unknown_session_or_client_is_named(
    hyp: Run, recorded: Home, args: tuple[str, ...], code: int, told: str
) -> None:
    done, out, err = hyp("restore-session", *args)

    assert done == code
    assert told in out + err


def test_a_session_of_a_client_without_a_writer_needs_another_one(hyp: Run, home: Home, tmp_path: Path) -> None:
    rows = [{**row, "client_name": "gemini"} for row in recorded_rows(tmp_path / "samples")]
    make_home(home.root, *rows)
    code, _, err = hyp("restore-session", SESSION)

    assert code == 2
    assert err.startswith(
        "error: this is a session of Gemini CLI, for which no transcript can be written; use --to claude or --to codex"
    )


@pytest.mark.parametrize("point", ["before-create", "after-create"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_killed_run_leaves_whole_files_and_the_next_one_writes_the_rest(
    hyp: Run, recorded: Home, tmp_path: Path, point: str, number: int
) -> None:
    other = {"HOME": str(tmp_path / "other")}
    whole = Hyp(recorded.root).ok("restore-session", SESSION, **other)["written"]
    contents = {Path(path).name: Path(path).read_bytes() for path in whole}
    killed = Hyp(recorded.root).run("restore-session", SESSION, HYP_CRASH_AT=f"session_restore.file.{point}:{number}")
    assert killed.code == -signal.SIGKILL
    visible = [name for name in transcripts(tmp_path) if not Path(name).name.startswith(".")]
    # The file with which the session exists for the client is the last one.
    order = [SUBAGENT, MAIN]
    assert sorted(visible) == sorted(order[: number - (point == "before-create")])
    code, out, _ = hyp("restore-session", SESSION)

    assert code == 0
    assert "resume it with: " in out
    for name in order:
        path = tmp_path / "user" / name
        assert path.read_bytes() == contents[path.name]


def test_a_terminal_is_asked_first(recorded: Home, tmp_path: Path) -> None:
    with PseudoTerminal([str(HYP), "restore-session", SESSION], os.environ) as terminal:
        told = terminal.expect("Continue?")
        terminal.press("n", ENTER)
        code = terminal.end()

    assert f"This writes 6 messages of session {SESSION} to " in told
    assert (code, transcripts(tmp_path)) == (130, [])


def test_a_fork_begins_with_the_messages_of_its_origin(
    hyp: Run, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lake has them once, as rows of the origin."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    lines = (
        user("u1", "First."),
        says("a1", "One.", "u1", 1),
        user("u2", "Only in the origin.", "a1", 2),
        user("f1", "In the fork.", "a1", 3, sessionId=OTHER_SESSION),
    )
    rows = [as_stored(row) for row in claude_transcripts.imported(tmp_path, *lines)[0]]
    make_home(home.root, *({name: value for name, value in row.items() if name != "gateway_id"} for row in rows))
    path = json.loads(hyp("restore-session", OTHER_SESSION, "--json")[1])["written"][-1]
    written = [json.loads(line) for line in Path(path).read_bytes().splitlines()]

    assert [(line["uuid"], line["parentUuid"]) for line in written] == [("u1", None), ("a1", "u1"), ("f1", "a1")]
    assert {line["sessionId"] for line in written} == {OTHER_SESSION}


@pytest.mark.parametrize(
    ("config", "provider"),
    [
        (None, "openai"),
        ("not toml", "openai"),
        ('[model_providers.lab]\nname = "Lab"\n', "lab"),
        ('model_provider = "other"\n[model_providers.other]\nname = "Other"\n', "other"),
        ('model_provider = "unknown"\n', "openai"),
    ],
)
def test_codex_gets_a_model_provider_that_its_config_has(
    hyp: Run, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str | None, provider: str
) -> None:
    """It does not resume a session of any other provider."""
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    if config is not None:
        (tmp_path / "codex").mkdir()
        (tmp_path / "codex/config.toml").write_text(config)
    lines = [codex_rollouts.meta(model_provider="lab"), *codex_rollouts.BEGIN[1:]]
    rows = (as_stored(row) for row in codex_rollouts.imported(tmp_path, lines)[0])
    make_home(home.root, *({name: value for name, value in row.items() if name != "gateway_id"} for row in rows))
    path = json.loads(hyp("restore-session", codex_rollouts.THREAD, "--json")[1])["written"][0]

    assert json.loads(Path(path).read_bytes().splitlines()[0])["payload"]["model_provider"] == provider
