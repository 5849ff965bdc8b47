"""A session that is being recorded: its page gets each new part once, and nothing is left when nobody looks."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.index import arrivals
from hypaware.index.refresh import refresh_index
from hypaware.page.address import message_anchor
from hypaware.page.app import make_app
from hypaware.page.context import PageContext
from tests.support.index_home import make_home, prompt, response
from tests.support.light_home import append, flush
from tests.support.served_page import ServedPage, serve_app

SESSION = "0dc91b82-aaaa-4907"
PATIENCE = 60.0
BEGIN = datetime.now(UTC)


@pytest.fixture(autouse=True)
def begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the session of each test be running: the module may have been imported minutes before."""
    monkeypatch.setattr(f"{__name__}.BEGIN", datetime.now(UTC) - timedelta(seconds=30))


def at(second: int) -> str:
    return (BEGIN + timedelta(seconds=second)).isoformat().replace("+00:00", "Z")


@contextmanager
def served(home: Home) -> Iterator[ServedPage]:
    refresh_index(home)
    with closing(PageContext(home)) as context, serve_app(lambda: make_app(context)) as page:
        yield page


class EventReader:
    """Reads the events of a session as a browser does."""

    def __init__(self, page: ServedPage, since: str, session: str = SESSION, last_id: str | None = None) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
        headers = {"Last-Event-ID": last_id} if last_id else {}
        self._connection.request("GET", f"/sessions/{session}/events?since={since}", headers=headers)
        self.answer = self._connection.getresponse()
        self.last_id = ""

    def next(self, name: str = "update") -> dict[str, Any]:
        """Return the content of the next event of this name."""
        fields: dict[str, str] = {}
        limit = time.monotonic() + PATIENCE
        while line := self.answer.readline().decode():
            assert time.monotonic() < limit
            key, _, value = line.rstrip("\n").partition(": ")
            if key:
                fields[key] = value
                continue
            self.last_id = fields.get("id", self.last_id)
            if fields.get("event") == name:
                found: dict[str, Any] = json.loads(fields["data"])
                return found
            fields = {}
        raise EOFError

    def next_with(self, text: str) -> dict[str, Any]:
        while text not in (found := self.next())["html"]:
            pass
        return found

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    limit = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < limit
        time.sleep(0.02)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "page-live"]


@pytest.fixture
def recorded(home: Home) -> Home:
    return make_home(
        home.root,
        prompt(1, "Begin", at=at(1), session_id=SESSION),
        response(2, at=at(2), session_id=SESSION, content_text="First answer."),
    )


def test_new_parts_arrive_and_the_figures_change(recorded: Home) -> None:
    with served(recorded) as page, closing(EventReader(page, at(2))) as reader:
        assert reader.answer.headers["Content-Type"].startswith("text/event-stream")
        assert "First answer." in reader.next()["html"]
        tool = {"part_type": "tool_call", "tool_name": "Bash", "tool_call_id": "c", "tool_args": {"command": "make"}}
        append(recorded, [response(3, at=at(3), session_id=SESSION, usage={"output_tokens": 700}, **tool)])
        call = reader.next_with("make")
        result = {"part_type": "tool_result", "tool_name": "Bash", "tool_call_id": "c", "tool_result_for": "c"}
        append(recorded, [prompt(4, "built <b>", at=at(4), session_id=SESSION, **result)])
        answer = reader.next_with("built")

    waits = re.findall(r'data-waits="([^"]+)"', call["html"])
    assert waits == re.findall(r'data-for="([^"]+)"', answer["html"]) == [message_anchor("c")]
    assert "built &lt;b&gt;" in answer["html"]
    assert ">700<" in call["figures"]
    assert call["is_running"]
    assert "700 out" in call["facts"]
    assert call["html"].count("<details") == call["html"].count("</details>")


def test_a_part_arrives_once_on_its_way_to_the_lake(recorded: Home) -> None:
    with served(recorded) as page, closing(EventReader(page, at(2))) as reader:
        reader.next()
        append(recorded, [response(3, at=at(3), session_id=SESSION, content_text="Second answer.")])
        reader.next_with("Second")
        flush(recorded)
        append(recorded, [response(4, at=at(4), session_id=SESSION, content_text="Third answer.")])
        assert "Second" not in reader.next()["html"]


