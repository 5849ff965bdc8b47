"""Random histories of a home with sinks, compared with a model (`tests/support/delivery_model.py`).

After kills at any point, lost responses, refusals, compaction, purges, lost or older states, renamed sinks and changed
destinations: once all faults are cleared, every row that was not purged is at its destination exactly once, and the
rounds end.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.delivery_model import DeliveryModel, delivery_model

# `make test` runs the same histories each time; a soak draws new ones. A failure reports its seed for `run`.
SCHEDULES = 400 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 24
_BLOCKS = 8

# How often each step is drawn.
_STEPS: dict[Callable[[DeliveryModel], object], int] = {
    DeliveryModel.commit: 10,
    DeliveryModel.deliver: 8,
    DeliveryModel.deliver_killed: 6,
    DeliveryModel.deliver_twice_at_once: 1,
    DeliveryModel.deliver_cancelled: 2,
    DeliveryModel.inject_faults: 6,
    DeliveryModel.clear_faults: 2,
    DeliveryModel.compact: 1,
    DeliveryModel.purge: 1,
    DeliveryModel.lose_state: 2,
    DeliveryModel.copy_state: 2,
    DeliveryModel.restore_state: 2,
    DeliveryModel.restore_both: 1,
    DeliveryModel.lose_mirror: 1,
    DeliveryModel.lose_both: 1,
    DeliveryModel.replay: 2,
    DeliveryModel.replay_killed: 1,
    DeliveryModel.rename: 2,
    DeliveryModel.add_second_sink: 1,
    DeliveryModel.point_elsewhere: 1,
    DeliveryModel.decide: 2,
    DeliveryModel.resend: 1,
}
_MAY_LOWER_WATERMARKS = {
    DeliveryModel.lose_state,
    DeliveryModel.restore_state,
    DeliveryModel.restore_both,
    DeliveryModel.lose_both,
    DeliveryModel.point_elsewhere,
    DeliveryModel.decide,
    DeliveryModel.resend,
    DeliveryModel.rename,
}


def run(folder: Path, seed: int) -> None:
    choices, weights = list(_STEPS), list(_STEPS.values())
    with delivery_model(folder, seed) as model:
        try:
            model.steps.append("commit")
            model.commit()
            known = model.watermarks()
            for _ in range(model.draw.randint(4, 14)):
                step = model.draw.choices(choices, weights)[0]
                model.steps.append(step.__name__)
                step(model)
                if step in _MAY_LOWER_WATERMARKS:
                    known = {}
                now = model.watermarks()
                assert all(now.get(key, seq) >= seq for key, seq in known.items()), f"down from {known} to {now}"
                known = now
            model.steps.append("clear_and_deliver")
            model.clear_and_deliver()
            model.check()
        except BaseException as error:
            error.add_note(f"seed {seed}, {model.sink_ability}, {len(model.slots)} sinks: {'; '.join(model.steps)}")
            raise


@pytest.mark.hazard(22)
@pytest.mark.hazard(26)
@pytest.mark.hazard(88)
@pytest.mark.parametrize("block", range(_BLOCKS))
def test_random_histories_deliver_every_row_exactly_once(tmp_path: Path, block: int) -> None:
    first = random.randrange(10**9) if "HYP_SOAK" in os.environ else block
    for seed in range(first, first + SCHEDULES, _BLOCKS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        run(folder, seed)
        shutil.rmtree(folder)
