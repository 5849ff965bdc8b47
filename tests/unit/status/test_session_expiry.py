"""What Claude Code is about to delete: how many sessions, whether they are recorded, and what only this home has."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware.cli import entry
from hypaware.clients.claude import history
from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.client import ExpiringProvider
from hypaware.clients.codex.history import CodexHistory
from hypaware.config import ClientConfig, Config, PrivacyConfig, RetentionConfig
from hypaware.privacy import ignored_sessions
from hypaware.status import doctor, session_expiry
from hypaware.status.session_expiry import ClientHistory, describe_history
from tests.support import codex_rollouts
from tests.support.claude_files import aged, grow, turns, write
from tests.support.light_home import import_history
from tests.support.light_purge import purge
from tests.support.status_home import StatusHome

DAY = 86_400.0
Import = Callable[..., None]


@pytest.fixture(autouse=True)
def unmanaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    managed = tmp_path / "managed-settings.json"
    monkeypatch.setattr(history, "_MANAGED_SETTINGS", (managed,))
    return managed


def transcript(at: StatusHome, session: str, days: float) -> Path:
    return write(at.user / f".claude/projects/-p/{session}.jsonl", turns(session, 1), age=days * DAY)


def imported(at: StatusHome, **options: Any) -> None:
    import_history(at.home, {"HOME": str(at.user)}, **options)


def expiring(at: StatusHome, config: Config | None = None) -> list[ClientHistory]:
    found = session_expiry.list_expiring(at.home, config or Config(), at.environment, at.now)
    return [each for each in found if each.expiring or each.gone]


def claude(at: StatusHome, config: Config | None = None) -> ClientHistory:
    found = session_expiry.list_expiring(at.home, config or Config(), at.environment, at.now)
    return next(each for each in found if each.client == "claude")


def test_sessions_of_the_next_week_are_counted_by_the_time_of_their_file(at: StatusHome) -> None:
    at.with_rows(1)
    for days in (1, 22.9, 23.1, 29, 31):
        transcript(at, f"s{days}", days)
    found = claude(at)
    assert sorted(found.expiring) == ["s23", "s29", "s31"]
    assert {reason for _, reason in found.unrecorded} == {"not imported yet"}
    assert at.diagnostic("sessions_unrecorded").repair == ("hyp backfill claude",)
    imported(at)
    assert (claude(at).unrecorded, len(claude(at).expiring)) == ((), 3)
    assert "sessions_unrecorded" not in at.kinds()


@pytest.mark.parametrize(
    ("user", "managed", "days"),
    [
        (None, None, 30),
        ({"cleanupPeriodDays": 90}, None, 90),
        ({"cleanupPeriodDays": 90}, {"cleanupPeriodDays": 5}, 5),
        ({"cleanupPeriodDays": 10**9}, None, 36_500),
        ({"cleanupPeriodDays": 0}, None, None),
        ({"cleanupPeriodDays": "7"}, None, 30),
        ({"cleanupPeriodDays": True}, None, 30),
        ({"cleanupPeriodDays": -1}, None, 30),
        ([], {"other": 1}, 30),
    ],
)
def test_the_rule_is_that_of_the_clients_settings(
    at: StatusHome, unmanaged: Path, user: Any, managed: Any, days: int | None
) -> None:
    transcript(at, "one", 29)
    for path, content in ((at.user / ".claude/settings.json", user), (unmanaged, managed)):
        if content is not None:
            path.write_text(json.dumps(content))
    rule = ClaudeHistory().expiry(at.environment)
    assert (rule.days if rule else None) == days
    if days == 90:
        assert rule is not None
        assert rule.setting == f"cleanupPeriodDays in {at.user}/.claude/settings.json"
    if days is None:
        imported(at)
        assert claude(at) == ClientHistory("claude", None)


def test_codex_keeps_its_sessions() -> None:
    assert not isinstance(CodexHistory(), ExpiringProvider)
    assert isinstance(ClaudeHistory(), ExpiringProvider)


def test_every_reason_why_a_session_is_not_recorded_is_named(at: StatusHome) -> None:
    grown, subagents = transcript(at, "grown", 28), transcript(at, "subagents", 28)
    transcript(at, "fine", 28)
    imported(at)
    grow(grown, turns("grown", 1, first=1), age=27 * DAY)
    write(subagents.with_suffix("") / "subagents/agent-1.jsonl", turns("subagents", 1, first=5), age=28 * DAY)
    transcript(at, "new", 28)
    assert dict(claude(at).unrecorded) == {
        "grown": "it has changed since it was read",
        "subagents": "not imported yet",
        "new": "not imported yet",
    }
    off = Config(clients={"claude": ClientConfig(enabled=False)})
    assert dict(claude(at, off).unrecorded)["new"] == "the client is disabled in the config"
    declined = Config(clients={"claude": ClientConfig(history_from=at.now.isoformat())})
    assert dict(claude(at, declined).unrecorded)["new"] == "its history was declined"
    imported(at)
    assert claude(at).unrecorded == ()


def test_lines_outside_the_window_of_an_import_are_not_recorded(at: StatusHome) -> None:
    transcript(at, "one", 28)
    imported(at, since="2026-10-01T08:00:01.500000Z")
    assert claude(at).unrecorded == (("one", "it has messages outside the time window of the import"),)
    assert at.diagnostic("sessions_unrecorded").repair == ("hyp backfill claude --retention-days 0",)
    # With a retention, the user wanted it that way.
    kept = Config(retention=RetentionConfig(default_days=10))
    assert claude(at, kept).excluded == ("one",)


def test_sessions_that_privacy_excludes_are_counted_apart(at: StatusHome) -> None:
    transcript(at, "open", 28)
    transcript(at, "hidden", 28)
    ignored_sessions.ignore_session(at.home, "hidden")
    imported(at, config=Config(privacy=PrivacyConfig()))
    found = claude(at)
    assert (sorted(found.expiring), found.excluded, found.unrecorded) == (["hidden", "open"], ("hidden",), ())
    line = describe_history(found.as_json(), "claude")
    assert line == "claude deletes 2 sessions within 7 days: 1 recorded, 1 left out as you asked"


def test_recorded_sessions_that_the_client_has_deleted_are_counted_and_listed(at: StatusHome) -> None:
    paths = [transcript(at, f"s{number}", 2) for number in range(3)]
    write(paths[0].with_suffix("") / "subagents/agent-1.jsonl", turns("s0", 1, first=5))
    imported(at)
    assert claude(at).gone == ()
    paths[0].unlink()
    (paths[0].with_suffix("") / "subagents/agent-1.jsonl").unlink()
    paths[2].unlink()
    document = claude(at).as_json()
    assert (document["gone"], sorted(document["gone_sessions"])) == (2, ["s0", "s2"])
    assert describe_history(document, "claude") == "2 sessions of claude are only here"


def test_a_rollout_that_codex_has_compressed_or_archived_is_not_gone(at: StatusHome) -> None:
    threads = [f"01a1de10-606a-7303-a642-50898751c7{number}" for number in (10, 11, 12)]
    day = at.user / ".codex/sessions/2026/11/15"
    day.mkdir(parents=True)
    lines = (codex_rollouts.turn(), codex_rollouts.says("user", "hi"))
    paths = [day / f"rollout-2026-11-15T07-16-17-{thread}.jsonl" for thread in threads]
    for path, thread in zip(paths, threads, strict=True):
        path.write_bytes(codex_rollouts.as_bytes([codex_rollouts.meta(id=thread), *lines]))
    import_history(at.home, {"HOME": str(at.user)}, "codex")
    paths[0].rename(f"{paths[0]}.zst")
    (at.user / ".codex/archived_sessions").mkdir()
    paths[1].rename(at.user / ".codex/archived_sessions" / paths[1].name)
    paths[2].unlink()
    (codex,) = expiring(at)
    assert (codex.client, codex.rule, codex.gone) == ("codex", None, (threads[2],))


def test_a_purged_session_is_neither_recorded_nor_only_here(at: StatusHome) -> None:
    path = transcript(at, "one", 28)
    transcript(at, "two", 28)
    imported(at)
    purge(at.home, "session", "one")
    assert (claude(at).excluded, claude(at).unrecorded) == (("one",), ())
    path.unlink()
    assert (claude(at).expiring, claude(at).gone) == (("two",), ())


def test_a_file_with_a_name_that_is_not_utf8_is_recognised(at: StatusHome) -> None:
    folder = at.user / ".claude/projects/-p"
    folder.mkdir(parents=True)
    odd = os.fsdecode(os.fsencode(folder) + b"/s\xff1.jsonl")
    write(Path(odd), turns("odd", 1), age=28 * DAY)
    assert len(claude(at).unrecorded) == 1
    imported(at)
    assert (claude(at).unrecorded, claude(at).gone) == ((), ())


def test_links_folders_and_unreadable_places_are_survived(at: StatusHome) -> None:
    transcript(at, "one", 28)
    project = at.user / ".claude/projects/-p"
    (project / "loop.jsonl").symlink_to(project / "loop.jsonl")
    (project / "folder.jsonl").mkdir()
    (project.parent / "loop").symlink_to(project.parent / "loop")
    aged(write(project / "empty.jsonl", iter(())), 28 * DAY)
    assert claude(at).expiring == ("one",)


def test_status_doctor_and_json_say_it(
    at: StatusHome, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    transcript(at, "one", 28)
    transcript(at, "two", 28)
    transcript(at, "three", 1).rename(at.user / "three.jsonl")
    imported(at)
    for name, value in {**at.environment, "HYP_CACHE": str(at.cache)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    assert entry.run(["status"]) == 0
    assert "history    claude deletes 2 sessions within 7 days: all recorded" in capfd.readouterr().out
    assert entry.run(["status", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    listed = {each["client"]: each["history"] for each in document["clients"]}
    assert (listed["claude"]["expiring"], listed["claude"]["kept_days"]) == (2, 30)
    assert sorted(listed["claude"]["expiring_sessions"]) == ["one", "two"]
    assert listed["codex"] is None
    (check,) = [each for each in checks(at) if each.name == "history:claude"]
    assert check.status == "ok"
    transcript(at, "late", 28)
    (check,) = [each for each in checks(at) if each.name == "history:claude"]
    assert (check.status, check.repair) == ("warning", ("hyp backfill claude",))
    assert "1 unrecorded session within 7 days: not imported yet" in check.detail


def checks(at: StatusHome) -> Iterator[Any]:
    inputs = doctor.read_input(at.home, at.environment, at.now, at.cache)
    return doctor.check_history(inputs)


def test_the_lists_of_a_document_are_bounded() -> None:
    ids = tuple(map(str, range(5000)))
    many = ClientHistory("claude", None, expiring=ids, unrecorded=tuple((each, "x") for each in ids), gone=ids)
    document = many.as_json()
    assert (document["expiring"], document["unrecorded"], document["gone"]) == (5000, 5000, 5000)
    assert {len(value) for value in document.values() if isinstance(value, list)} == {1000}


def test_expiry_is_announced_a_week_ahead() -> None:
    assert timedelta(days=7) == session_expiry.SOON