def test_a_browser_that_reconnects_continues_where_it_was(recorded: Home) -> None:
    with served(recorded) as page:
        with closing(EventReader(page, at(2))) as reader:
            reader.next()
        append(recorded, [response(3, at=at(3), session_id=SESSION, content_text="Second answer.")])
        refresh_index(recorded)
        with closing(EventReader(page, at(1), last_id=reader.last_id)) as again:
            found = again.next_with("Second")
    assert reader.last_id == at(2)
    assert "Begin" not in found["html"]


def test_other_sessions_are_not_shown(recorded: Home) -> None:
    with served(recorded) as page, closing(EventReader(page, at(2))) as reader:
        reader.next()
        append(recorded, [response(8, at=at(8), session_id="other", content_text="Elsewhere.")])
        append(recorded, [response(3, at=at(3), session_id=SESSION, content_text="Here.")])
        assert "Elsewhere" not in reader.next_with("Here.")["html"]


def test_subagents_name_their_thread(recorded: Home) -> None:
    with served(recorded) as page, closing(EventReader(page, at(2))) as reader:
        reader.next()
        known: dict[str, Any] = {"session_id": SESSION, "is_sidechain": True, "agent_id": 'a"1'}
        append(recorded, [response(3, at=at(3), content_text="In the agent.", **known)])
        html = reader.next_with("In the agent.")["html"]
    assert (
        f'<div data-thread="{message_anchor(chr(97) + chr(34) + "1")}" data-thread-name="a&quot;1" class="said"' in html
    )


def test_one_thread_watches_for_all_viewers_and_ends_with_the_last(
    recorded: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: not watchers())  # that of an earlier test
    looks: list[int] = []
    look = arrivals.take_signature

    def count_look(home: Home) -> arrivals.Signature:
        looks.append(1)
        return look(home)

    monkeypatch.setattr(arrivals, "take_signature", count_look)
    with served(recorded) as page:
        readers = [EventReader(page, at(2)) for _ in range(5)]
        for reader in readers:
            reader.next()
        assert len(watchers()) == 1
        append(recorded, [response(3, at=at(3), session_id=SESSION, content_text="For all.")])
        for reader in readers:
            reader.next_with("For all.")
        for reader in readers:
            reader.close()
        # The server notices when it writes to them.
        append(recorded, [response(4, at=at(4), session_id=SESSION, content_text="For nobody.")])
        wait_until(lambda: not watchers())
        ended = len(looks)
        append(recorded, [response(5, at=at(5), session_id=SESSION, content_text="Nobody looks.")])
        assert len(looks) == ended


def test_events_end_when_the_server_stops(recorded: Home) -> None:
    with served(recorded) as page:
        reader = EventReader(page, at(2))
        reader.next()
    with pytest.raises((EOFError, ConnectionError)):
        reader.next("nothing")
    wait_until(lambda: not watchers())


def test_a_session_that_is_not_there_ends_the_stream(recorded: Home) -> None:
    with served(recorded) as page, closing(EventReader(page, at(2), session="unknown")) as reader:
        assert reader.next("end") == {}


def test_an_index_that_vanishes_while_it_is_watched_ends_the_stream(
    recorded: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(recorded) as page, closing(EventReader(page, at(2))) as reader:
        reader.next()
        with monkeypatch.context() as patch:
            vanished = iter([Retryable("the index cannot be read", kind="index_unavailable")])

            def poll(_self: arrivals.Arrivals, *, again: bool = False) -> list[arrivals.Arrival]:
                for error in vanished:
                    raise error
                return []

            patch.setattr(arrivals.Arrivals, "poll", poll)
            with pytest.raises(EOFError):
                reader.next()

        append(recorded, [response(3, at=at(3), session_id=SESSION, content_text="Yours.")])
        with closing(EventReader(page, at(2), last_id=reader.last_id)) as again:
            assert "Yours." in again.next_with("Yours.")["html"]


def test_a_new_index_ends_the_stream_instead_of_showing_another_session(recorded: Home) -> None:
    from hypaware.index.store import drop_index

    with served(recorded) as page, closing(EventReader(page, at(2))) as reader:
        reader.next()
        drop_index(recorded)
        append(recorded, [response(1, at=at(1), session_id="first-now", content_text="Not yours.")])
        append(recorded, [response(3, at=at(3), session_id=SESSION, content_text="Yours.")])
        with pytest.raises(EOFError):
            reader.next()

        with closing(EventReader(page, at(2), last_id=reader.last_id)) as again:
            assert "Yours." in again.next_with("Yours.")["html"]
