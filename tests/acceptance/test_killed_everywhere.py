"""Real SIGKILLs of real processes with real Spark: every acknowledged row is in the lake exactly once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.model.datasets import SEQ
from tests.support.command import Hyp, ndjson
from tests.support.light_lake import read_lake
from tests.support.processes import PATIENCE
from tests.support.rows import rows

DATASET = "ai_gateway_messages"
FLUSH_POINTS = sorted(
    point.name
    for point in list_crash_points()
    if point.package in ("lake", "iceberg", "state")
    and not point.name.startswith(
        ("iceberg.roll-back", "lake.intake", "iceberg.relocate", "lake.settlements", "lake.tombstones")
    )
    # Need a clock that was ahead, a segment that failed before, or a home that was rolled back.
    and not point.name.startswith(("iceberg.times", "lake.poison"))
)
# Each kill costs a Spark start. Points without Spark are tested in tests/unit/lake, and here only in a soak.
SPARKS = ("lake.build", "lake.thin", "lake.commit", "iceberg.fsync", "lake.record", "state.commit.after")
KILLS = [point for point in FLUSH_POINTS if point.startswith(SPARKS) or "HYP_SOAK" in os.environ]


def check_exactly_once(hyp: Hyp, acknowledged: set[str], attempted: set[str]) -> None:
    """Check with an independent reader and with `hyp verify`."""
    found = read_lake(Home(hyp.home), DATASET)
    parts = Counter(row["part_id"] for row in found)
    assert acknowledged <= parts.keys() <= attempted
    assert max(parts.values()) == 1
    assert len({row[SEQ] for row in found}) == len(found)
    audit = hyp.run("verify", "--deep", "--json")
    assert audit.code == 0, audit.out


def parts_of(sent: list[dict[str, object]]) -> set[str]:
    return {f"{row['message_id']}#0" for row in sent}


@pytest.mark.hazard(4)
def test_flushes_killed_at_each_crash_point_in_turn_store_every_row_once(inline: Hyp) -> None:
    """Each flush first recovers the previous one and is then killed one step later."""
    sent: set[str] = set()
    inline.ok("flush")
    for place, point in enumerate(KILLS):
        batch = rows(20, start=15 * place)
        inline.ingest(batch)
        sent |= parts_of(batch)
        refused = inline.home / "spool" / DATASET / "sealed" / f"{int(time.time() * 1000)}-{place:012x}.1.jsonl"
        refused.write_bytes(b'{"n":0,"v":1,"row":{}}\n')
        killed = inline.run("flush", HYP_CRASH_AT=point)
        assert killed.code == -signal.SIGKILL, f"{point} was not reached: {killed.out}{killed.err}"
    inline.ok("flush")
    check_exactly_once(inline, sent, sent)
    folder = inline.home / "spool" / DATASET / "rejected"
    kept = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    assert len(kept) == len(KILLS), "every refused row is kept once"


@pytest.mark.hazard(42)
@pytest.mark.hazard(14)
def test_two_producers_and_two_flushers_killed_at_random_lose_and_double_nothing(inline: Hyp, tmp_path: Path) -> None:
    chance = random.Random(20261115)
    acknowledged: set[str] = set()
    attempted: set[str] = set()
    inline.ok("flush")
    for round_ in range(4 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 3):
        batches = [rows(300, start=1000 * round_ + 200 * producer) for producer in range(2)]
        producers = [inline.start("ingest", DATASET, "-", "--json") for _ in batches]
        flushers = [inline.start("flush", "--json") for _ in range(2)]
        for producer, batch in zip(producers, batches, strict=True):
            attempted |= parts_of(batch)
            assert producer.stdin
            producer.stdin.write(ndjson(batch).encode())
            producer.stdin.close()
            producer.stdin = None
        time.sleep(chance.uniform(2, 9))
        _kill_with_children(chance.choice(flushers))
        if round_ % 2:
            producers[0].kill()
        for producer, batch in zip(producers, batches, strict=True):
            out, _ = producer.communicate(timeout=PATIENCE)
            if producer.returncode == 0 and json.loads(out)["accepted"] == len(batch):
                acknowledged |= parts_of(batch)
        for flusher in flushers:
            flusher.communicate(timeout=PATIENCE)
            assert flusher.returncode in (0, -signal.SIGKILL)
    inline.ok("flush")
    check_exactly_once(inline, acknowledged, attempted)


@pytest.mark.hazard(9)
def test_a_flush_waits_until_the_jvm_of_a_killed_one_is_gone(inline: Hyp) -> None:
    """A JVM that is still alive could commit after recovery has looked, so recovery waits for it."""
    inline.ingest(rows(10))
    first = inline.start("flush", "--json")
    jvm = _jvm_of(first, inline)
    jvm.suspend()
    first.kill()
    first.communicate()
    second = inline.start("flush", "--json")
    assert second.stderr
    assert any(b"waiting for process" in line for line in second.stderr), "the second flush did not wait"
    assert second.poll() is None
    assert jvm.status() == psutil.STATUS_STOPPED
    jvm.resume()
    _, err = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, err
    check_exactly_once(inline, parts_of(rows(10)), parts_of(rows(10)))


def _jvm_of(process: subprocess.Popen[bytes], hyp: Hyp) -> psutil.Process:
    """Return the JVM of a command, once it owns the lake."""
    owner = Home(hyp.home).lake_owner
    while True:
        assert process.poll() is None
        try:
            held = json.loads(owner.read_text())
        except (FileNotFoundError, ValueError):
            time.sleep(0.02)
            continue
        if held["pid"] == process.pid:
            return psutil.Process(held["jvm_pid"])


def _kill_with_children(process: subprocess.Popen[bytes]) -> None:
    """Stop it first, so that it cannot exit on its own when its child disappears."""
    with suppress(psutil.NoSuchProcess):
        doomed = psutil.Process(process.pid)
        doomed.suspend()
        for child in doomed.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()
