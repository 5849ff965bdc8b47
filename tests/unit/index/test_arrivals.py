"""Arrivals: each part is shown once, when it is recorded, however often its row moves."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.index.arrivals import Arrival, Arrivals, take_signature
from hypaware.index.conversation import read_conversation
from hypaware.index.database import remove_files
from hypaware.index.filters import Filters
from hypaware.index.sessions import find_session
from hypaware.index.store import open_index
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from tests.support.index_home import make_home
from tests.support.light_home import DATASET, NO_TIMER, append, flush
from tests.support.live_rows import Part
from tests.support.rows import of_age, row


def texts(found: list[Arrival]) -> list[str]:
    return [part["text"] for _, message in found for part in message["parts"]]


def test_parts_arrive_once_on_their_way_from_the_spool_to_the_lake(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", row(1))
    with open_index(home) as index:
        arrivals = Arrivals(index)
        assert texts(arrivals.poll()) == []

        spool = Spool(home, NO_TIMER)
        spool.append(DATASET, [row(2), row(3)])
        assert texts(arrivals.poll()) == ["text of message 2", "text of message 3"]
        spool.append(DATASET, [row(4)])
        assert texts(arrivals.poll()) == ["text of message 4"]

        spool.close()
        flush(home)
        assert texts(arrivals.poll()) == []
        append(home, [row(5)])
        assert texts(arrivals.poll()) == ["text of message 5"]


def test_a_poll_without_a_change_does_not_touch_the_index(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", row(1))
    with open_index(home) as index:
        arrivals = Arrivals(index)
        arrivals.poll()
        connection = index.connection

        assert arrivals.poll() == []
        assert index.connection is connection
        append(home, [row(2)])
        arrivals.poll()
        assert index.connection is not connection


def test_a_row_that_is_flushed_between_two_polls_arrives(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with open_index(home) as index:
        arrivals = Arrivals(index)
        arrivals.poll()

        append(home, [row(1, message_created_at=datetime.now(UTC).isoformat())])
        flush(home)

        assert texts(arrivals.poll()) == ["text of message 1"]


def test_a_row_whose_number_is_used_again_arrives(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with open_index(home) as index:
        arrivals = Arrivals(index)
        append(home, [row(1)])
        assert texts(arrivals.poll()) == ["text of message 1"]

        flush(home)
        append(home, [row(2)])

        assert texts(arrivals.poll()) == ["text of message 2"]


def test_an_import_of_old_history_does_not_arrive(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with open_index(home) as index:
        arrivals = Arrivals(index)
        append(home, [row(1, message_created_at=of_age(days=30))])
        flush(home)

        assert texts(arrivals.poll()) == []


def test_a_live_row_and_its_native_row_arrive_as_one_part(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    said = [Part(1), Part(2, "answer"), Part(3, "call")]
    with open_index(home) as index:
        arrivals = Arrivals(index)
        append(home, [each.live() for each in said])
        first = arrivals.poll()
        append(home, [each.native() for each in said])
        second = arrivals.poll()
        flush(home)
        third = arrivals.poll()

    assert len(texts(first)) == 3
    assert (texts(second), texts(third)) == ([], [])


def test_a_part_that_was_shown_in_another_way_does_not_arrive_under_its_new_id(tmp_path: Path) -> None:
    now = datetime.now(UTC).isoformat()
    said = [Part(1), Part(2, "answer")]
    home = make_home(tmp_path / "home", *(each.live(message_created_at=now) for each in said))
    with open_index(home) as index:
        session = find_session(index, "session-1")
        arrivals = Arrivals(index, session=session)
        for message in read_conversation(index, session):
            arrivals.note_shown(session, message)
        append(home, [each.native(message_created_at=now) for each in said])
        flush(home)

        assert texts(arrivals.poll()) == []
        (first, second) = read_conversation(index, session)
        assert (first["message_id"], second["message_id"]) == (said[0].native_id, said[1].native_id)


def test_the_same_words_said_again_arrive_again(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    with open_index(home) as index:
        arrivals = Arrivals(index)
        append(home, [row(1, content_text="continue")])
        append(home, [row(2, content_text="continue")])

        assert texts(arrivals.poll()) == ["continue", "continue"]


def test_one_session_or_those_that_match_can_be_watched(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home", row(1), row(2, session_id="session-2", cwd="/home/dev/web"))
    with open_index(home) as one, open_index(home) as filtered:
        watched = Arrivals(one, session=find_session(one, "session-1"))
        matching = Arrivals(filtered, filters=Filters(project="web"))
        append(home, [row(3), row(4, session_id="session-2", cwd="/home/dev/web"), row(5, session_id="new")])

        assert texts(watched.poll()) == ["text of message 3"]
        assert texts(matching.poll()) == ["text of message 4"]


def test_the_last_parts_come_from_the_newest_sessions_in_order(tmp_path: Path) -> None:
    rows = [row(number, session_id=f"session-{number % 2}") for number in range(1, 7)]
    home = make_home(tmp_path / "home", *rows)
    with open_index(home) as index:
        found = Arrivals(index).read_last(3)

        assert texts(found) == [f"text of message {number}" for number in (4, 5, 6)]
        assert [session["session_id"] for session, _ in found] == ["session-0", "session-1", "session-0"]


def test_the_signature_changes_with_every_row(tmp_path: Path) -> None:
    home = make_home(tmp_path / "home")
    seen = [take_signature(home)]
    spool = Spool(home, NO_TIMER)
    for number in range(3):
        spool.append(DATASET, [row(number)])
        seen.append(take_signature(home))
    spool.close()
    flush(home)
    seen.append(take_signature(home))

    assert len(set(seen)) == len(seen)


def test_a_home_without_rows_has_a_signature(tmp_path: Path) -> None:
    assert take_signature(Home(tmp_path)) == ()


OTHER, WATCHED = {"session_id": "session-0"}, {"session_id": "session-1"}


@pytest.mark.parametrize("of_one_session", [False, True])
def test_parts_arrive_once_although_the_index_was_built_again(tmp_path: Path, of_one_session: bool) -> None:
    """The first session is gone when it is built, and comes back later, so the sessions get each other's numbers."""
    now = datetime.now(UTC).isoformat()
    home = make_home(tmp_path / "home")
    append(home, [row(1, **OTHER)])
    (removed,) = segments.list_sealed_segments(segments.spool_folder(home, DATASET))
    append(home, [row(2, **WATCHED)])
    with open_index(home) as index:
        number = find_session(index, "session-1")
        arrivals = Arrivals(index, session=number if of_one_session else None)
        append(home, [row(3, **WATCHED, message_created_at=now)])
        assert texts(arrivals.poll()) == ["text of message 3"]

        remove_files(home)
        removed.path.unlink()
        again = row(4, **OTHER, content_text="text of message 3", message_created_at=now)
        append(home, [again, row(5, **WATCHED, message_created_at=now)])
        found = arrivals.poll()
        assert find_session(index, "session-0") == number
        sessions = [(session["session_id"], part["text"]) for session, message in found for part in message["parts"]]
        others = [] if of_one_session else [("session-0", "text of message 3")]
        assert sorted(sessions) == [*others, ("session-1", "text of message 5")]

        append(home, [row(6, **WATCHED, message_created_at=now)])
        flush(home)
        assert texts(arrivals.poll()) == ["text of message 6"]
