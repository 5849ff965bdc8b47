"""Titles of sessions: from the client's own lines into the state, never from ignored or purged sessions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.clients import reader
from hypaware.clients.claude.history import ClaudeHistory
from hypaware.config import Config, PrivacyConfig, RedactionConfig
from hypaware.home import Home
from hypaware.privacy import ignored_sessions
from hypaware.state.titles import MAX_TITLE_LENGTH, clean_title, read_titles
from tests.support import claude_transcripts, codex_rollouts
from tests.support.claude_files import grow, turns, write
from tests.support.light_home import DATASET, import_history
from tests.support.light_lake import read_lake
from tests.support.light_purge import holders, purge

KEY = "gh" + "p_" + "a1B2" * 9


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    return tmp_path / "claude" / "projects" / "-project"


@pytest.fixture
def environment(projects: Path) -> dict[str, str]:
    return {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(projects.parents[1])}


def ai(session: str, title: str) -> dict[str, Any]:
    return {"type": "ai-title", "aiTitle": title, "sessionId": session}


def custom(session: str, title: str) -> dict[str, Any]:
    return {"type": "custom-title", "customTitle": title, "sessionId": session}


def summary(leaf: str, title: str) -> dict[str, Any]:
    return {"type": "summary", "summary": title, "leafUuid": leaf}


def lines(*parts: Any) -> Iterator[dict[str, Any]]:
    for part in parts:
        yield from [part] if isinstance(part, dict) else part


def test_the_newest_title_counts_and_the_users_own_before_the_clients(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    path = write(projects / "one.jsonl", lines(turns("one", 1), ai("one", "First"), turns("one", 1, first=1)))
    write(projects / "two.jsonl", turns("two", 1))
    import_history(home, environment)
    assert read_titles(home) == {"one": "First"}
    grow(path, lines(ai("one", "Second"), turns("one", 1, first=2), ai("one", "Third")))
    import_history(home, environment)
    assert read_titles(home) == {"one": "Third"}
    grow(path, lines(custom("one", "Mine"), turns("one", 1, first=3), ai("one", "Fourth")), age=1000)
    import_history(home, environment)
    assert read_titles(home) == {"one": "Mine"}
    # An empty title is how the client stores that the user has removed theirs.
    grow(path, lines(turns("one", 1, first=4), custom("one", "")), age=900)
    import_history(home, environment)
    assert read_titles(home) == {"one": "Fourth"}


def test_titles_change_no_row(home: Home, projects: Path, environment: dict[str, str], tmp_path: Path) -> None:
    write(projects / "one.jsonl", turns("one", 2))
    import_history(home, environment)
    plain = read_lake(home, DATASET)
    other = tmp_path / "other" / "projects" / "-project"
    write(other / "one.jsonl", lines(ai("one", "A"), turns("one", 2), custom("one", "B"), summary("one-u1", "C")))
    titled = Home(tmp_path / "titled")
    import_history(titled, {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(other.parents[1])})
    assert read_titles(titled) == {"one": "B"}
    changing = {"gateway_id", "attributes", "_hyp_ingest_seq", "_hyp_cache_row_id", "_hyp_cache_batch_id"}
    public = [
        [{name: value for name, value in row.items() if name not in changing} for row in rows]
        for rows in (plain, read_lake(titled, DATASET))
    ]
    assert public[0] == public[1]


def test_a_summary_finds_its_session_by_the_message_that_it_names(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    write(projects / "one.jsonl", turns("one", 2))
    # Older versions write the summaries of other sessions into the file of a new one.
    write(
        projects / "two.jsonl",
        lines(summary("one-a1-1", "About one"), summary("nobody", "About nobody"), turns("two", 1)),
    )
    write(projects / "zero.jsonl", lines(summary("two-a0-1", "About two"), turns("zero", 1)))
    import_history(home, environment)
    assert read_titles(home) == {"one": "About one", "two": "About two"}
    assert not holders(home, "About nobody")


@pytest.mark.parametrize(
    ("sample", "title"), [("2.1.325/interactive", "Fixture session"), ("1.0.128/basic", "Fixture session")]
)
def test_real_transcripts_have_their_titles(
    home: Home, projects: Path, environment: dict[str, str], sample: str, title: str
) -> None:
    (name,) = [each for each in claude_transcripts.sample_names() if each.startswith(sample)]
    path = projects / Path(name).name
    path.parent.mkdir(parents=True)
    path.write_bytes(claude_transcripts.sample(name))
    import_history(home, environment)
    (found,) = read_titles(home).values()
    assert title in found


def test_an_ignored_session_or_folder_leaves_no_title_anywhere(
    home: Home, projects: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    private = [{**each, "cwd": str(tmp_path / "private")} for each in turns("three", 1)]
    write(projects / "one.jsonl", lines(turns("one", 1), ai("one", "Secret one")))
    write(projects / "three.jsonl", lines(private, ai("three", "Secret three")))
    write(projects / "four.jsonl", lines(turns("four", 1), ai("four", "Public"), summary("three-a0-1", "Secret leaf")))
    ignored_sessions.ignore_session(home, "one")
    config = Config(privacy=PrivacyConfig(folders={str(tmp_path / "private"): "ignore"}))
    import_history(home, environment, config=config)
    # Nothing of them is read later either, when their files grow.
    for name in ("one", "three"):
        grow(projects / f"{name}.jsonl", lines(ai(name, f"Secret {name} again")), age=800)
    import_history(home, environment, config=config)
    assert read_titles(home) == {"four": "Public"}
    assert not holders(home, "Secret")


@pytest.mark.parametrize(
    ("kind", "value"),
    [("session", "one"), ("cwd", "/w"), ("source", "claude"), ("before", "2026-10-02T00:00:00.000000Z")],
)
def test_a_purge_removes_titles_with_their_bytes_and_they_do_not_return(
    home: Home, projects: Path, environment: dict[str, str], kind: Any, value: str
) -> None:
    located = [{**each, "cwd": "/w"} for each in turns("one", 2)]
    path = write(projects / "one.jsonl", lines(located, ai("one", "Plans for the surprise party")))
    import_history(home, environment)
    assert holders(home, "surprise party")
    report = purge(home, kind, value)
    assert report["remaining"] == []
    assert read_titles(home) == {}
    assert not holders(home, "surprise party")
    if kind == "session":
        grow(path, lines(turns("one", 1, first=2), ai("one", "Plans for the surprise party")))
        import_history(home, environment)
        assert not holders(home, "surprise party")


def test_a_title_is_redacted_like_a_row(home: Home, projects: Path, environment: dict[str, str]) -> None:
    write(projects / "one.jsonl", lines(turns("one", 1), ai("one", f"Use the token {KEY}")))
    write(projects / "two.jsonl", lines(turns("two", 1), ai("two", f"{'long ' * 37}{KEY}")))
    import_history(home, environment, config=Config(redaction=RedactionConfig(kept=True)))
    assert read_titles(home)["one"].startswith("Use the token ")
    assert not holders(home, KEY[:12])


def test_hostile_titles_are_one_short_line_without_control_characters(
    home: Home, projects: Path, environment: dict[str, str]
) -> None:
    hostile = "\x1b]0;owned\x07 one\r\ntwo \u202eright\u2028left \x9b31m" + "x" * 10_000
    write(projects / "one.jsonl", lines(turns("one", 1), ai("one", hostile)))
    odd: list[Any] = [
        {"type": "ai-title", "aiTitle": 5, "sessionId": "one"},
        {"type": "ai-title", "sessionId": ["one"], "aiTitle": "x"},
        {"type": ["ai-title"], "aiTitle": "x"},
        {"type": "summary", "summary": "x", "leafUuid": {"a": 1}},
        {"type": "custom-title"},
    ]
    write(projects / "two.jsonl", lines(turns("two", 1), *odd))
    import_history(home, environment)
    (title,) = read_titles(home).values()
    assert len(title) == MAX_TITLE_LENGTH
    assert title.isprintable()
    assert title.startswith("]0;owned one two right left 31mxxx")
    assert clean_title("a\u200db  é") == "a\u200db é"


def test_a_transcript_with_very_many_summaries_costs_bounded_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "one.jsonl", (summary(f"leaf-{number}", "x") for number in range(5000)))
    status = path.stat()
    snapshot = reader.SourceSnapshot(path, reader.get_inode(status), status.st_size, status.st_mtime_ns)
    with reader.SourceReader(snapshot) as source:
        assert list(ClaudeHistory().read(source, {"HOME": str(tmp_path)})) == []
        assert len(source.titles) == 1000


def test_codex_names_come_from_its_index_and_from_events(home: Home, tmp_path: Path) -> None:
    first, second, child = (f"01a1de10-606a-7303-a642-50898751c7{number}" for number in (10, 11, 12))
    folder = tmp_path / "codex"
    day = folder / "sessions/2026/11/15"
    day.mkdir(parents=True)

    def rollout(thread: str, *more: Any, **meta: Any) -> None:
        content = codex_rollouts.as_bytes(
            [codex_rollouts.meta(id=thread, **meta), codex_rollouts.turn(), codex_rollouts.says("user", "hi"), *more]
        )
        (day / f"rollout-2026-11-15T07-16-17-{thread}.jsonl").write_bytes(content)

    rollout(first)
    rollout(second, codex_rollouts.line("event_msg", {"type": "thread_name_updated", "thread_name": "By event"}))
    rollout(child, session_id=first)
    index = [
        {"id": first, "thread_name": "Old", "updated_at": "2026-11-15T08:00:00Z"},
        {"id": child, "thread_name": "A subagent", "updated_at": "2026-11-15T08:00:00Z"},
        {"id": first, "thread_name": "New", "updated_at": "2026-11-15T09:00:00Z"},
    ]
    text = "".join(json.dumps(each) + "\n" for each in index)
    (folder / "session_index.jsonl").write_text(f"not json\n{text}[1]\n")
    import_history(home, {"HOME": str(tmp_path), "CODEX_HOME": str(folder)}, "codex")
    assert read_titles(home) == {first: "New", second: "By event"}


def test_a_state_without_titles_gives_none(home: Home) -> None:
    assert read_titles(home) == {}
    assert not home.root.exists()
    home.root.mkdir()
    home.state.write_bytes(b"not a database" * 100)
    assert read_titles(home) == {}
