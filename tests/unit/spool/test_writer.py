"""`Spool` as a producer uses it: append returns when the rows are durable, and errors lose nothing."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hypaware.errors import HypError, Retryable
from hypaware.home import Home, durable_files
from hypaware.spool import segments
from hypaware.spool.segments import SpoolFolder
from hypaware.spool.writer import SealRule, Spool
from tests.support.processes import eventually, fork, kill, open_files, run, running, succeed
from tests.support.rows import DATASET, row, rows

if TYPE_CHECKING:
    from tests.unit.spool.conftest import Spooled

_NEVER = SealRule(linger=float("inf"))


def _messages(*numbers: int) -> list[str]:
    return [f"message-{number}" for number in numbers]


def _full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_appended_rows_are_in_the_spool(home: Home, spooled: Spooled) -> None:
    with Spool(home) as spool:
        assert spool.append(DATASET, rows(3)) == 3
        assert spool.append(DATASET, iter(rows(2, 3))) == 2
        assert spooled() == _messages(0, 1, 2, 3, 4)
    assert spooled() == _messages(0, 1, 2, 3, 4)


def test_a_home_can_be_a_path(home: Home, spooled: Spooled) -> None:
    with Spool(str(home.root)) as spool:
        spool.append(DATASET, rows(1))
    assert spooled() == _messages(0)


def test_one_invalid_row_rejects_its_whole_batch(home: Home, spooled: Spooled) -> None:
    with Spool(home) as spool:
        with pytest.raises(HypError, match="ai_gateway_messages: row 1: column role is required") as refused:
            spool.append(DATASET, [row(0), row(1, role=None), row(2)])
        assert refused.value.kind == "row_rejected"
        with pytest.raises(HypError, match="unknown dataset"):
            spool.append("nothing", rows(1))
        assert spool.append(DATASET, []) == 0
    assert spooled() == []


@pytest.mark.parametrize("limit", [{"max_rows": 2}, {"max_bytes": 900}], ids=["rows", "bytes"])
def test_a_large_segment_is_sealed_immediately(home: Home, folder: SpoolFolder, limit: dict[str, int]) -> None:
    with Spool(home, replace(_NEVER, **limit)) as spool:
        for number in range(4):
            spool.append(DATASET, rows(1, number))
        assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [2, 2]
        assert spool.sealed_by_size == 2


def test_a_segment_is_sealed_some_time_after_its_first_row(home: Home, folder: SpoolFolder) -> None:
    with Spool(home, SealRule(linger=0.01)) as spool:
        for turn in (1, 2):
            spool.append(DATASET, rows(1, turn))
            eventually(lambda: not segments.list_active_files(folder))
            assert len(segments.list_sealed_segments(folder)) == turn


def test_an_unreferenced_spool_seals_its_segments_and_is_freed(home: Home, folder: SpoolFolder) -> None:
    """`Spool(home).append(…)` in a loop must not leak threads, files or locks."""
    let_go = []
    for number in range(3):
        spool = Spool(home, SealRule(linger=0.01))
        spool.append(DATASET, rows(1, number))
        let_go.append(weakref.ref(spool))
        del spool
    eventually(lambda: len(segments.list_sealed_segments(folder)) == 3)
    eventually(lambda: "spool-sealer" not in {thread.name for thread in threading.enumerate()})
    gc.collect()
    assert [reference() for reference in let_go] == [None, None, None]
    assert not open_files(home.root)


def test_a_closed_spool_accepts_no_rows(home: Home) -> None:
    spool = Spool(home)
    spool.close()
    spool.close()
    with pytest.raises(HypError, match="closed"):
        spool.append(DATASET, rows(1))


def test_a_process_that_exits_without_closing_seals_its_segments(home: Home, folder: SpoolFolder) -> None:
    succeed(
        f"from hypaware.spool.writer import Spool; from tests.support.rows import *; import os\n"
        f"spool = Spool(os.environ['HYP_HOME']); spool.append('{DATASET}', rows(2))",
        home,
    )
    assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [2]


def test_a_process_that_exits_seals_the_segments_of_a_spool_that_it_no_longer_refers_to(
    home: Home, folder: SpoolFolder
) -> None:
    succeed(
        f"from hypaware.spool.writer import Spool; from tests.support.rows import *; import os\n"
        f"Spool(os.environ['HYP_HOME']).append('{DATASET}', rows(2))",
        home,
    )
    assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [2]


def test_the_folders_are_the_state_machine(home: Home, folder: SpoolFolder) -> None:
    spool = Spool(home, _NEVER)
    spool.append(DATASET, rows(2))
    (active,) = segments.list_active_files(folder)
    assert spool.seal() == 1
    (sealed,) = segments.list_sealed_segments(folder)
    assert sealed.path == home.spool / DATASET / "sealed" / f"{active.stem}.2.jsonl"
    assert (sealed.name, sealed.rows, sealed.bytes) == (f"{active.stem}.2", 2, sealed.path.stat().st_size)
    assert sealed.path.stat().st_mode & 0o777 == 0o600
    assert folder.active.stat().st_mode & 0o777 == 0o700
    spool.close()


@pytest.mark.hazard(13)
def test_a_full_disk_acknowledges_nothing_and_the_spool_recovers_when_there_is_space(
    home: Home, spooled: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(1))
        for step in ("write_all", "fsync_fd"):
            monkeypatch.setattr(durable_files, step, _full)
            with pytest.raises(Retryable, match=r"could not write 2 rows .*No space.*none was stored"):
                spool.append(DATASET, rows(2, 10))
            monkeypatch.undo()
            spool.append(DATASET, rows(1, 20))
    assert set(spooled()) == set(_messages(0, 20))


@pytest.mark.hazard(13)
def test_no_space_for_a_new_segment_raises_an_error_and_leaves_no_open_file(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Spool(home, _NEVER) as spool:
        monkeypatch.setattr(durable_files, "rename_durably", _full)
        with pytest.raises(Retryable, match="No space"):
            spool.append(DATASET, rows(1))
        monkeypatch.undo()
        assert not open_files(home.root)
        assert spool.append(DATASET, rows(1)) == 1


@pytest.mark.hazard(13)
def test_rows_that_are_durable_are_acknowledged_even_if_the_seal_fails(
    home: Home, folder: SpoolFolder, spooled: Spooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the caller would append them again, and they would be duplicated."""
    with Spool(home, SealRule(max_rows=2)) as spool:
        spool.append(DATASET, rows(1))
        monkeypatch.setattr(durable_files, "rename_durably", _full)
        assert spool.append(DATASET, rows(1, 1)) == 1
        assert spool.seal() == 0
        monkeypatch.undo()
        assert spool.append(DATASET, rows(1, 2)) == 1
    assert [repaired.rows for repaired in segments.repair_orphans(folder)] == [2]
    assert spooled() == _messages(0, 1, 2)


