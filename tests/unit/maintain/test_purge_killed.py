"""A purge killed at every crash point: no other row is lost, no purged row comes back, the next run finishes it."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from hypaware.config import Config
from hypaware.config.schema import SinkConfig
from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.lake import tombstones
from hypaware.model.datasets import SEQ
from hypaware.spool import segments
from hypaware.state import dead_letters
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import read_lake
from tests.support.light_purge import deliver, holders, purge
from tests.support.prepared_home import PreparedHome
from tests.support.rows import rows

SECRET = "secret-session"
# Only other machines of a shared lake reach `*-done`: tests/spark/test_team_purge.py kills them there.
POINTS = [
    point.name
    for point in list_crash_points()
    if point.name.startswith(("maintain.purge.", "lake.tombstones.")) and not point.name.endswith("-done")
]
LATER = ["lake.tombstones.before-commit:2", "lake.tombstones.after-commit:2", "lake.tombstones.before-commit:3"]


def secret(count: int, start: int) -> list[dict[str, Any]]:
    found = rows(count, start=start, session_id=SECRET, content_text="planted words")
    return [{**each, "message_id": f"hidden-{each['message_id']}"} for each in found]


def delivery_folder(home: Home) -> Path:
    return home.root.with_name("there")


def config_of(home: Home) -> Config:
    return Config(
        sinks={"there": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(delivery_folder(home))})}
    )


def prepare(home: Home) -> None:
    """Put rows of two sessions into the lake, a dead letter, the spool and the rejects."""
    append(home, [*rows(4), *secret(4, start=4)])
    flush(home)
    FolderDestination(delivery_folder(home)).faults.set("refuse", "hidden-message-5\nmessage-2")
    deliver(home, config_of(home))
    append(home, [*secret(2, start=8), *rows(2, start=10)])
    rejects = segments.spool_folder(home, DATASET).rejected / "x.jsonl"
    invalid = {**secret(1, start=12)[0], "role": 7}
    rejects.write_bytes(
        b'{"segment":"s","ordinal":0,"reason":"r","line":%b}\n' % _quoted(segments.encode_lines([invalid], 0))
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedHome:
    return PreparedHome(tmp_path_factory.mktemp("purge"), prepare)


def _quoted(line: bytes) -> bytes:
    return orjson.dumps(line.decode())


def messages(home: Home) -> Counter[str]:
    return Counter(row["message_id"] for row in read_lake(home, DATASET))


def others(home: Home) -> set[tuple[str, int]]:
    return {
        (row["message_id"], row[SEQ]) for row in read_lake(home, DATASET) if not row["message_id"].startswith("hidden")
    }


@pytest.mark.hazard(44)
@pytest.mark.hazard(85)
@pytest.mark.parametrize("point", [*POINTS, *LATER])
def test_a_purge_killed_at_any_point_is_finished_by_the_next_run(prepared: PreparedHome, point: str) -> None:
    home = prepared.restored()
    config = config_of(home)
    before = others(home)
    survived = run_in_child(lambda: (purge(home, "session", SECRET, config=config), None)[1], crash_at=point)
    assert not survived, "the crash point was not reached"
    assert others(home) >= before

    # The session continues and an import runs before the next purge.
    append(home, [*secret(3, start=4), *rows(3, start=20)])
    flush(home)
    assert others(home) >= before
    has_tombstone = point != "lake.tombstones.before-commit"
    if has_tombstone:
        assert not any(name in messages(home) for name in ("hidden-message-8", "hidden-message-9"))

    report = purge(home, "session", SECRET, config=config)
    assert (report["remaining"], report["again"]) == ([], has_tombstone)
    assert tombstones.list_unfinished_purges(home) == []
    assert holders(home, SECRET, "planted", "hidden-") == set()
    assert messages(home) == Counter(f"message-{number}" for number in (*range(4), 10, 11, *range(20, 23)))
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert [letter.rows for letter in dead_letters.list_letters(connection)] == [1]

    # No purged row comes back, and no other row is kept out.
    append(home, [*secret(9, start=4), *({**row, "session_id": "a-fork"} for row in secret(4, start=4)), *rows(4)])
    flushed = flush(home)
    assert (flushed.rows.written, flushed.rows.purged, flushed.rows.duplicate) == (0, 13, 4)


@pytest.mark.parametrize(
    "point",
    ["maintain.purge.after-bury", "maintain.purge.after-rewrite", "maintain.purge.after-commit"],
)
def test_a_killed_purge_with_allow_reimport_is_finished_by_the_next_run(home: Home, tmp_path: Path, point: str) -> None:
    """After a kill between the commit and the key index, the rows must not count as present."""
    append(home, [*rows(3), *rows(3, start=3, cwd="/home/dev/acme")])
    flush(home)
    assert not run_in_child(
        lambda: (purge(home, "cwd", "/home/dev/acme", allow_reimport=True), None)[1], crash_at=point
    )
    assert purge(home, "cwd", "/home/dev/acme", allow_reimport=True)["remaining"] == []
    append(home, rows(6))
    assert flush(home).rows.written == 3
    assert messages(home) == Counter(f"message-{number}" for number in range(6))


@pytest.mark.parametrize("point", ["lake.tombstones.before-commit", "lake.tombstones.after-commit"])
def test_a_killed_lift_of_a_time_is_finished_by_the_next_run(home: Home, point: str) -> None:
    """The key index knows the rows purged by time, and nothing else records that it must forget them."""
    append(home, [*rows(3, message_created_at="2026-01-01T00:00:00Z"), *rows(3, start=3)])
    flush(home)
    purge(home, "before", "2026-02-01T00:00:00.000000Z")

    def lift() -> None:
        purge(home, "before", "2026-02-01T00:00:00.000000Z", allow_reimport=True)

    assert not run_in_child(lift, crash_at=point)
    lift()
    append(home, rows(3, message_created_at="2026-01-01T00:00:00Z"))
    assert flush(home).rows.written == 3
    assert messages(home) == Counter(f"message-{number}" for number in range(6))
