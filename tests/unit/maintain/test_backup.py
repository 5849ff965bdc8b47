"""Backup and restore: a home as of one moment, complete or not at all; a restored home reuses no sequence."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from hypaware.config.schema import Config, SinkConfig
from hypaware.errors import Cancelled, HypError, NotReady
from hypaware.export import destination_change
from hypaware.export.delivery import DeliveryOptions, Driver
from hypaware.export.status import SinkReport
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import table
from hypaware.lake.read import LakeRowReader
from hypaware.maintain import backup
from hypaware.maintain.backup import LockCallback, RestoredHome, restore_home
from hypaware.maintain.backup_folder import MANIFEST_NAME, staged_folder
from hypaware.spool import reader
from hypaware.spool.writer import SealRule, Spool
from hypaware.state import home_opener
from hypaware.state.home_opener import open_home, read_identity
from hypaware.testing import fault_injection
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import read_lake
from tests.support.processes import run, running, was_killed
from tests.support.rows import rows


def _ignore(*_: object, **__: object) -> None:
    pass


def _back_up(home: Home, to: Path, block_commits: LockCallback = nullcontext) -> dict[str, Any]:
    return backup.make_backup(home, to, _ignore, _ignore, block_commits=block_commits)


def _restore(to: Home, source: Path) -> RestoredHome:
    return restore_home(to, source, _ignore)


def _messages(home: Home) -> list[str]:
    return sorted(row["message_id"] for row in read_lake(home, DATASET))


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with two commits, a sealed segment, and other files that a home may hold."""
    new_home = Home(tmp_path / "höme")
    for start in (0, 10):
        append(new_home, rows(10, start=start))
        flush(new_home)
    append(new_home, rows(5, start=20))
    for name, text in {
        "config.toml": "version = 1\n", "team.token": "token", "delivery/gateway.secret": "secret",
        "delivery/tokens/team.json": "{}", "delivery/locks/x.lock": "", "server/server.id": "srv-1",
        "engine/engine.log": "log", "run/engine.pid": "1", "logs/cli.log": "log", "telemetry/traces-1.jsonl": "{}",
        f"spool/{DATASET}/rejected/flush-1.jsonl": "{}\n",
    }.items():  # fmt: skip
        path = new_home.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with closing(sqlite3.connect(new_home.lake / "tombstones.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE stones (key TEXT)")
        database.execute("INSERT INTO stones VALUES ('gone')")
        database.commit()
    return new_home


def test_a_restored_home_equals_the_home_at_the_backup(home: Home, tmp_path: Path) -> None:
    before, opened = _contents(home.warehouse), open_home(home)
    opened.store.close()
    report = _back_up(home, tmp_path / "backup")
    assert report["datasets"] == [{"dataset": DATASET, "rows": 20}]
    assert (report["next_seq"], report["gateway_id"]) == (21, opened.gateway_id)
    assert _contents(home.warehouse) == before
    restored = Home(tmp_path / "another user" / "hyp home")
    done = _restore(restored, tmp_path / "backup")
    assert (done.identity.parents, done.identity.forks) == ((opened.identity.incarnation,), (20,))
    assert done.next_seq == 21 + home_opener.SKIPPED_SEQUENCES
    assert _messages(restored) == _messages(home)
    assert reader.summarize_spool(restored, DATASET).rows == 5
    entry = metadata.find_table(restored, DATASET)
    assert entry
    assert len(metadata.read_metadata(entry.metadata).snapshots) == 1
    for name in ("config.toml", "team.token", "delivery/gateway.secret", "delivery/tokens/team.json",
                 "server/server.id", f"spool/{DATASET}/rejected/flush-1.jsonl", "gateway.id"):  # fmt: skip
        assert (restored.root / name).read_bytes() == (home.root / name).read_bytes()
    with closing(sqlite3.connect(restored.lake / "tombstones.db")) as database:
        assert database.execute("SELECT key FROM stones").fetchall() == [("gone",)]
    assert (restored.lake / "keys.db").is_file(), "only the key index knows the rows that retention dropped"
    for name in ("engine", "logs", "telemetry", "delivery/locks", "backup.json"):
        assert not (restored.root / name).exists()
    assert not list(restored.root.parent.glob("*.partial-*"))
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "backup").rglob("*")}
    assert modes == {0o600, 0o700}
    report_of_flush = flush(restored)
    assert (report_of_flush.rows.written, report_of_flush.seq_after) == (5, 20 + home_opener.SKIPPED_SEQUENCES)
    append(restored, rows(5, start=20))
    assert flush(restored).rows.duplicate == 5


