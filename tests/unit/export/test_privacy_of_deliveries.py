"""Deliveries under privacy rules: rows of excluded folders and sessions are skipped, secrets are replaced.

Under any policy, and however it changes, a range is delivered once: each of its rows is at the destination, a dead
letter, or withheld.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.config import Config, PrivacyConfig, RedactionConfig, SinkConfig
from hypaware.export import dead_letter_rows, destination_change, rows
from hypaware.export.delivery import DeliveryOptions, Driver, replay_letter
from hypaware.export.status import StreamReport
from hypaware.home import Home
from hypaware.privacy import folder_memory, ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.state import dead_letters, streams
from hypaware.state.home_opener import open_home
from hypaware.testing import fault_injection
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from hypaware.testing.sample_lake import DATASET, SampleLake, sample_row

KEY = "gh" + "p_" + "a1B2" * 9
MARKER = "[github-token:"


@dataclass
class Site:
    """A home with two destinations: a folder of message ids, and one with every word of a row."""

    root: Path
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    redaction: RedactionConfig = field(default_factory=RedactionConfig)
    committed: list[str] = field(default_factory=list)

    @property
    def home(self) -> Home:
        return Home(self.root / "home")

    @property
    def there(self) -> FolderDestination:
        return FolderDestination(self.root / "there")

    @property
    def config(self) -> Config:
        sinks = {
            "ids": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(self.root / "there")}),
            "words": SinkConfig(
                "blob", "* * * * *", (DATASET,), {"destination": str(self.root / "words"), "encoder": "jsonl"}
            ),
        }
        return Config(sinks=sinks, privacy=self.privacy, redaction=self.redaction)

    def folder(self, name: str) -> Path:
        found = self.root / "work" / name
        found.mkdir(parents=True, exist_ok=True)
        return found

    def close(self, name: str, word: str = "local-only") -> None:
        (self.folder(name) / ".hypignore").write_text(word)

    def open(self, name: str) -> None:
        (self.folder(name) / ".hypignore").unlink(missing_ok=True)

    def commit(self, count: int, folder: str | None, text: str = "text", session: str = "session-1") -> None:
        start = len(self.committed)
        where = {"cwd": str(self.folder(folder))} if folder else {}
        made = [
            {**sample_row(number, "claude", text), "session_id": session, **where}
            for number in range(start, start + count)
        ]
        with closing((opened := open_home(self.home)).store):
            SampleLake(self.root / "lake").commit(opened, made)
        self.committed += [str(row["message_id"]) for row in made]

    def deliver(self, sink: str = "ids", max_wait: float = 0.0) -> StreamReport:
        with closing((opened := open_home(self.home)).store), fault_injection.register_kind(FOLDER):
            driver = Driver(opened, self.config, SampleLake(self.root / "lake"), DeliveryOptions(max_wait))
            report = asyncio.run(driver.deliver(sink))
        assert report.error is None
        return report.streams[0]

    def replay(self) -> list[dict[str, Any]]:
        with closing((opened := open_home(self.home)).store), fault_injection.register_kind(FOLDER):
            with opened.store.reading() as connection:
                letters = dead_letters.list_letters(connection)
            driver = Driver(opened, self.config, SampleLake(self.root / "lake"), DeliveryOptions())
            return [asyncio.run(replay_letter(driver, letter.id)) for letter in letters]

    def resend(self) -> None:
        with closing((opened := open_home(self.home)).store), fault_injection.register_kind(FOLDER):
            destination_change.resend(self.home, self.config, opened.store, "ids")

    def dead(self) -> list[str]:
        """Return the message ids of the dead letters that are shown."""
        return [row["message_id"] for row in self.shown()]

    def shown(self) -> list[dict[str, Any]]:
        gate = rows.make_gate(self.home, self.config)
        with closing((opened := open_home(self.home)).store):
            letters = dead_letter_rows.list_letters(opened.store)
            return [row for each in letters for row in dead_letter_rows.read_rows(opened.store, each, _no_lake, gate)]

    def is_drained(self) -> bool:
        with closing((opened := open_home(self.home)).store), opened.store.reading() as connection:
            (stream,) = [each for each in streams.list_streams(connection) if each.key.sink == "ids"]
            return stream.watermark == len(self.committed) and streams.load_intent(connection, stream.key) is None

    def words(self) -> str:
        return "".join(
            gzip.decompress(path.read_bytes()).decode() for path in (self.root / "words").rglob("*.jsonl.gz")
        )


def _no_lake(_args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    raise AssertionError("the letters have their rows")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with fault_injection.register_kind(FOLDER):
        yield Site(tmp_path)


@pytest.mark.hazard(59)
def test_excluded_rows_stay_and_secrets_are_replaced(site: Site) -> None:
    site.close("here")
    site.commit(3, "open", f"use {KEY} or")
    site.commit(4, "here", "nobody reads this")
    ignored_sessions.ignore_session(site.home, "secret-session")
    site.commit(2, "open", "nor this", session="secret-session")
    found = site.deliver("words")
    assert (found.rows, found.withheld, found.redacted) == (3, 6, {"github-token": 3})
    assert found.as_json()["withheld"] == 6
    assert found.as_json()["redacted"] == {"github-token": 3}
    assert site.words().count(MARKER) == 3
    assert not any(word in site.words() for word in (KEY, "nobody", "nor this"))
    assert (found.last, site.deliver("words").rows) == (9, 0)
    site.redaction = RedactionConfig(exported=False)
    site.commit(1, "open", KEY)
    assert (site.deliver("words").redacted, site.words().count(KEY)) == ({}, 1)


def test_disabled_rules_and_unknown_folders_are_respected(site: Site) -> None:
    site.redaction = RedactionConfig(rules_off=("github-token",))
    site.commit(1, None, KEY)
    assert site.deliver("words").rows == 1
    assert KEY in site.words()
    site.privacy = PrivacyConfig(unknown_folder="local-only")
    site.commit(2, None)
    site.privacy = replace(site.privacy, folders={str(site.folder("shut")): "ignore"})
    site.commit(1, "shut")
    site.commit(1, "open")
    found = site.deliver("words")
    assert (found.rows, found.withheld) == (1, 3)


def test_a_fully_excluded_page_is_passed_without_the_destination(site: Site) -> None:
    site.close("here")
    site.commit(20, "here")
    site.there.faults.set("cut", 99)
    found = site.deliver()
    assert (found.error, found.rows, found.chunks, found.withheld) == (None, 0, 0, 20)
    assert site.is_drained()
    site.open("here")
    assert (site.deliver().rows, site.there.arrived()) == (0, [])
    site.there.faults.clear()
    site.resend()
    assert site.deliver().rows == 20
    assert sorted(site.there.arrived()) == sorted(site.committed)


def test_with_an_unreadable_policy_nothing_is_delivered_and_nothing_is_skipped(site: Site) -> None:
    site.commit(3, "open")
    ignored_sessions.ignored_sessions_path(site.home).write_text("{")
    found = site.deliver()
    assert found.error
    assert (found.error["kind"], found.rows, found.withheld) == ("privacy_unreadable", 0, 0)
    ignored_sessions.ignored_sessions_path(site.home).unlink()
    folder_memory.folder_memory_path(site.home).write_text("{")
    found = site.deliver()
    assert found.error
    assert (found.error["kind"], found.rows, found.withheld) == ("privacy_unreadable", 0, 0)
    folder_memory.folder_memory_path(site.home).unlink()
    assert site.deliver().rows == 3
    assert site.is_drained()


def test_rows_of_an_excluded_folder_stay_after_the_folder_is_removed(site: Site) -> None:
    """The gateway saw the folder; the round runs after the folder was removed."""
    site.close("clone")
    site.commit(3, "clone")
    PrivacyPolicy(site.home, remember=True).class_of(str(site.folder("clone")), None)
    shutil.rmtree(site.folder("clone"))
    site.commit(2, "open")
    found = site.deliver()
    assert (found.rows, found.withheld) == (2, 3)
    assert (site.deliver("words").rows, site.is_drained()) == (2, True)


def test_a_round_remembers_the_policy_of_the_folders_it_saw(site: Site) -> None:
    site.close("clone")
    site.commit(3, "clone")
    assert site.deliver().withheld == 3
    shutil.rmtree(site.folder("clone"))
    assert (site.deliver("words").rows, site.deliver("words").last) == (0, 3)
    site.resend()
    assert site.deliver().rows == 0


@pytest.mark.parametrize("word", ["local-only", "ignore", "a word of a newer version"])
def test_a_folder_excluded_between_two_attempts_is_not_delivered(site: Site, word: str) -> None:
    """The first attempt is cut, and the user excludes the folder of some of its rows before the retry."""
    site.commit(1, "open")
    site.commit(2, "later")
    site.there.faults.set("cut", 1)
    assert site.deliver().error
    site.close("later", word)
    site.commit(2, "open")
    found = site.deliver()
    assert (found.error, found.rows, found.withheld) == (None, 3, 2)
    assert set(site.there.arrived()) == {"message-0", "message-3", "message-4"}
    assert site.is_drained()


def test_a_folder_excluded_while_a_chunk_waits_for_a_retry_is_not_delivered(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sleep(_seconds: float) -> None:
        site.close("later")

    site.commit(2, "later")
    site.commit(1, "open")
    site.there.faults.set("busy", 1)
    monkeypatch.setattr("hypaware.export.retry.asyncio.sleep", sleep)
    found = site.deliver(max_wait=60.0)
    assert (found.error, found.rows, found.withheld) == (None, 1, 2)
    assert site.there.arrived() == ["message-2"]


@pytest.mark.hazard(19)
@pytest.mark.hazard(33)
def test_rows_that_arrived_before_their_folder_was_excluded_are_not_sent_under_another_id(site: Site) -> None:
    site.commit(3, "later")
    site.there.faults.set("lose_answer", 1)
    assert site.deliver().error
    assert len(site.there.arrived()) == 3
    site.close("later")
    assert site.deliver().error is None
    site.open("later")
    assert site.deliver().rows == 0
    assert sorted(site.there.arrived()) == site.committed


@pytest.mark.hazard(27)
@pytest.mark.hazard(59)
def test_a_dead_letter_holds_redacted_rows_and_is_replayed_only_if_allowed(site: Site) -> None:
    site.commit(3, "later", f"use {KEY}")
    site.there.faults.set("refuse", "message-1")
    assert (site.deliver().dead_letters, site.dead()) == (1, ["message-1"])
    with closing((opened := open_home(site.home)).store), opened.store.reading() as connection:
        (letter,) = dead_letters.list_letters(connection)
        body = dead_letters.load_payload(connection, letter.id)
    assert body is not None
    assert KEY not in json.dumps(site.shown())
    assert MARKER in json.dumps(site.shown())
    site.there.faults.clear()
    site.close("later")
    (outcome,) = site.replay()
    assert (outcome["status"], "exclude its folder or session" in outcome["reason"]) == ("failed", True)
    assert site.dead() == ["message-1"]
    site.open("later")
    assert [each["status"] for each in site.replay()] == ["delivered"]
    assert (site.dead(), sorted(site.there.arrived())) == ([], site.committed)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(["open", "shut", "moving"]), st.integers(1, 5)),
        st.tuples(st.sampled_from(["deliver", "close", "open", "replay"])),
        st.tuples(st.sampled_from(["cut", "lose_answer", "busy"]), st.integers(1, 2)),
        st.tuples(st.just("refuse"), st.integers(0, 12)),
    ),
    max_size=14,
)


@settings(max_examples=12)
@given(STEPS)
def test_under_any_policy_each_row_is_either_delivered_or_dead_or_withheld(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    site.close("shut")
    where: dict[str, str] = {}
    ever_closed = False
    for step in [("commit", "open", 1), *steps]:
        match step:
            case ("commit", name, count):
                before = len(site.committed)
                site.commit(count, name)
                where |= dict.fromkeys(site.committed[before:], name)
            case ("deliver",):
                site.deliver()
            case ("replay",):
                site.replay()
            case ("close",):
                site.close("moving")
                ever_closed = True
            case ("open",):
                site.open("moving")
            case ("refuse", number):
                site.there.faults.set("refuse", f"message-{number}")
            case (fault, times):
                site.there.faults.set(fault, times)
    for fault in ("cut", "lose_answer", "busy"):
        site.there.faults.set(fault, 0)
    last = site.deliver()
    assert (last.error, site.is_drained()) == (None, True)
    arrived, dead = site.there.arrived(), site.dead()
    left = [*arrived, *dead]
    assert len(left) == len(set(left)), "no row is both delivered and dead, and none is duplicated"
    assert not {where[message] for message in left} & {"shut"}
    kept_here = {where[message] for message in site.committed if message not in set(left)}
    assert kept_here <= {"shut", *(["moving"] if ever_closed else [])}
