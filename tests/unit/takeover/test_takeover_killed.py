"""A takeover killed with SIGKILL at every crash point: rows and watermarks are both recorded, or neither; finally all
once."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.state import flushes, streams
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.delivery_home import DeliveryHome, key
from tests.support.light_home import append, flush
from tests.support.light_lake import read_lake
from tests.support.light_takeover import arrived, deliver, take_over
from tests.support.original_cache import DATASET, Builder, config_of, row, spool, watermark
from tests.support.prepared_home import PreparedHome
from tests.support.rows import rows as message_rows

_STEPS = ("intake", "build", "rejects", "thin", "commit", "fsync", "record", "keys")
_ONCE = [
    point.name
    for point in list_crash_points()
    if point.package == "takeover" or (point.package in ("lake", "iceberg") and point.name.split(".")[1] in _STEPS)
]
# The state and its mirror change more than once.
_OFTEN = [(point.name, times) for point in list_crash_points() if point.package == "state" for times in (1, 2, 3)]
CASES = [*((name, 1) for name in _ONCE), *_OFTEN]


def delivered(home: Home) -> Path:
    return home.root.with_name("delivered")


def cache_next_to(home: Home) -> Path:
    return home.root.with_name("old") / "hypaware" / "cache"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedHome:
    """A home with delivered rows of its own, and a cache of the original next to it."""

    def make(home: Home) -> None:
        DeliveryHome(home).declare(team=delivered(home))
        append(home, message_rows(2, attributes=None))
        flush(home)
        assert deliver(home, "team") == "ok"
        _make_cache(cache_next_to(home), delivered(home))

    return PreparedHome(tmp_path_factory.mktemp("takeover"), make)


def _make_cache(root: Path, delivered_to: Path) -> None:
    builder = Builder(root)
    builder.add([row(number) for number in (1, 2, 5, 6)], [None, 2, 5, 6])
    builder.add([row(number) for number in (3, 4, 2)], [3, 4, 9])
    builder.commit()
    spool(root, [row(6), row(7), row(8, role=None)])
    watermark(root, "team", 4)
    config_of(root, team={"dir": str(delivered_to)})


@pytest.mark.parametrize(("point", "times"), CASES)
def test_a_takeover_killed_at_any_point_is_finished_by_the_next_run(
    prepared: PreparedHome, point: str, times: int
) -> None:
    home = prepared.restored()
    cache = cache_next_to(home)
    survived = run_in_child(lambda: (take_over(home, cache), None)[1], crash_at=f"{point}:{times}")
    assert not survived or times > 1, "the crash point was not reached"
    # The next process recovers; it must not deliver rows that the original delivered.
    flush(home)
    deliver(home, "team")
    take_over(home, cache)
    assert deliver(home, "team") == "ok"

    own_parts = [f"{each['message_id']}#0" for each in message_rows(2)]
    rows = read_lake(home, DATASET)
    assert Counter(each["part_id"] for each in rows) == Counter([*own_parts, *(f"old-{n}#0" for n in range(1, 8))])
    assert len({each[SEQ] for each in rows}) == len(rows)
    assert Counter(arrived(delivered(home))) == Counter([*own_parts, *(f"old-{n}#0" for n in (5, 6, 7))])
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.unfinished_flushes(connection) == []
        stream = streams.load_stream(connection, key("team"))
    assert stream is not None
    assert stream.watermark == max(each[SEQ] for each in rows)
    assert take_over(home, cache)["datasets"][0]["rows_taken_before"] == 7