def test_each_of_two_backups_can_be_restored(home: Home, tmp_path: Path) -> None:
    _back_up(home, tmp_path / "monday")
    flush(home)
    _back_up(home, tmp_path / "tuesday")
    for day, count in (("monday", 20), ("tuesday", 25)):
        restored = Home(tmp_path / f"home of {day}")
        _restore(restored, tmp_path / day)
        assert len(_messages(restored)) == count


def test_a_backup_is_refused_as_a_home(home: Home, tmp_path: Path) -> None:
    """Opening a backup as a home would relocate its tables, and it would no longer be a backup."""
    _back_up(home, tmp_path / "backup")
    before = _contents(tmp_path / "backup")
    with pytest.raises(NotReady, match="is a backup"):
        open_home(Home(tmp_path / "backup"))
    with pytest.raises(NotReady, match="is a backup"):
        read_identity(Home(tmp_path / "backup"))
    assert _contents(tmp_path / "backup") == before


def test_rows_around_the_moment_of_the_copy_are_backed_up_once_or_not_at_all(home: Home, tmp_path: Path) -> None:
    """One flush happens between the first copy of the spool and the moment; another, with new rows, right after it."""

    @contextmanager
    def commits() -> Iterator[None]:
        append(home, rows(3, start=100))
        flush(home)
        append(home, rows(2, start=200))
        yield
        flush(home)
        append(home, rows(4, start=300))
        flush(home)

    _back_up(home, tmp_path / "backup", commits)
    restored = Home(tmp_path / "restored")
    _restore(restored, tmp_path / "backup")
    assert len(_messages(restored)) == 28
    assert reader.summarize_spool(restored, DATASET).rows == 2
    assert (flush(restored).rows.written, flush(restored).rows.duplicate) == (2, 0)
    assert set(_messages(restored)) < set(_messages(home))
    assert len(_messages(home)) == 34


_PRODUCER = """
import os, sys
from hypaware.spool.writer import Spool
from hypaware.spool.writer import SealRule
from tests.support.rows import rows
spool = Spool(os.environ["HYP_HOME"], SealRule(linger=float("inf")))
spool.append("ai_gateway_messages", rows(3, start=50))
(segment,) = spool._segments.values()
os.write(segment._fd, b'{"half a line')
print("held", flush=True)
sys.stdin.readline()
"""


def test_an_active_segment_is_copied_up_to_its_last_complete_line(home: Home, tmp_path: Path) -> None:
    with running(_PRODUCER, home) as producer:
        assert producer.stdout
        assert producer.stdout.readline() == "held\n"
        backup.make_backup(home, tmp_path / "backup", _ignore, _ignore, seal_seconds=0.0)
    (active,) = (tmp_path / "backup").rglob("active/*.jsonl")
    assert active.read_bytes().count(b"\n") == 3
    assert active.read_bytes().endswith(b"\n")
    restored = Home(tmp_path / "restored")
    _restore(restored, tmp_path / "backup")
    assert flush(restored).rows.written == 8


def test_a_batch_sealed_during_the_copy_is_copied_once(home: Home, tmp_path: Path) -> None:
    spool = home.spool / DATASET
    (spool / "incoming").mkdir()
    with Spool(home, SealRule()) as other:
        other.append(DATASET, rows(2, start=70))
    (sealed,) = [path for path in (spool / "sealed").iterdir() if ".2." in path.name]
    arrived = sealed.rename(spool / "incoming" / sealed.name)

    @contextmanager
    def commits() -> Iterator[None]:
        arrived.rename(sealed)
        yield

    _back_up(home, tmp_path / "backup", commits)
    found = [
        str(path.relative_to(tmp_path / "backup" / "spool" / DATASET))
        for path in (tmp_path / "backup").rglob(sealed.name)
    ]
    assert found == [f"sealed/{sealed.name}"]


_BACK_UP = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
from hypaware.maintain.backup import make_backup
from hypaware.home import Home
from hypaware.maintain.backup import LockCallback
from hypaware.maintain.backup_folder import MANIFEST_NAME, staged_folder