@pytest.mark.hazard(78)
def test_an_interrupted_producer_can_continue(home: Home, spooled: Spooled, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write

    def interrupted(fd: int, data: bytes) -> int:
        write(fd, bytes(data[:100]))
        raise KeyboardInterrupt

    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(1))
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            spool.append(DATASET, rows(1, 1))
        monkeypatch.undo()
        spool.append(DATASET, rows(1, 2))
    assert spooled() == _messages(0, 2)


def test_threads_lose_and_duplicate_no_row_while_segments_are_sealed(
    home: Home, folder: SpoolFolder, spooled: Spooled
) -> None:
    threads, batches = 4, 25

    def produce(thread: int) -> int:
        return sum(spool.append(DATASET, rows(2, thread * 1_000 + 2 * turn)) for turn in range(batches))

    with Spool(home, SealRule(max_rows=7, linger=0.005)) as spool, ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(produce, range(threads))) == 2 * threads * batches
    expected = [thread * 1_000 + number for thread in range(threads) for number in range(2 * batches)]
    assert sorted(spooled()) == sorted(_messages(*expected))
    # The sealer may still be sealing the last segment.
    assert segments.wait_until_sealed(folder, 10) == []
    assert sum(segment.rows for segment in segments.list_sealed_segments(folder)) == len(expected)


@pytest.mark.hazard(79)
def test_a_forked_child_writes_its_own_file(home: Home, folder: SpoolFolder, spooled: Spooled) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(1))
        assert fork(lambda: spool.append(DATASET, rows(2, 10)) and spool.seal()) == 0
        spool.append(DATASET, rows(1, 1))
        assert segments.repair_orphans(folder) == []
    assert sorted(segment.rows for segment in segments.list_sealed_segments(folder)) == [2, 2]
    assert sorted(spooled()) == sorted(_messages(0, 1, 10, 11))


@pytest.mark.hazard(8)
@pytest.mark.hazard(79)
def test_a_live_child_does_not_hide_the_orphan_of_its_dead_parent(home: Home, folder: SpoolFolder) -> None:
    """A lock is held as long as any copy of the descriptor is open: the child must close its copy."""
    parent = f"""
import os, sys
from hypaware.spool.writer import SealRule, Spool
from tests.support.rows import rows
spool = Spool(os.environ["HYP_HOME"], SealRule(linger=float("inf")))
spool.append("{DATASET}", rows(3))
child = os.fork()
if child:
    print(child, flush=True)
sys.stdin.read()
"""
    with running(parent, home) as process:
        assert process.stdout
        child = int(process.stdout.readline())
        kill(process)
        # The child keeps running; its copies are closed when it starts.
        eventually(lambda: segments.repair_orphans(folder))
        os.kill(child, signal.SIGKILL)
    assert [segment.rows for segment in segments.list_sealed_segments(folder)] == [3]


def test_producers_in_several_processes_do_not_interfere(home: Home, spooled: Spooled) -> None:
    code = f"""
import os, sys
from hypaware.spool.writer import Spool
from tests.support.rows import rows
first = int(sys.argv[1])
with Spool(os.environ["HYP_HOME"]) as spool:
    for number in range(first, first + 20):
        spool.append("{DATASET}", rows(1, number))
"""
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda first: run(code, home, first), (0, 100, 200, 300)))
    assert [(process.returncode, process.stderr) for process in done] == [(0, "")] * 4
    expected = [first + number for first in (0, 100, 200, 300) for number in range(20)]
    assert sorted(spooled()) == sorted(_messages(*expected))


def test_a_removed_spool_folder_is_created_again(home: Home, folder: SpoolFolder, spooled: Spooled) -> None:
    with Spool(home, _NEVER) as spool:
        spool.append(DATASET, rows(1))
        spool.seal()
        for path in sorted(Path(folder.path).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        spool.append(DATASET, rows(1, 1))
    assert spooled() == _messages(1)
