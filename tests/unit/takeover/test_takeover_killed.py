"""A take-over under SIGKILL at every crash point: rows and watermarks both, or neither; in the end all, once."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.crash_points import all_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from hypaware.opening import open_home
from hypaware.state import flushes, streams
from tests.light_lake import read_lake
from tests.light_life import append, flush
from tests.lives import live
from tests.rows import rows as message_rows
from tests.standing_home import StandingHome, key
from tests.unit.takeover.light_takeover import arrived, deliver, taken
from tests.unit.takeover.original_cache import DATASET, Builder, config_of, row, spool, watermark

_STEPS = ("intake", "build", "rejects", "thin", "commit", "secure", "record", "keys")
_ONCE = [
    point.name
    for point in all_points()
    if point.package == "takeover" or (point.package == "lake" and point.name.split(".")[1] in _STEPS)
]
# The state changes more than once, and so does its mirror.
_OFTEN = [(point.name, times) for point in all_points() if point.package == "state" for times in (1, 2, 3)]
CASES = [*((name, 1) for name in _ONCE), *_OFTEN]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """One that has rows of its own, all of them delivered."""
    made = Home(tmp_path / "home")
    StandingHome(made).declare(team=tmp_path / "delivered")
    append(made, message_rows(2, attributes=None))
    flush(made)
    assert deliver(made, "team") == "ok"
    return made


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    root = tmp_path / "old" / "hypaware" / "cache"
    builder = Builder(root)
    builder.add([row(number) for number in (1, 2, 5, 6)], [None, 2, 5, 6])
    builder.add([row(number) for number in (3, 4, 2)], [3, 4, 9])
    builder.commit()
    spool(root, [row(6), row(7), row(8, role=None)])
    watermark(root, "team", 4)
    config_of(root, team={"dir": str(tmp_path / "delivered")})
    return root


@pytest.mark.parametrize(("point", "times"), CASES)
def test_a_take_over_killed_at_any_point_is_finished_by_the_next(
    home: Home, cache: Path, tmp_path: Path, point: str, times: int
) -> None:
    lived = live(lambda: (taken(home, cache), None)[1], crash_at=f"{point}:{times}")
    assert not lived or times > 1, "a point that is never reached guards nothing"
    # Whoever comes next recovers what was left; nothing that the original delivered may go out then.
    flush(home)
    deliver(home, "team")
    taken(home, cache)
    assert deliver(home, "team") == "ok"

    mine = [f"{each['message_id']}#0" for each in message_rows(2)]
    rows = read_lake(home, DATASET)
    assert Counter(each["part_id"] for each in rows) == Counter([*mine, *(f"old-{n}#0" for n in range(1, 8))])
    assert len({each[SEQ] for each in rows}) == len(rows)
    assert Counter(arrived(tmp_path / "delivered")) == Counter([*mine, *(f"old-{n}#0" for n in (5, 6, 7))])
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.unfinished(connection) == []
        stream = streams.load(connection, key("team"))
    assert stream is not None
    assert stream.watermark == max(each[SEQ] for each in rows)
    assert taken(home, cache)["datasets"][0]["rows_taken_before"] == 7
