"""Purges of a lake that machines share: rows leave every place, and come back on no machine.

PyIceberg stands in for Spark; PostgreSQL and the S3 server are real. Two homes stand for two machines.
`test_team_daemon` purges with real processes.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.config.schema import SinkConfig
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg import catalog
from hypaware.index.search import search
from hypaware.index.store import open_index
from hypaware.lake import tombstones
from hypaware.lake.key_index import KeyIndex
from hypaware.maintain.purge.other_machines import forget_purged
from hypaware.maintain.purge.run import plan_purge
from hypaware.maintain.purge.selector import PurgeSelector
from hypaware.server.validation import create_batch_file
from hypaware.spool import segments
from hypaware.spool.received import ReceivedObjects, open_received
from hypaware.state import received
from hypaware.state.home_opener import open_home, read_identity
from hypaware.state.received import ReceivedSegment
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.claude_files import turns, write
from tests.support.light_home import DATASET, append, flush, import_history
from tests.support.light_lake import read_lake
from tests.support.light_process import was_killed
from tests.support.light_purge import deliver, holders, purge
from tests.support.rows import rows
from tests.support.shared_lake import SharedLakeServers

SECRET = "0b7d5a52-5a0c-4c8e-9f4e-2f1f6f0e7a11"
WORDS = "planted words"
POINTS = [point.name for point in list_crash_points() if point.name.startswith(("maintain.purge.", "lake.tombstones."))]
# Each kill is a process of its own.
CHOSEN = (
    "lake.tombstones.after-commit",
    "maintain.purge.after-commit",
    "maintain.purge.after-forget",
    "maintain.purge.before-finish",
    "maintain.purge.before-done",
    "maintain.purge.after-done",
)
KILLS = POINTS if "HYP_SOAK" in os.environ else CHOSEN


@pytest.fixture
def machines(servers: SharedLakeServers) -> Iterator[tuple[Home, Home]]:
    """Return two homes with one new lake."""
    first, second = (Home(servers.machine(name).home) for name in ("first", "second"))
    yield first, second
    catalog._idle.connection = None


def secret(count: int, start: int = 0, **columns: Any) -> list[dict[str, Any]]:
    found = rows(count, start=start, **{"session_id": SECRET, "content_text": f"{WORDS} of it", **columns})
    return [{**each, "message_id": f"hidden-{each['message_id']}"} for each in found]


def messages(home: Home) -> Counter[str]:
    return Counter(row["message_id"] for row in read_lake(home, DATASET))


def numbered(*numbers: int) -> Counter[str]:
    return Counter(f"message-{number}" for number in numbers)


def add_rejects(home: Home, session: str = SECRET) -> None:
    folder = segments.spool_folder(home, DATASET)
    folder.create()
    invalid = segments.encode_lines([{**secret(1, start=90, session_id=session)[0], "role": 7}], 0)
    torn = f'{{"n":0,"v":1,"row":{{"session_id":"{session}","content_text":"{WORDS}'.encode()
    for name, line in (("one", invalid), ("torn", torn), ("other", b'{"row":{"session_id":"other"}}')):
        document = {"segment": "s", "ordinal": 0, "reason": "r", "line_base64": base64.b64encode(line).decode()}
        (folder.rejected / f"{name}.jsonl").write_bytes(json.dumps(document).encode() + b"\n")


def rejects(home: Home) -> list[str]:
    return sorted(path.name for path in segments.spool_folder(home, DATASET).rejected.iterdir())


def receive(home: Home, found: list[dict[str, Any]], *, registered: bool) -> Path:
    """Store a batch as a receiver does; without `registered` as one that died before it acknowledged it."""
    with closing(open_home(home).store) as store:
        objects = open_received(home, store)
        assert isinstance(objects, ReceivedObjects)
        path = create_batch_file(objects.folder(DATASET), segments.encode_lines(found, 0), len(found))
        name = path.name.removesuffix(segments.SUFFIX)
        if registered:
            segment = ReceivedSegment(name, len(found), 1, objects.location(path))
            with store.transaction() as connection:
                received.add_segment(connection, "default", "sender", DATASET, segment)
        return path


@pytest.mark.hazard(44)
def test_a_purged_session_leaves_every_place_and_comes_back_on_no_machine(
    machines: tuple[Home, Home], tmp_path: Path
) -> None:
    first, second = machines
    there = tmp_path / "there"
    config = Config(sinks={"there": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(there)})})
    append(first, [*rows(4), *secret(4, start=4)])
    append(second, [*rows(2, start=20), *secret(2, start=22)])
    flush(first)
    flush(second)
    FolderDestination(there).faults.set("refuse", "hidden-message-5\nmessage-2")
    deliver(first, config)
    add_rejects(first)
    add_rejects(second)
    for home in machines:
        with open_index(home) as index:
            assert search(index, WORDS)["total"] == 6
    append(first, secret(2, start=30))
    append(second, [*secret(2, start=32), *rows(1, start=34)])
    receive(first, [*rows(1, start=40), *secret(1, start=41)], registered=True)
    orphan = receive(first, secret(1, start=42), registered=False)
    assert any(name.startswith("s3:") for name in holders(first, WORDS))
    selector = PurgeSelector("session", (SECRET,))
    planned = plan_purge(first, selector, lambda *_: None)
    assert (sum(each["rows"] for each in planned["datasets"]), planned["spool"]["rows"]) == (6, 3)

    report = purge(first, "session", SECRET, config=config)

    assert report["remaining"] == []
    assert holders(first, SECRET, WORDS, "hidden-") == set()
    assert (report["rejects"], report["dead_letters"]) == (2, {"letters": 1, "rows": 1})
    assert not orphan.exists()
    assert messages(first) == numbered(*range(4), 20, 21, 40)
    assert tombstones.list_unfinished_purges(second) == []

    # The other machine forgets when its engine starts; what it still had in the spool stays out.
    forget_purged(second)
    assert {each.partition("/")[0] for each in holders(second, SECRET)} == {"index.db", "spool"}
    assert rejects(second) == ["other.jsonl"]
    flushed = flush(second)
    assert (flushed.rows.written, flushed.rows.purged) == (1, 2)
    forget_purged(second)
    assert holders(second, SECRET, WORDS, "hidden-") == set()
    with open_index(second) as index:
        assert search(index, WORDS)["total"] == 0

    # Neither an import of that machine, nor a receiver, nor rows of a fork bring anything back.
    write(tmp_path / "claude" / "projects" / "-project" / f"{SECRET}.jsonl", turns(SECRET, 3))
    environment = {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude"), "HYP_HOME": str(second.root), "HOME": str(tmp_path)}
    assert import_history(second, environment).rows.written == 0
    receive(second, secret(4, start=4), registered=True)
    append(second, [*({**row, "session_id": "a-fork"} for row in secret(4, start=4)), *rows(4)])
    again = flush(second)
    assert (again.rows.written, again.rows.purged, again.rows.duplicate) == (0, 8, 4)


def test_rows_that_may_come_back_are_not_taken_for_present_on_another_machine(machines: tuple[Home, Home]) -> None:
    first, second = machines
    append(first, [*rows(3), *rows(3, start=3, cwd="/home/dev/acme")])
    flush(first)
    append(second, rows(1, start=10))
    flush(second)
    with closing(KeyIndex(second.keys)) as index:
        known = index.count()
    assert purge(first, "cwd", "/home/dev/acme", allow_reimport=True)["remaining"] == []
    forget_purged(second)
    with closing(KeyIndex(second.keys)) as index:
        assert index.count() < known
    append(second, rows(6))
    flushed = flush(second)
    assert (flushed.rows.written, flushed.rows.duplicate) == (3, 3)


def test_a_lifted_time_is_lifted_on_every_machine(machines: tuple[Home, Home]) -> None:
    first, second = machines
    old: dict[str, Any] = {"message_created_at": "2026-01-01T00:00:00Z"}
    append(first, [*rows(3, **old), *rows(3, start=3)])
    flush(first)
    append(second, rows(1, start=10))
    flush(second)
    purge(first, "before", "2026-02-01T00:00:00.000000Z")
    forget_purged(second)
    append(second, rows(3, **old))
    assert flush(second).rows.purged == 3
    purge(first, "before", "2026-02-01T00:00:00.000000Z", allow_reimport=True)
    forget_purged(second)
    append(second, rows(3, **old))
    assert flush(second).rows.written == 3


@pytest.mark.hazard(85)
def test_a_purge_that_is_killed_is_finished_by_another_machine(machines: tuple[Home, Home], tmp_path: Path) -> None:
    """Each purge of a session is killed at another point, on one machine and then on the other."""
    there, kept = tmp_path / "there", list[int]()
    config = Config(sinks={"there": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(there)})})
    sessions = [f"{SECRET[:-2]}{place:02d}" for place in range(len(KILLS))]
    for place, (point, session) in enumerate(zip(KILLS, sessions, strict=True)):
        home, other, start = machines[place % 2], machines[(place + 1) % 2], 10 * place
        hidden = secret(4, start=start + 2, session_id=session)
        append(home, [*rows(2, start=start), *hidden[:2]])
        flush(home)
        kept += [start, start + 1]
        append(home, hidden[2:3])
        receive(home, hidden[3:], registered=True)
        add_rejects(home, session)
        if point == "maintain.purge.after-letters":
            FolderDestination(there).faults.set("refuse", hidden[0]["message_id"])
            deliver(home, config)
        if point.endswith("-done"):
            append(other, rows(1, start=start))
            flush(other)
            purge(home, "session", session)
            assert was_killed(other, "forget", crash_at=point), point
        else:
            assert was_killed(home, "session", session, crash_at=point), point
        forget_purged(other)
        append(other, rows(2, start=start))
        flush(other)
        assert messages(home) >= numbered(*kept), point
    for home in machines:
        forget_purged(home)
        assert purge(home, "session", *sessions)["remaining"] == []
        assert holders(home, WORDS, "hidden-", *sessions) == set()
    assert messages(machines[0]) == numbered(*kept)
    assert tombstones.list_unfinished_purges(machines[1]) == []
    assert read_identity(machines[0]) == read_identity(machines[1])
