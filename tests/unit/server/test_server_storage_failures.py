"""Storage failures: nothing is acknowledged that is not stored, and work continues after the failure."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hypaware.errors import Retryable
from hypaware.home import Home, durable_files
from hypaware.model.datasets import Row
from hypaware.server import batch_storage, batches
from hypaware.server.limits import ServerLimits
from hypaware.server.validation import create_batch_file
from hypaware.spool import segments
from hypaware.state import flushes, ledger
from hypaware.state.home_opener import open_home
from hypaware.state.store import StateStore
from tests.support.processes import eventually
from tests.support.receiver import LIMITS, Gateway, Reply, Server, incoming_files, messages, served, stored
from tests.support.rows import DATASET, MESSAGES, rows
from tests.support.small_disk import mounted


def ready(server: Server) -> Reply:
    return server.client.ask("GET", "/readyz")


@pytest.mark.hazard(13)
def test_full_disk_is_reported_and_work_continues_when_space_is_free(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk") as disk:
        home = Home(disk.root / "home")
        with served(home) as server:
            gateway = server.enrolled()
            disk.fill()
            for number in range(30):
                answer = gateway.send(f"b-{number}", gateway.rows(200, start=1000 * number))
            assert (answer.status, answer.error) == (503, "storage_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
            assert ready(server).status == 503
            assert ready(server).error == "storage_unavailable"
            disk.make_room()
            assert ready(server).status == 200
            assert gateway.send("b-29", gateway.rows(200, start=29_000)).json["stored"] == 200
        assert messages(range(29_000, 29_200)) == stored(home)[-200:]
        assert incoming_files(home) == []


@pytest.mark.hazard(13)
def test_batches_leave_disk_space_for_the_flush(home: Home) -> None:
    with served(home, ServerLimits(keep_free_bytes=1 << 60)) as server:
        gateway = server.enrolled()
        answer = gateway.send("b-1", gateway.rows(1))
        assert (answer.status, answer.error) == (503, "storage_unavailable")
        assert ready(server).status == 503
    assert stored(home) == []
    assert incoming_files(home) == []


def failing(monkeypatch: pytest.MonkeyPatch, where: Any, name: str, error: Exception, times: int) -> list[int]:
    """Make a step fail the given number of times; the returned list counts down."""
    real: Callable[..., Any] = getattr(where, name)
    left = [times]

    def step(*args: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return real(*args, **named)

    monkeypatch.setattr(where, name, step)
    return left


NO_ROOM = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.hazard(13)
@pytest.mark.parametrize(
    ("where", "name", "error", "status"),
    [
        (durable_files, "write_all", NO_ROOM, 503),
        (durable_files, "fsync_fd", NO_ROOM, 503),
        (durable_files, "fsync_dir", NO_ROOM, 503),
        (ledger, "record_batch", Retryable("the state is busy"), 503),
        (ledger, "overlaps_delivered", ZeroDivisionError("a bug"), 500),
    ],
)
def test_failed_step_stores_nothing_and_the_retry_stores_once(
    server: Server,
    gateway: Gateway,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    error: Exception,
    status: int,
) -> None:
    gateway.deliver(0, 5)
    left = failing(monkeypatch, where, name, error, 1_000)

    assert gateway.deliver(5, 10).status == status
    left[0] = 0
    assert stored(home) == messages(range(1, 6))
    assert incoming_files(home) == []
    assert gateway.watermark()["last"] == 5
    assert gateway.deliver(5, 10).json["stored"] == 5
    assert stored(home) == messages(range(1, 11))
    assert ready(server).status == 200


@pytest.mark.hazard(94)
def test_transaction_that_fails_after_its_commit_counts_as_stored(
    gateway: Gateway, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error alone does not show this; the file of a batch that is in the ledger must not be removed."""
    real = StateStore.transaction

    @contextmanager
    def transaction(self: StateStore) -> Iterator[Any]:
        with real(self) as connection:
            yield connection
        monkeypatch.undo()
        raise Retryable("the answer was lost")

    monkeypatch.setattr(StateStore, "transaction", transaction)
    assert gateway.deliver(0, 5).status == 503
    assert gateway.deliver(0, 5).status == 202
    assert gateway.deliver(5, 10).status == 202
    assert stored(home) == messages(range(1, 11))


