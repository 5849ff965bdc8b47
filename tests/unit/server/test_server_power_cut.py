"""Power cuts: acknowledged batches survive, and repeated ones are not stored twice."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from hypaware.home import Home, durable_files
from hypaware.state.home_opener import read_identity
from tests.support.processes import fork
from tests.support.receiver import Gateway, incoming_files, messages, served, stored
from tests.support.shadow_disk import ShadowDisk

BATCHES = [(after, after + 5) for after in range(0, 25, 5)]


def deliver(gateway: Gateway, after: int, last: int) -> None:
    answer = gateway.deliver(after, last, X_Hyp_Acked_To=str(after))
    assert answer.status == 202, answer


def receive_until_death(home: Home, answers: Path, steps: int, disk: ShadowDisk) -> None:
    """Serve and send in one process, and die at the given sync. Each line of `answers` is an acknowledgement."""
    with disk.watching():
        real, left = durable_files.fsync_fd, [steps]

        def dying(fd: int) -> None:
            if not left[0]:
                os._exit(9)
            left[0] -= 1
            real(fd)

        with served(home) as server:
            gateway = server.enrolled()
            durable_files.fsync_fd = dying
            for after, last in BATCHES:
                deliver(gateway, after, last)
                with open(answers, "a") as file:
                    file.write(f"{last}\n")
            # An empty batch has no file, and removes the id of the previous batch from the ledger.
            gateway.send("empty", b"", **gateway.says(), X_Hyp_Seq_Range="25-30", X_Hyp_Acked_To="25")
            durable_files.fsync_fd = real


@pytest.mark.hazard(10)
@pytest.mark.hazard(31)
@pytest.mark.parametrize("survives", [0.0, 0.5])
@pytest.mark.parametrize("steps", [*range(17), 1_000])
def test_power_cut_after_any_sync_keeps_acknowledged_batches(tmp_path: Path, steps: int, survives: float) -> None:
    home, answers, chance = Home(tmp_path / "home"), tmp_path / "answers", random.Random(f"{steps} {survives}")
    read_identity(home)
    with served(home):
        pass
    disk = ShadowDisk(tmp_path / "shadow")
    disk.trust(home.root)
    answers.touch()
    assert fork(lambda: receive_until_death(home, answers, steps, disk)) in (0, 9)
    disk.power_cut(home.root, lambda: chance.random() < survives)
    reported = [int(line) for line in answers.read_text().split()]
    with served(home) as server:
        kept = stored(home)
        assert set(messages(range(1, max(reported, default=0) + 1))) <= set(kept)
        assert len(kept) == len(set(kept))
        gateway = server.enrolled()
        for after, last in BATCHES:
            if last > max(reported, default=0):
                deliver(gateway, after, last)
    assert Counter(stored(home)) == Counter(messages(range(1, 26)))
    assert incoming_files(home) == []
