"""Random lives of a home with sinks, against the books of what must be where (`tests/delivery_world.py`).

Whatever happened (kills at any point, lost answers, refusals, compaction, purges, lost or older memory, renamed sinks,
sinks that point elsewhere): once nothing is wrong any more, every row that was not purged is where it belongs, once,
and the rounds end.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.delivery_world import World, world

# `make test` takes the same schedules each time; a soak draws new ones. A failure says its seed, for `run`.
SCHEDULES = 400 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 24
_BLOCKS = 8

# How often each step is drawn.
_STEPS: dict[Callable[[World], object], int] = {
    World.commit: 10,
    World.deliver: 8,
    World.deliver_killed: 6,
    World.deliver_twice_at_once: 1,
    World.deliver_cancelled: 2,
    World.trouble: 6,
    World.calm: 2,
    World.rewrite: 1,
    World.purge: 1,
    World.lose_state: 2,
    World.copy_state: 2,
    World.restore_state: 2,
    World.restore_both: 1,
    World.lose_side_file: 1,
    World.lose_both: 1,
    World.replay: 2,
    World.replay_killed: 1,
    World.rename: 2,
    World.twin: 1,
    World.point_elsewhere: 1,
    World.decide: 2,
    World.resend: 1,
}
_FORGETFUL = {
    World.lose_state, World.restore_state, World.restore_both, World.lose_both, World.point_elsewhere, World.decide,
    World.resend, World.rename,
}  # fmt: skip


def run(folder: Path, seed: int) -> None:
    steps, weights = list(_STEPS), list(_STEPS.values())
    with world(folder, seed) as here:
        try:
            here.told.append("commit")
            here.commit()
            known = here.watermarks()
            for _ in range(here.draw.randint(4, 14)):
                step = here.draw.choices(steps, weights)[0]
                here.told.append(step.__name__)
                step(here)
                if step in _FORGETFUL:
                    known = {}
                now = here.watermarks()
                assert all(now.get(key, seq) >= seq for key, seq in known.items()), f"down from {known} to {now}"
                known = now
            here.told.append("settle")
            here.settle()
            here.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, {here.manner}, {len(here.slots)} sinks: {'; '.join(here.told)}")
            raise


@pytest.mark.hazard(22)
@pytest.mark.hazard(26)
@pytest.mark.hazard(88)
@pytest.mark.parametrize("block", range(_BLOCKS))
def test_whatever_happens_every_row_ends_where_it_belongs_once(tmp_path: Path, block: int) -> None:
    first = random.randrange(10**9) if "HYP_SOAK" in os.environ else block
    for seed in range(first, first + SCHEDULES, _BLOCKS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run(folder, seed)
        shutil.rmtree(folder)
