"""The health in the page: what `hyp status` says, each problem with its command, on a sick home too."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hypaware.cli import entry
from hypaware.gateway import attach_status
from hypaware.home import Home
from hypaware.page import health
from hypaware.page.app import make_app
from hypaware.page.context import PageAccess, PageContext
from hypaware.page.health import HealthReader, clean, describe_health, read_letters, read_status
from hypaware.page.part_reader import PartReader, Reading
from hypaware.privacy.ignored_sessions import ignore_session
from hypaware.state import dead_letters, streams
from hypaware.state.dead_letters import DeadLetter
from hypaware.status import clients, home_health, processes, session_expiry, sinks, storage
from hypaware.status.snapshot import collect_snapshot
from tests.support.delivery_home import DeliveryHome, key
from tests.support.light_home import append
from tests.support.processes import PATIENCE, succeed
from tests.support.rows import rows
from tests.support.served_page import ServedPage, serve_app
from tests.support.status_home import StatusHome, everything_under

DOCUMENTED = re.findall(r"`([a-z_]+)`", (Path(__file__).parents[3] / "docs" / "status.md").read_text())
_VARYING = ("lag_seconds", "free_bytes", "next_round")
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202eevil"


@pytest.fixture
def at(home: Home, monkeypatch: pytest.MonkeyPatch) -> StatusHome:
    """A home whose status depends on nothing else of this machine."""
    found = StatusHome(home).with_engine()
    for name, value in {**found.environment, "HYP_CACHE": str(found.cache)}.items():
        monkeypatch.setenv(name, value)
    return found


@contextmanager
def served(home: Home, access: PageAccess | None = None) -> Iterator[ServedPage]:
    with closing(PageContext(home, access)) as context, serve_app(lambda: make_app(context)) as page:
        yield page


def health_of(page: ServedPage) -> str:
    """Return the health, as soon as all of it is known."""
    while "data-late" in (text := page.ask("/health/body").text):
        pass
    return text


def shown_problems(text: str) -> list[tuple[str, str, list[str]]]:
    """Return the kind, the message and the commands of each problem that the page shows, in order."""
    found = []
    for kind, body in re.findall(r'<li class="[^"]*" data-kind="(\w+)">(.*?)</li>', text, re.DOTALL):
        message = re.sub(r"<span.*?</span>|<p>|</p>", "", body.partition("</p>")[0]).strip()
        commands = [html.unescape(each) for each in re.findall(r"<code>(.*?)</code>", body)]
        assert commands == [html.unescape(each) for each in re.findall(r'data-copy="(.*?)"', body)]
        found.append((kind, html.unescape(message), commands))
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if name not in _VARYING}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def test_the_page_shows_the_problems_of_hyp_status(at: StatusHome, capfd: pytest.CaptureFixture[str]) -> None:
    at.with_rows(20).with_client().write_config(
        '[clients.claude]\nenabled = true\n[sinks.team]\nkind = "blob"\ndestination = "/tmp/nowhere"\n'
        '[privacy.folders]\n"~/secret" = "ignore"\n'
    )
    ignore_session(at.home, "session-1")
    append(at.home, rows(3, start=30))
    capfd.readouterr()
    assert entry.run(["status", "--json"]) == 0
    command = json.loads(capfd.readouterr().out)

    assert without_times(read_status(at.home)) == without_times(command)
    with served(at.home) as page:
        text = health_of(page)
    assert command["overall"] == "down"
    assert "<b>down</b>" in text
    assert "Nothing is recorded automatically" in text
    expected = [(each["kind"], each["message"], each["repair"]) for each in command["diagnostics"]]
    assert shown_problems(text) == expected
    assert {"daemon_down", "left_out"} <= {kind for kind, _, _ in expected}
    assert "3 rows" in text


def test_every_kind_of_problem_is_shown_with_its_commands(at: StatusHome) -> None:
    at.made()
    status = read_status(at.home)
    kinds = [kind for kind in DOCUMENTED if "_" in kind]
    assert len(kinds) > 50
    status["diagnostics"] = [
        {"severity": "warning", "kind": kind, "message": f"about {kind}", "repair": [f"hyp {kind} 'a b'", "hyp doctor"]}
        for kind in kinds
    ]
    with closing(PageContext(at.home)) as context:
        values = describe_health(Reading(status, datetime.now(UTC)), Reading([]), Reading(), datetime.now(UTC))
        template = context._templates.get_template("health_body.html")
        text = template.render(values)
    assert shown_problems(text) == [(each["kind"], each["message"], each["repair"]) for each in status["diagnostics"]]


def test_a_healthy_home_has_a_good_verdict(at: StatusHome) -> None:
    at.with_rows(3)
    assert collect_snapshot(at.home).overall == "ok"
    with served(at.home) as page:
        text = health_of(page)
    assert "Everything is working" in text
    assert 'class="card verdict good"' in text


def test_daemon_gateway_clients_and_task_times_are_shown(at: StatusHome) -> None:
    at.made().with_client().write_config("[clients.claude]\nenabled = true\n")
    ago = (datetime.now(UTC) - timedelta(hours=3)).isoformat()
    parts: dict[str, Any] = {
        "gateway": {"listen": "127.0.0.1:1", "state": "off", "exchanges": 1234, "recorded": 1200},
        "flush": {"last_flush": ago, "last_status": "failed"},
        "maintain": {"last_run": ago, "last_status": "ok", "waits": None, "next_look": None},
        "follow": {"error": None, "clients": {"claude": {"state": "following", "last_recorded_at": ago}}},
    }
    with at.daemon(**parts), served(at.home) as page:
        text = re.sub(r"\s+", " ", health_of(page))
    assert "off at 127.0.0.1:1" in text
    assert "1,234, 1,200 recorded" in text
    assert '3 hours ago, <span class="bad">failed</span>' in text
    assert '<td data-label="Transcripts">followed</td>' in text
    assert "not since the daemon started" in text, "no import has run"


def test_sessions_that_the_client_is_about_to_delete_are_listed(at: StatusHome) -> None:
    at.with_rows(3).with_client().write_config("[clients.claude]\nenabled = true\n")
    session = "0dc91b82-3238-4907-98f3-ae0d1d845b97"
    transcript = at.user / ".claude" / "projects" / "p" / f"{session}.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.write_text("{}\n")
    old = (datetime.now(UTC) - timedelta(days=28)).timestamp()
    os.utime(transcript, (old, old))
    with served(at.home) as page:
        text = health_of(page)
    assert session in text
    assert "not imported yet" in text
    assert "hyp backfill claude" in html.unescape(text)


def test_streams_and_dead_letters_are_shown_with_their_commands(at: StatusHome) -> None:
    at.with_rows(5)
    delivery = DeliveryHome(at.home)
    delivery.declare(archive="/tmp/nowhere")
    delivery.delivered(key(), 2)
    with delivery.change() as connection:
        for number, reason in enumerate(["too large", "too old", f"refused: {HOSTILE}"]):
            letter = DeadLetter(
                f"{number}c0ffee{'0' * 24}", key(), "i", 0, 1, 7, reason, f"2026-11-1{number}T00:00:00Z"
            )
            dead_letters.add_letter(connection, letter, None)
        streams.record_failure(connection, key(), f"no route, Authorization: Bearer {'s3cr3t' * 6}", None, 1)
    with served(at.home) as page:
        text = health_of(page)
    plain = html.unescape(text)
    assert [each["reason"] for each in read_letters(at.home)][1:] == ["too old", "too large"], "the newest come first"
    assert "ai_gateway_messages · claude" in text
    assert "hyp export dead-letters list" in text
    assert "hyp export dead-letters replay --all" in text
    assert "refused: <script>alert(1)</script>\\x1b[2J\\u202eevil" in plain
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "no route" in text
    assert "s3cr3t" not in text


def test_disk_index_and_versions_are_shown(at: StatusHome) -> None:
    at.with_rows(3)
    with served(at.home) as page:
        page.ask("/")
        text = re.sub(r"\s+", " ", health_of(page))
    assert re.search(r"<meter [^>]*value=\"\d+\"", text)
    for name in ("Lake", "Spool", "State and keys", "Index", "HypAware", "Python"):
        assert f"<dt>{name}</dt>" in text
    assert "3 rows" in text


def test_a_home_that_does_not_answer_shows_what_is_known(at: StatusHome, monkeypatch: pytest.MonkeyPatch) -> None:
    at.with_rows(3)
    release, calls = threading.Event(), []

    def hang(home: Home) -> dict[str, Any]:
        calls.append(home)
        if len(calls) > 1:
            release.wait(PATIENCE)
        return clean(collect_snapshot(home).as_json())  # type: ignore[no-any-return]

    monkeypatch.setattr(health, "read_status", hang)

    async def look() -> None:
        reader = HealthReader(at.home)
        first = await reader.read(0.2)
        while first["is_late"]:
            first = await reader.read(0.2)
        assert first["status"]["overall"] == "ok"
        for _ in range(3):
            late = await reader.read(0.2)
            assert late["readings"]["status"].is_late
            assert late["status"] == first["status"], "what was read last is shown"
            assert (late["letters"], late["index"]) == (first["letters"], first["index"])
        assert len(calls) == 2, "a read that hangs is not repeated"
        release.set()
        while (await reader.read(0.2))["is_late"]:
            pass

    try:
        asyncio.run(look())
    finally:
        release.set()


_PARTS = (
    (home_health, "inspect_config"),
    (home_health, "inspect_home"),
    (home_health, "inspect_disk"),
    (processes, "inspect_daemon"),
    (processes, "inspect_gateway"),
    (processes, "inspect_server"),
    (processes, "inspect_engine"),
    (clients, "inspect_clients"),
    (session_expiry, "inspect_history"),
    (sinks, "inspect_sinks"),
    (storage, "inspect_spool"),
    (storage, "inspect_lake"),
    (storage, "inspect_retention"),
    (storage, "inspect_privacy"),
    (attach_status, "attach_status"),
)


@pytest.mark.parametrize("failing", [*([each] for each in _PARTS), _PARTS], ids=lambda each: str(len(each)))
def test_a_status_with_parts_that_cannot_be_inspected_is_shown(
    at: StatusHome, monkeypatch: pytest.MonkeyPatch, failing: Sequence[tuple[ModuleType, str]]
) -> None:
    at.with_rows(3).with_client()

    def fail(*_: object) -> None:
        raise OSError("cannot look at it")

    for module, name in failing:
        monkeypatch.setattr(module, name, fail)
    with served(at.home) as page:
        text = health_of(page)
    assert "cannot look at it" in text
    assert "hyp doctor" in text or "hyp client status" in text


def test_a_home_that_does_not_exist_is_shown_and_not_created(at: StatusHome) -> None:
    with served(at.home) as page:
        text = health_of(page)
    assert [(kind, commands) for kind, _, commands in shown_problems(text)] == [("not_set_up", ["hyp setup"])]
    assert not at.home.root.exists()


@pytest.mark.parametrize("damage", ["config", "state", "file"])
def test_a_damaged_home_is_shown(at: StatusHome, damage: str) -> None:
    if damage == "file":
        at.home.root.write_text("no folder")
    else:
        at.with_rows(3)
        path = at.home.config if damage == "config" else at.home.state
        path.write_text("no setting and no database" * 100)
    with served(at.home) as page:
        kinds = {kind for kind, _, _ in shown_problems(health_of(page))}
    assert {"config": "config_invalid", "state": "state_unreadable", "file": "home_no_folder"}[damage] in kinds


def test_a_part_that_fails_is_reported_and_read_again() -> None:
    attempts = iter([1, 2])

    def read() -> int:
        if next(attempts) == 1:
            raise ValueError("no luck")
        return 7

    async def look() -> None:
        reader = PartReader[int]("test")
        first = await reader.get(read, 60)
        assert (first.value, first.error) == (None, "no luck")
        second = await reader.get(read, 60)
        assert (second.value, second.error) == (7, None)

    asyncio.run(look())


def test_the_page_explains_that_nothing_is_known_yet(at: StatusHome) -> None:
    at.made()
    with closing(PageContext(at.home)) as context:
        values = describe_health(Reading(is_late=True), Reading(is_late=True), Reading(is_late=True), datetime.now(UTC))
        text = context._templates.get_template("health_body.html").render(values)
    assert "Not known yet" in text
    assert "hyp doctor" in text


def test_an_error_that_names_a_secret_is_cleaned(at: StatusHome) -> None:
    at.made()
    status = Reading(read_status(at.home), datetime.now(UTC))
    broken = replace(Reading[Any](), error="https://me:hunter22@example.com/x is away\x1b[2J")
    values = describe_health(status, broken, broken, datetime.now(UTC))
    assert values["readings"]["letters"].error == "https://example.com/x is away\\x1b[2J"


def test_the_fragment_is_the_body_of_the_page(at: StatusHome) -> None:
    at.with_rows(3)
    with served(at.home) as page:
        body = health_of(page)
        while "data-late" in (whole := page.ask("/health").text):
            assert '<noscript><a href="/health">' in whole
    assert "<html" not in body
    assert shown_problems(whole) == shown_problems(body)
    assert "Everything is working" in body


def test_looking_at_the_health_changes_nothing(at: StatusHome) -> None:
    at.with_rows(3)
    with served(at.home) as page:
        health_of(page)
        before = everything_under(at.home.root)
        assert "Everything is working" in health_of(page)
    assert everything_under(at.home.root) == before


def test_a_team_does_not_see_the_health_of_the_machine(at: StatusHome) -> None:
    at.with_rows(3)
    with served(at.home, PageAccess(is_team=True, may_change=False)) as page:
        for path in ("/health", "/health/body", "/privacy", "/purge?id=session-1"):
            assert page.ask(path).status == 404


def test_the_views_load_neither_spark_nor_arrow(at: StatusHome) -> None:
    at.with_rows(3)
    code = """
import asyncio, sys
from hypaware.home import Home
from hypaware.page import privacy, purge
from hypaware.page.health import HealthReader
found = asyncio.run(HealthReader(Home.from_environment()).read(60))
assert found["status"] and found["index"], found
print(sorted({"pyspark", "py4j", "pyarrow"} & sys.modules.keys()))
"""
    assert succeed(code, at.home) == "[]\n"