@pytest.mark.hazard(94)
def test_batch_that_cannot_be_moved_is_stored_and_moved_before_the_next(
    gateway: Gateway, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = failing(monkeypatch, Path, "rename", NO_ROOM, 2)
    answer = gateway.deliver(0, 5)
    assert answer.status == 202
    eventually(lambda: left == [0])  # attempted when it was stored, and once more after the answer
    assert len(incoming_files(home)) == 1
    assert gateway.landed(f"{gateway.life}/claude/0-5")

    assert gateway.deliver(5, 10, X_Hyp_Acked_To="5").status == 202
    assert sorted(stored(home)) == sorted(messages(range(1, 11)))
    assert incoming_files(home) == []


@pytest.mark.hazard(32)
def test_batch_id_is_not_removed_before_its_file_is_moved(
    gateway: Gateway, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch in incoming/ whose id was removed would be deleted at the next start, although it was acknowledged."""
    left = failing(monkeypatch, Path, "rename", NO_ROOM, 1_000)
    assert gateway.deliver(0, 5, id="first").status == 202
    assert gateway.deliver(5, 10, X_Hyp_Acked_To="5").status == 503
    assert gateway.landed("first")
    left[0] = 0
    assert gateway.deliver(5, 10, X_Hyp_Acked_To="5").status == 202
    assert sorted(stored(home)) == sorted(messages(range(1, 11)))


def test_server_waits_for_a_locked_state(server: Server, gateway: Gateway, home: Home) -> None:
    """An engine may record a flush at any time."""
    other = open_home(home).store
    answers: list[Reply] = []
    with other.transaction() as connection:
        connection.execute("INSERT INTO meta VALUES ('held', 'x')")
        sending = threading.Thread(target=lambda: answers.append(gateway.deliver(0, 5)))
        sending.start()
        while not incoming_files(home):
            pass
        assert stored(home) == []
    sending.join()
    other.close()
    assert answers[0].status == 202
    assert stored(home) == messages(range(1, 6))


def coerced(count: int) -> list[Row]:
    lines = segments.encode_lines(rows(count, gateway_id="gw-1"), 0).splitlines(keepends=True)
    return [segments.decode_line(MESSAGES, line, ordinal) for ordinal, line in enumerate(lines)]


def left_behind(home: Home, count: int = 3) -> Path:
    """Write a durable batch that is not in the ledger."""
    folder = batch_storage.create_incoming_folder(home, DATASET)
    return batch_storage.sync_batch(create_batch_file(folder, segments.encode_lines(coerced(count), 0), count))


@pytest.mark.hazard(94)
def test_files_missing_from_the_ledger_are_removed_at_start(home: Home) -> None:
    with served(home):
        pass
    path = left_behind(home)
    path.with_name("half.2.jsonl").write_bytes(b'{"n":0,"v":1,')
    with served(home):
        assert stored(home) == []
        assert incoming_files(home) == []


@pytest.mark.hazard(94)
def test_server_without_its_ledger_keeps_every_file(home: Home) -> None:
    """If state and ledger are lost, acknowledgements are unknown; dedupe keys recognise repeated rows."""
    with served(home) as server:
        name = server.parts.server_id
    left_behind(home)
    for path in home.root.glob("state.db*"):
        path.unlink()
    with served(home) as server:
        assert server.parts.server_id == name
        assert stored(home) == messages(range(3))
    left_behind(home)
    with served(home):
        assert len(stored(home)) == 3, "from then on the ledger is complete again"


@pytest.mark.hazard(94)
def test_committed_segment_is_not_moved_again_after_a_power_cut(home: Home) -> None:
    with served(home) as server:
        server.enrolled().deliver(0, 5)
    (segment,) = segments.list_sealed_segments(segments.spool_folder(home, DATASET))
    back = segments.spool_folder(home, DATASET).path / "incoming" / segment.path.name
    segment.path.rename(back)
    store = open_home(home).store
    with store.transaction() as connection:
        flushes.mark_segments_committed(connection, DATASET, [segment.name])
    store.close()
    with served(home):
        assert stored(home) == []
        assert incoming_files(home) == []


def test_group_size_is_limited(gateway: Gateway, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_MAX_GROUP", 1)
    sending = [threading.Thread(target=gateway.deliver, args=(5 * n, 5 * n + 5, f"s{n}")) for n in range(8)]
    for thread in sending:
        thread.start()
    for thread in sending:
        thread.join()
    assert len(stored(home)) == 40


def test_server_with_a_storage_problem_is_healthy_but_not_ready(home: Home) -> None:
    with served(home, LIMITS) as server:
        server.parts.health.failed(NO_ROOM)
        assert server.client.ask("GET", "/healthz").status == 200
