"""Repair of orphans: files of dead producers are truncated to whole lines, counted and sealed; live ones are kept."""

from __future__ import annotations

import errno
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from hypaware.errors import Retryable
from hypaware.home import Home, durable_files
from hypaware.spool import segments
from hypaware.spool.segments import RepairedSegment, SpoolFolder
from hypaware.spool.writer import SealRule, Spool
from tests.support.processes import kill, running
from tests.support.rows import DATASET, rows

if TYPE_CHECKING:
    from tests.unit.spool.conftest import Spooled

_PRODUCER = f"""
import os, sys
from hypaware.spool.writer import SealRule, Spool
from tests.support.rows import rows
spool = Spool(os.environ["HYP_HOME"], SealRule(linger=float("inf")))
spool.append("{DATASET}", rows(3))
print("acknowledged", flush=True)
sys.stdin.readline()
spool.close()
"""
_LINE = b'{"n":0}\n'


def _orphan(folder: SpoolFolder, held: bytes, name: str = "1-a") -> None:
    (folder.active / f"{name}.jsonl").write_bytes(held)


@pytest.mark.hazard(8)
def test_the_file_of_a_killed_producer_is_detected_by_its_released_lock(
    home: Home, folder: SpoolFolder, spooled: Spooled
) -> None:
    with running(_PRODUCER, home) as producer:
        assert producer.stdout
        assert producer.stdout.readline() == "acknowledged\n"
        assert segments.repair_orphans(folder) == []
        kill(producer)
    (repaired,) = segments.repair_orphans(folder)
    assert (repaired.rows, repaired.bytes_cut) == (3, 0)
    assert spooled() == ["message-0", "message-1", "message-2"]
    assert segments.repair_orphans(folder) == []


@pytest.mark.hazard(6)
@pytest.mark.parametrize(
    ("held", "rows_kept", "bytes_cut"),
    [
        (_LINE * 2 + b'{"n":2,', 2, 7),
        (_LINE * 2, 2, 0),
        (_LINE + bytes(5000), 1, 5000),
        (_LINE * 3 + b'"' * (3 << 20), 3, 3 << 20),
        ((b"x" * (1 << 20)) + b"\n" + b"y", 1, 1),
    ],
)
def test_a_torn_last_line_is_truncated_and_its_bytes_are_counted(
    folder: SpoolFolder, held: bytes, rows_kept: int, bytes_cut: int
) -> None:
    _orphan(folder, held)
    assert segments.repair_orphans(folder) == [RepairedSegment("1-a", rows_kept, bytes_cut)]
    (sealed,) = segments.list_sealed_segments(folder)
    assert sealed.rows == rows_kept
    assert sealed.path.read_bytes() == held[: len(held) - bytes_cut]


@pytest.mark.hazard(6)
@pytest.mark.parametrize("held", [b"", b'{"n":0,'])
def test_an_orphan_without_a_whole_line_is_removed(folder: SpoolFolder, held: bytes) -> None:
    _orphan(folder, held)
    assert segments.repair_orphans(folder) == [RepairedSegment("1-a", 0, len(held))]
    assert segments.list_active_files(folder) == []
    assert segments.list_sealed_segments(folder) == []


def test_two_concurrent_repairs_seal_each_orphan_once(folder: SpoolFolder) -> None:
    for number in range(40):
        _orphan(folder, _LINE * (number + 1), f"{number}-a")
    with ThreadPoolExecutor(4) as pool:
        repaired = [done for some in pool.map(lambda _: segments.repair_orphans(folder), range(4)) for done in some]
    assert sorted(done.rows for done in repaired) == list(range(1, 41))
    assert sorted(segment.rows for segment in segments.list_sealed_segments(folder)) == list(range(1, 41))


def test_a_file_that_its_producer_seals_first_is_not_repaired(
    home: Home, folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(home, SealRule(linger=float("inf"))) as spool:
        spool.append(DATASET, rows(2))
        listed = segments.list_active_files(folder)
        opened = os.open

        def sealed_after_opening(path: str, flags: int, *args: int) -> int:
            fd = opened(path, flags, *args)
            monkeypatch.undo()
            spool.seal()
            return fd

        monkeypatch.setattr(segments, "list_active_files", lambda _: listed)
        monkeypatch.setattr(os, "open", sealed_after_opening)
        assert segments.repair_orphans(folder) == []
    assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [2]


def test_the_wait_repairs_orphans_and_ends_when_producers_seal(home: Home, folder: SpoolFolder) -> None:
    _orphan(folder, _LINE)
    with running(_PRODUCER, home) as producer, ThreadPoolExecutor(1) as pool:
        assert producer.stdout
        assert producer.stdin
        producer.stdout.readline()
        waiting = pool.submit(segments.wait_until_sealed, folder, 60)
        producer.stdin.write("seal\n")
        producer.stdin.flush()
        assert waiting.result() == []
    assert sorted(segment.rows for segment in segments.list_sealed_segments(folder)) == [1, 3]


def test_a_file_that_a_live_process_does_not_seal_is_returned(home: Home, folder: SpoolFolder) -> None:
    with Spool(home, SealRule(linger=float("inf"))) as spool:
        spool.append(DATASET, rows(1))
        assert segments.wait_until_sealed(folder, 0) == segments.list_active_files(folder)


def test_only_old_invisible_files_are_removed(folder: SpoolFolder) -> None:
    young, old = folder.active / ".new-1-a.jsonl", folder.active / ".new-2-b.jsonl"
    for path in (young, old):
        path.touch()
    os.utime(old, (0, time.time() - 3600))
    segments.repair_orphans(folder)
    assert young.exists()
    assert not old.exists()


@pytest.mark.hazard(13)
def test_a_repair_on_a_full_disk_raises_an_error_and_keeps_the_orphan(
    folder: SpoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _orphan(folder, _LINE * 2)
    monkeypatch.setattr(durable_files, "rename_durably", full)
    with pytest.raises(Retryable, match=r"could not read or seal .*1-a\.jsonl.*No space"):
        segments.repair_orphans(folder)
    monkeypatch.undo()
    assert segments.repair_orphans(folder) == [RepairedSegment("1-a", 2, 0)]