make_backup(Home(Path(os.environ["HYP_HOME"])), Path(sys.argv[1]), print, lambda: None)
"""
_RESTORE = """
import os, sys
from pathlib import Path
from hypaware.maintain.backup import restore_home
from hypaware.home import Home

restore_home(Home(Path(os.environ["HYP_HOME"])), Path(sys.argv[1]), lambda *_, **__: None)
"""


@pytest.mark.parametrize("point", ["after-moment", "after-copy", "before-rename", "after-rename"])
def test_the_next_backup_removes_the_remains_of_a_killed_one(home: Home, tmp_path: Path, point: str) -> None:
    to = tmp_path / "backup"
    code = _BACK_UP.replace("print", "lambda *_, **__: None")
    done = run(code, home, to, crash_at=f"maintain.backup.{point}")
    assert was_killed(done), done.stderr
    if point == "after-rename":
        assert (to / MANIFEST_NAME).is_file()
    else:
        assert not to.exists()
        assert len(list(tmp_path.glob("backup.partial-*"))) == 1
        _back_up(home, to)
    assert not list(tmp_path.glob("*.partial-*"))
    _restore(Home(tmp_path / "restored"), to)
    assert len(_messages(Home(tmp_path / "restored"))) == 20


@pytest.mark.hazard(73)
@pytest.mark.parametrize(
    "point",
    [
        "maintain.restore.after-copy", "maintain.restore.before-rename", "maintain.restore.after-rename",
        "iceberg.relocate.before-update", "iceberg.relocate.after-remove", "state.commit.before-commit:2",
    ],
)  # fmt: skip
def test_a_killed_restore_leaves_no_home_or_a_complete_one(home: Home, tmp_path: Path, point: str) -> None:
    backup_report = _back_up(home, tmp_path / "backup")
    restored = Home(tmp_path / "restored")
    done = run(_RESTORE, restored, tmp_path / "backup", crash_at=point)
    assert was_killed(done), done.stderr
    if "maintain.restore" in point and not point.endswith("after-rename"):
        assert not restored.root.exists()
        _restore(restored, tmp_path / "backup")
    else:
        with pytest.raises(HypError, match="nothing was overwritten"):
            _restore(restored, tmp_path / "backup")
    opened = open_home(restored)
    opened.store.close()
    assert opened.identity.parents == (backup_report["incarnation"],)
    assert _messages(restored) == _messages(home)
    assert not list(tmp_path.glob("*.partial-*"))


def _flip(backup_folder: Path) -> None:
    path = next(backup_folder.rglob("*.parquet"))
    document = bytearray(path.read_bytes())
    document[len(document) // 2] ^= 0xFF
    path.write_bytes(document)


def _cut(backup_folder: Path) -> None:
    os.truncate(backup_folder / "state.db", 4096)


def _lose(backup_folder: Path) -> None:
    next(backup_folder.rglob("*.avro")).unlink()


def _forget(backup_folder: Path) -> None:
    (backup_folder / MANIFEST_NAME).unlink()


def _change(edit: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def change(backup_folder: Path) -> None:
        document = json.loads((backup_folder / MANIFEST_NAME).read_bytes())
        edit(document)
        (backup_folder / MANIFEST_NAME).write_text(json.dumps(document))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_flip, "has changed since the backup"),
        (_cut, "has 4096 bytes instead of"),
        (_lose, "is missing"),
        (_forget, "is not a backup"),
        (_change(lambda document: document.update(version=2)), "newer version"),
        (
            _change(lambda document: document["files"].update({"../out": {"size": 0, "sha256": ""}})),
            "is outside the backup",
        ),
        (_change(lambda document: document.pop("home")), "cannot read"),
    ],
)
def test_a_damaged_backup_restores_nothing(
    home: Home, tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    _back_up(home, tmp_path / "backup")
    damage(tmp_path / "backup")
    with pytest.raises(HypError, match=message) as refused:
        _restore(Home(tmp_path / "restored"), tmp_path / "backup")
    assert refused.value.exit_code == 1
    assert not list(tmp_path.glob("restored*"))


def test_existing_files_are_never_overwritten(home: Home, tmp_path: Path) -> None:
    occupied = tmp_path / "taken"
    occupied.mkdir()
    (occupied / "file").touch()
    for to in (occupied, occupied / "file"):
        with pytest.raises(HypError, match="nothing was overwritten"):
            _back_up(home, to)
    empty = tmp_path / "empty"
    empty.mkdir()
    _back_up(home, empty)
    for target in (home, Home(occupied)):
        before = _contents(target.root)
        with pytest.raises(HypError, match="nothing was overwritten"):
            _restore(target, empty)
        assert _contents(target.root) == before
    (tmp_path / "empty home").mkdir()
    _restore(Home(tmp_path / "empty home"), empty)


def test_a_backup_that_overlaps_the_home_is_refused(home: Home, tmp_path: Path) -> None:
    for to in (home.root / "backup", home.root, home.root / ".." / home.root.name / "x"):
        with pytest.raises(HypError, match="choose a directory outside the home"):
            _back_up(home, to)


def test_a_target_that_cannot_be_written_is_reported(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HypError, match="nothing was left behind") as refused:
        _back_up(home, tmp_path / "file" / "backup")
    assert refused.value.kind == "not_written"


def test_two_concurrent_backups_to_one_target_are_refused(home: Home, tmp_path: Path) -> None:
    to = tmp_path / "backup*"
    with staged_folder(to), pytest.raises(HypError, match="another process is writing"):
        _back_up(home, to)
    _back_up(home, to)
    assert (to / MANIFEST_NAME).is_file()


def test_too_little_disk_space_is_reported_before_anything_is_written(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _back_up(home, tmp_path / "backup")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(HypError, match="MB free"):
        _back_up(home, tmp_path / "another")
    with pytest.raises(HypError, match="MB free"):
        _restore(Home(tmp_path / "restored"), tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup", home.root.name]


class _Delivering:
    """Homes with one sink, into a directory that supports a query for delivered rows, or does not."""

    def __init__(self, folder: Path, can_be_queried: bool) -> None:
        self.destination = FolderDestination(folder)
        options = {"folder": str(folder), "can_be_queried": can_be_queried}
        self.config = Config(sinks={"here": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), options)})

    def deliver(self, home: Home) -> SinkReport:
        opened = open_home(home)
        with closing(opened.store), fault_injection.register_kind(FOLDER):
            return asyncio.run(Driver(opened, self.config, LakeRowReader(home), DeliveryOptions(1.0)).deliver("here"))

    def check(self, *numbers: range) -> None:
        expected = Counter(f"message-{number}" for each_range in numbers for number in each_range)
        assert Counter(self.destination.arrived()) == expected


def _add(home: Home, numbers: range, **columns: str) -> None:
    append(home, rows(len(numbers), start=numbers.start, **columns))
    assert flush(home).rows.written == len(numbers)


@pytest.fixture
def empty(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.hazard(71)
@pytest.mark.hazard(73)
@pytest.mark.parametrize("can_be_queried", [True, False])
def test_a_restored_home_without_a_backlog_continues_delivery(
    empty: Home, tmp_path: Path, can_be_queried: bool
) -> None:
    """Sequences that the lost home assigned after its backup are not reused, delivered rows not delivered again."""
    delivery = _Delivering(tmp_path / "there", can_be_queried)
    _add(empty, range(20))
    assert delivery.deliver(empty).status == "ok"
    _back_up(empty, tmp_path / "backup")
    _add(empty, range(20, 30))
    assert delivery.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    _add(empty, range(40, 50))
    assert delivery.deliver(empty).status == "ok"
    delivery.check(range(30), range(40, 50))
    assert [stream.chunks for stream in delivery.deliver(empty).streams] == [0]
    last_sequences = [chunk["last"] for chunk in delivery.destination.chunks()]
    assert max(last for last in last_sequences if last < home_opener.SKIPPED_SEQUENCES) == 30
    assert max(last_sequences) == 30 + home_opener.SKIPPED_SEQUENCES


@pytest.mark.hazard(71)
@pytest.mark.hazard(73)
@pytest.mark.parametrize("lost_files", [(), ("state.db",), ("state.db", "state.mirror.json")])
def test_a_restored_home_with_a_backlog_asks_for_the_delivered_rows(
    empty: Home, tmp_path: Path, lost_files: tuple[str, ...]
) -> None:
    """This holds even if the restored home also loses its state."""
    delivery = _Delivering(tmp_path / "there", can_be_queried=True)
    _add(empty, range(20))
    assert delivery.deliver(empty).status == "ok"
    _add(empty, range(20, 27))
    _back_up(empty, tmp_path / "backup")
    _add(empty, range(27, 31))
    assert delivery.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    for name in lost_files:
        for path in empty.root.glob(f"{name}*"):
            path.unlink()
    _add(empty, range(40, 50))
    assert delivery.deliver(empty).status == "ok"
    delivery.check(range(31), range(40, 50))


@pytest.mark.hazard(73)
def test_rows_that_only_the_lost_home_had_do_not_block_delivery(empty: Home, tmp_path: Path) -> None:
    """The destination is ahead of a source whose rows end below the fork: they were delivered after the backup."""
    delivery = _Delivering(tmp_path / "there", can_be_queried=True)
    _add(empty, range(10))
    _add(empty, range(10, 20), client_name="codex")
    _back_up(empty, tmp_path / "backup")
    _add(empty, range(20, 30))
    assert delivery.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    report = delivery.deliver(empty)
    assert (report.status, sum(stream.rows for stream in report.streams)) == ("ok", 0)
    _add(empty, range(40, 50))
    _add(empty, range(50, 55), client_name="codex")
    assert delivery.deliver(empty).status == "ok"
    delivery.check(range(30), range(40, 55))


@pytest.mark.hazard(73)
def test_a_restored_home_with_a_backlog_is_held_if_the_destination_cannot_tell(empty: Home, tmp_path: Path) -> None:
    delivery = _Delivering(tmp_path / "there", can_be_queried=False)
    _add(empty, range(20))
    assert delivery.deliver(empty).status == "ok"
    _add(empty, range(20, 27))
    _back_up(empty, tmp_path / "backup")
    assert delivery.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    _add(empty, range(40, 50))
    report = delivery.deliver(empty)
    assert report.status == "held"
    assert "is a copy of a home that may have delivered more" in str(report.streams[0].error)
    delivery.check(range(27))


@pytest.mark.hazard(71)
def test_original_and_copy_deliver_a_common_backlog_once(empty: Home, tmp_path: Path) -> None:
    delivery = _Delivering(tmp_path / "there", can_be_queried=True)
    _add(empty, range(20))
    _back_up(empty, tmp_path / "backup")
    copy = Home(tmp_path / "copy")
    _restore(copy, tmp_path / "backup")
    _add(copy, range(100, 105))
    assert delivery.deliver(copy).status == "ok"
    _add(empty, range(20, 25))
    # To the original this looks as if it had been rolled back: a folder cannot drop the rows that it has.
    assert [delivery.deliver(empty).status for _ in range(2)] == ["failed", "held"]
    delivery.check(range(20), range(100, 105))
    with closing(open_home(empty).store) as store, fault_injection.register_kind(FOLDER):
        destination_change.adopt(empty, delivery.config, store, "here")
    assert delivery.deliver(empty).status == "ok"
    delivery.check(range(25), range(100, 105))


class _Context:
    """The context that the engine gives to a job; `spark` only has to be present."""

    spark = object()

    def __init__(self, home: Home) -> None:
        self.home = home

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pass

    def check_cancelled(self) -> None:
        pass


def test_flushes_continue_while_tables_are_copied_but_files_are_not_removed(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlocked: list[tuple[bool, bool]] = []
    copy_table = backup.copy_table

    def recording_copy(*args: Any) -> int:
        locked = [held[DATASET].locked() for held in (table._commit_locks, table._maintenance_locks)]
        unlocked.append((not locked[0], not locked[1]))
        return copy_table(*args)

    monkeypatch.setattr(backup, "copy_table", recording_copy)
    context: Any = _Context(home)
    assert backup.run_backup(context, {"to": str(tmp_path / "backup")})["datasets"] == [
        {"dataset": DATASET, "rows": 20}
    ]
    assert unlocked == [(True, False)]
    assert not table._maintenance_locks[DATASET].locked()


def test_a_cancelled_backup_leaves_nothing_behind(home: Home, tmp_path: Path) -> None:
    def cancel() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        backup.make_backup(home, tmp_path / "backup", _ignore, cancel)
    assert sorted(path.name for path in tmp_path.iterdir()) == [home.root.name]
