"""Killed processes and power cuts: every acknowledged row is there exactly once."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware import faults
from hypaware.home import Home, durable_files
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from hypaware.spool.segments import SpoolFolder
from hypaware.spool.writer import SealRule, Spool
from hypaware.state.home_opener import read_identity
from tests.support.processes import fork, kill, run, running, was_killed
from tests.support.rows import DATASET, MESSAGES, rows
from tests.support.shadow_disk import ShadowDisk

if TYPE_CHECKING:
    from tests.unit.spool.conftest import Spooled

_NEVER = SealRule(linger=float("inf"))
_POINTS = [point.name for point in faults.list_crash_points() if point.package == "spool"]
# The points of received objects are killed in tests/spark/test_receivers.py.
_APPEND_AND_SEAL = [name for name in _POINTS if not re.search(r"\.(repair|drop)\.", name)]
_REPAIR = [name for name in _POINTS if ".repair." in name]

# Prints each acknowledged row, and only those.
_PRODUCER = f"""
import os, sys
from hypaware.spool.writer import SealRule, Spool
from tests.support.rows import rows
first, count = int(sys.argv[1]), int(sys.argv[2])
with Spool(os.environ["HYP_HOME"], SealRule(max_rows=3, linger=float("inf"))) as spool:
    for number in range(first, first + count):
        spool.append("{DATASET}", rows(1, number))
        print(number, flush=True)
"""
_REPAIRER = f"""
import os
from hypaware.home import Home
from hypaware.spool import segments
segments.repair_orphans(segments.spool_folder(Home.from_environment(), "{DATASET}"))
"""


def _sealed(folder: SpoolFolder) -> list[str]:
    """Return the rows of all sealed segments, validated as a flush does."""
    return [
        segments.decode_line(MESSAGES, line, ordinal)["message_id"]
        for segment in segments.list_sealed_segments(folder)
        for ordinal, line in enumerate(segment.path.read_bytes().splitlines(keepends=True))
    ]


def _messages(numbers: list[str]) -> list[str]:
    return [f"message-{number}" for number in numbers]


def _assert_kept(folder: SpoolFolder, acknowledged: list[str], sent: int) -> None:
    """Check after repair: every acknowledged row is there, no duplicate, no row that was never sent, no active file."""
    segments.repair_orphans(folder)
    kept = _sealed(folder)
    assert len(kept) == len(set(kept))
    assert set(_messages(acknowledged)) <= set(kept) <= set(_messages([str(number) for number in range(sent)]))
    assert len(kept) <= len(acknowledged) + 1
    assert segments.list_active_files(folder) == []


@pytest.mark.parametrize("time", [1, 2])
@pytest.mark.parametrize("point", _APPEND_AND_SEAL)
def test_acknowledged_rows_survive_a_kill_of_the_producer_at_any_crash_point(
    home: Home, folder: SpoolFolder, point: str, time: int
) -> None:
    done = run(_PRODUCER, home, 0, 7, crash_at=f"{point}:{time}")
    assert was_killed(done), done.stderr
    acknowledged = done.stdout.split()
    _assert_kept(folder, acknowledged, 7)
    with Spool(home) as spool:
        spool.append(DATASET, rows(2, 7))
    assert set(_messages([*acknowledged, "7", "8"])) <= set(_sealed(folder))


@pytest.mark.hazard(6)
@pytest.mark.hazard(8)
@pytest.mark.parametrize("point", _REPAIR)
def test_an_interrupted_repair_is_completed_by_the_next_one(home: Home, folder: SpoolFolder, point: str) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(2))
        (path,) = segments.list_active_files(folder)
        held = path.read_bytes()
    for left in folder.sealed.iterdir():
        left.unlink()
    path.write_bytes(held + b'{"n":2,')
    assert was_killed(run(_REPAIRER, home, crash_at=point))
    segments.repair_orphans(folder)
    assert _sealed(folder) == ["message-0", "message-1"]
    assert segments.list_active_files(folder) == []


def test_acknowledged_rows_survive_a_kill_of_the_producer_at_any_time(home: Home, folder: SpoolFolder) -> None:
    """Another producer is alive and a repair runs all the time."""
    chance = random.Random(7)
    acknowledged: list[str] = []
    with Spool(home, SealRule(max_rows=3, linger=0.01)) as living:
        for turn in range(3):
            with running(_PRODUCER, home, turn * 1_000, 1_000) as producer:
                assert producer.stdout
                for _ in range(chance.randrange(1, 40)):
                    acknowledged += producer.stdout.readline().split()
                    segments.repair_orphans(folder)
                living.append(DATASET, rows(1, 10_000 + turn))
                kill(producer)
                acknowledged += producer.stdout.read().split()
    segments.repair_orphans(folder)
    kept = _sealed(folder)
    assert len(kept) == len(set(kept))
    assert set(_messages([*acknowledged, "10000", "10001", "10002"])) <= set(kept)
    assert len(kept) <= len(acknowledged) + 6


def _append_until_death(home: Home, answers: Path, steps: int, disk: ShadowDisk) -> None:
    """Append to small segments and die at the given fsync; a line in `answers` is an acknowledgement."""
    with disk.watching():
        real, left = durable_files.fsync_fd, [steps]

        def dying(fd: int) -> None:
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            real(fd)

        durable_files.fsync_fd = dying
        spool = Spool(home, SealRule(max_rows=3, linger=float("inf")))
        for number in range(10):
            spool.append(DATASET, rows(1, number))
            with open(answers, "a") as file:
                file.write(f"{number}\n")


@pytest.mark.hazard(6)
@pytest.mark.hazard(10)
@pytest.mark.parametrize("survives", [0.0, 0.3, 0.7])
@pytest.mark.parametrize("steps", range(0, 26, 2))
def test_acknowledged_rows_survive_a_power_cut_after_any_fsync(tmp_path: Path, steps: int, survives: float) -> None:
    home, answers, chance = Home(tmp_path / "home"), tmp_path / "answers", random.Random(f"{steps} {survives}")
    read_identity(home)
    disk = ShadowDisk(tmp_path / "shadow")
    disk.trust(home.root)
    answers.touch()
    fork(lambda: _append_until_death(home, answers, steps, disk))
    disk.power_cut(home.root, lambda: chance.random() < survives)
    folder = segments.spool_folder(home, DATASET)
    folder.create()
    segments.repair_orphans(folder)
    kept = [row["message_id"] for row in read_spooled_rows(home, DATASET)]
    assert len(kept) == len(set(kept))
    assert set(_messages(answers.read_text().split())) <= set(kept)


@pytest.mark.hazard(10)
def test_rows_survive_a_power_cut_in_folders_whose_creator_died_before_an_fsync(
    tmp_path: Path, spooled: Spooled
) -> None:
    """The folders exist, so they are not created; their directory entries must be fsynced anyway."""
    home = Home(tmp_path / "home")
    read_identity(home)
    disk = ShadowDisk(tmp_path / "shadow")
    disk.trust(home.root)
    folder = segments.spool_folder(home, DATASET)
    for path in (folder.active, folder.sealed, folder.rejected):
        path.mkdir(parents=True)

    def append() -> None:
        with disk.watching():
            Spool(home, _NEVER).append(DATASET, rows(1))

    assert fork(append) == 0
    disk.power_cut(home.root, lambda: False)
    assert spooled() == ["message-0"]
