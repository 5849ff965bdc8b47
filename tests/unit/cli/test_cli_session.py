"""`hyp session`: ignore, unignore and status."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hypaware.clients import session_hook
from hypaware.home import Home
from hypaware.index import sessions as index_sessions
from hypaware.index.store import Index
from hypaware.lake import read
from tests.support import plugin_distributions
from tests.support.light_home import append, flush
from tests.support.rows import rows

Hyp = Callable[..., tuple[int, str, str]]
ID = "0dc91b82-3238-4907-98f3-ae0d1d845b97"


def test_a_session_is_ignored_and_unignored(hyp: Hyp, home: Home) -> None:
    assert hyp("session", "status")[:2] == (0, "no session is excluded\n")
    assert json.loads(hyp("session", "status", "--json")[1]) == {"sessions": [], "here": [], "folders_gone": []}
    assert not home.root.exists()
    code, out, err = hyp("session", "ignore", ID, "--unknown")
    assert (code, out) == (0, f"session {ID} is excluded from recording\n")
    assert f"hyp purge --session {ID}" in err
    again = json.loads(hyp("session", "ignore", ID, "--json")[1])
    assert again == {"session_id": ID, "ignored": True, "changed": False}
    (listed,) = json.loads(hyp("session", "status", "--json")[1])["sessions"]
    assert (listed["session_id"], listed["class"], listed["at"][-1]) == (ID, "ignore", "Z")
    assert ID in hyp("session", "status")[1]
    assert json.loads(hyp("session", "unignore", ID, "--json")[1])["changed"] is True
    assert (
        hyp("session", "unignore", ID, "--unknown")[1]
        == f"session {ID} is already recorded, subject to the rules of its folder\n"
    )


def test_an_unknown_id_is_refused_and_nothing_is_written(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("session", "ignore", ID, "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "unknown_session")
    assert not home.root.exists()


def test_a_prefix_finds_sessions_of_the_lake_the_spool_and_the_transcripts(
    hyp: Hyp, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(home, rows(1, session_id="11111111-in-the-lake"))
    flush(home)
    append(home, rows(1, 1, session_id="22222222-in-the-spool"))
    transcript = tmp_path / "claude" / "projects" / "p" / f"{ID}.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.write_text("{}\n")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    for given, found in (("111", "11111111-in-the-lake"), ("222", "22222222-in-the-spool"), (ID[:8], ID)):
        assert json.loads(hyp("session", "ignore", given, "--json")[1])["session_id"] == found
    assert "Did you mean 11111111-in-the-lake?" in hyp("session", "ignore", "11111111-in-a-lake")[2]


def test_a_dry_run_finds_a_session_that_the_index_does_not_have_and_writes_nothing(hyp: Hyp, home: Home) -> None:
    append(home, rows(1, session_id="11111111-in-the-lake"))
    flush(home)
    assert hyp("sessions")[0] == 0
    append(home, rows(1, 1, session_id="22222222-not-yet-indexed"))
    flush(home)
    before = home.index.read_bytes()
    for given, found in (("111", "11111111-in-the-lake"), ("222", "22222222-not-yet-indexed")):
        assert json.loads(hyp("purge", "--session", given, "--dry-run", "--json")[1])["selector"]["values"] == [found]
    assert home.index.read_bytes() == before


def test_with_an_index_a_prefix_finds_sessions_of_every_place_and_the_lake_is_not_read(
    hyp: Hyp, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(home, rows(1, session_id="11111111-in-the-lake"))
    flush(home)
    append(home, rows(1, 1, session_id="22222222-in-the-spool"))
    assert hyp("sessions")[0] == 0
    append(home, rows(1, 2, session_id="33333333-not-yet-indexed"))
    (home.root / "privacy.json").write_text(json.dumps({"v": 1, "sessions": {"44444444-ignored": {"class": "ignore"}}}))

    def refuse(*_: object) -> set[str]:
        raise AssertionError("the lake was read")

    monkeypatch.setattr(read, "list_session_ids", refuse)
    for given, found in (
        ("11111111-in-the-lake", "11111111-in-the-lake"),
        ("111", "11111111-in-the-lake"),
        ("222", "22222222-in-the-spool"),
        ("333", "33333333-not-yet-indexed"),
        ("444", "44444444-ignored"),
    ):
        assert json.loads(hyp("session", "ignore", given, "--json")[1])["session_id"] == found


def test_with_an_index_an_ambiguous_prefix_and_an_unknown_id_are_explained(hyp: Hyp, home: Home) -> None:
    append(home, [*rows(1, session_id="abcdef01-one"), *rows(1, 1, session_id="abcdef02-two")])
    assert hyp("sessions")[0] == 0
    (home.root / "privacy.json").write_text(json.dumps({"v": 1, "sessions": {"abcdef03-three": {"class": "ignore"}}}))
    code, out, _ = hyp("session", "ignore", "abc", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "ambiguous_session")
    assert "abcdef01-one, abcdef02-two, abcdef03-three" in json.loads(out)["error"]["message"]
    assert "Did you mean abcdef02-two?" in hyp("session", "ignore", "abcdef02-tow")[2]
    assert "The nearest is abcdef0" in hyp("session", "ignore", "zzz")[2]
    assert hyp("session", "ignore", "zzz", "--unknown")[0] == 0


def test_an_index_without_all_rows_is_not_trusted(hyp: Hyp, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home, rows(1, session_id="11111111-in-the-lake"))
    flush(home)
    assert hyp("sessions")[0] == 0
    monkeypatch.setattr(Index, "progress", property(lambda _index: 0.5, lambda _index, _value: None), raising=False)
    monkeypatch.setattr(index_sessions, "list_ids", lambda *_: [])
    assert json.loads(hyp("session", "ignore", "111", "--json")[1])["session_id"] == "11111111-in-the-lake"


def test_a_broken_client_plugin_does_not_keep_a_session_from_being_ignored_or_purged(
    hyp: Hyp, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from hypaware.clients.client import Client\n"
        "class Broken:\n"
        "    name = 'broken'\n"
        "    summary = 'a broken client'\n"
        "    datasets = ('ai_gateway_messages',)\n"
        "    environment = ()\n"
        "    def find(self, environment):\n"
        "        raise KeyError('no folder')\n"
        "    def first_time(self, head):\n"
        "        return None\n"
        "    def read(self, reader, environment):\n"
        "        yield from ()\n"
        "client = Client('broken', 'a broken client', Broken())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin_distributions.install(
        tmp_path, "hyp-broken", "[hypaware.clients]\nbroken = broken_client:client\n", "broken_client", code
    )
    append(home, rows(2, session_id="11111111-in-the-spool"))
    code_, out, err = hyp("purge", "--session", "111", "--dry-run", "--json")
    assert (code_, json.loads(out)["spool"]["rows"]) == (0, 2)
    assert "warning: broken: its transcripts cannot be listed: 'no folder'" in err
    assert hyp("session", "ignore", "111")[0] == 0


def test_status_shows_the_privacy_class_and_the_deciding_rule(hyp: Hyp, home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    home.root.mkdir()
    session_hook.record_context(home, "claude", {"session_id": ID, "cwd": str(folder)})
    found = json.loads(hyp("session", "status", ID, "--json")[1])
    assert found == {"session_id": ID, "class": "full", "why": "no rule applies", "cwd": str(folder)}
    (folder / ".hypignore").write_text("local-only")
    found = json.loads(hyp("session", "status", ID, "--json")[1])
    assert (found["class"], found["why"]) == ("local-only", str(folder / ".hypignore"))
    hyp("session", "ignore", ID)
    assert "hyp session ignore" in hyp("session", "status", ID)[1]
    found = json.loads(hyp("session", "status", ID[:8], "--json")[1])
    assert (found["session_id"], found["class"]) == (ID, "ignore")


def test_without_an_id_the_session_of_the_current_folder_is_used(
    hyp: Hyp, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work/deeper").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work/deeper")
    code, _, err = hyp("session", "ignore")
    assert (code, "hyp client status" in err) == (2, True)
    assert not home.root.exists()
    home.root.mkdir()
    session_hook.record_context(home, "claude", {"session_id": "elsewhere", "cwd": str(tmp_path / "other")})
    # The daemon has not read the hook's latest note yet.
    session_hook.notes_path(home, "claude").write_text(
        json.dumps({"session_id": ID, "cwd": str(tmp_path / "work")}) + "\n"
    )
    assert hyp("session", "ignore")[1] == f"session {ID} is excluded from recording\n"
    (here,) = json.loads(hyp("session", "status", "--json")[1])["here"]
    assert (here["session_id"], here["class"], here["why"]) == (ID, "ignore", "hyp session ignore")
    assert "session in this folder" in hyp("session", "status")[1]
    code, _, err = hyp("session", "unignore")
    assert (code, "hyp backfill" in err) == (0, True)
    session_hook.record_context(home, "claude", {"session_id": "another", "cwd": str(tmp_path / "work")})
    code, _, err = hyp("session", "ignore", "--json")
    assert code == 2
    assert json.loads(hyp("session", "status", "--json")[1])["sessions"] == []


def test_deleted_private_folders_are_listed(hyp: Hyp, home: Home, tmp_path: Path) -> None:
    home.root.mkdir()
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / ".hypignore").write_text("local-only")
    session_hook.record_context(home, "claude", {"session_id": ID, "cwd": str(clone)})
    assert json.loads(hyp("session", "status", "--json")[1])["folders_gone"] == []
    shutil.rmtree(clone)
    (result,) = json.loads(hyp("session", "status", "--json")[1])["folders_gone"]
    assert (result["folder"], result["class"]) == (str(clone), "local-only")
    assert str(clone) in hyp("session", "status")[1]
    for number in range(25):
        folder = tmp_path / f"many-{number}"
        folder.mkdir()
        (folder / ".hypignore").touch()
        session_hook.record_context(home, "claude", {"session_id": f"s-{number}", "cwd": str(folder)})
        shutil.rmtree(folder)
    _, out, err = hyp("session", "status")
    assert (out.count(str(tmp_path)), "6 older ones" in err) == (20, True)
    assert "last known content" in json.loads(hyp("session", "status", ID, "--json")[1])["why"]


@pytest.mark.hazard(61)
@pytest.mark.hazard(62)
def test_an_invalid_id_is_rejected_and_escaped(hyp: Hyp, home: Home) -> None:
    for bad in ("", "a\x1b[2Jb", "x" * 300):
        code, out, err = hyp("session", "ignore", bad)
        assert (code, out) == (2, "")
        assert "\x1b" not in err
        assert hyp("session", "status", bad)[0] == 2
    assert not home.root.exists()


def test_a_damaged_file_is_reported_with_its_repair(hyp: Hyp, home: Home) -> None:
    home.root.mkdir()
    (home.root / "privacy.json").write_text("{")
    code, out, _ = hyp("session", "status", "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "privacy_unreadable")
    assert json.loads(out)["error"]["repair"][0].startswith("mv ")


@pytest.mark.hazard(62)
def test_a_folder_name_is_escaped_for_the_terminal(hyp: Hyp, home: Home, tmp_path: Path) -> None:
    home.root.mkdir()
    session_hook.record_context(home, "claude", {"session_id": "s", "cwd": "/nonexistent/\x1b]0;owned\x07"})
    assert "\x1b" not in hyp("session", "status", "s")[1] + hyp("session", "status", "s", "--json")[1]
