"""Backup and restore: one moment of a home, whole or not at all; a restored home re-issues and re-delivers nothing."""

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

from hypaware import moving
from hypaware.config.schema import Config, SinkConfig
from hypaware.errors import Cancelled, HypError, NotReady
from hypaware.export import configured
from hypaware.export.driver import Driver, Terms
from hypaware.export.lake_rows import LakeRows
from hypaware.export.report import SinkReport
from hypaware.home import Home
from hypaware.lake import metadata, turns
from hypaware.maintain import backup, contents, lake_copy, staging
from hypaware.maintain.backup import Hold
from hypaware.maintain.restore import Restored, restore
from hypaware.opening import identify, open_home
from hypaware.spool import reader
from hypaware.spool.writer import SealRule, Spool
from hypaware.state import flushes
from hypaware.testing.destination import FOLDER, FolderDestination
from tests.light_lake import read_lake
from tests.light_life import DATASET, append, flush
from tests.processes import run, running, was_killed
from tests.rows import rows

_STILL = Hold(nullcontext, nullcontext)


def _quiet(*_: object, **__: object) -> None:
    pass


def _back_up(home: Home, to: Path, hold: Hold = _STILL) -> dict[str, Any]:
    return backup.make(home, to, hold, _quiet, _quiet)


def _restore(to: Home, source: Path) -> Restored:
    return restore(to, source, _quiet)


def _messages(home: Home) -> list[str]:
    return sorted(row["message_id"] for row in read_lake(home, DATASET))


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Two commits, a segment that waits, and what else a home may hold."""
    made = Home(tmp_path / "höme")
    for start in (0, 10):
        append(made, rows(10, start=start))
        flush(made)
    append(made, rows(5, start=20))
    for name, text in {
        "config.toml": "version = 1\n", "team.token": "token", "delivery/gateway.secret": "secret",
        "delivery/tokens/team.json": "{}", "delivery/locks/x.lock": "", "server/server.id": "srv-1",
        "engine/engine.log": "log", "run/engine.pid": "1", "logs/cli.log": "log", "telemetry/traces-1.jsonl": "{}",
        f"spool/{DATASET}/rejected/flush-1.jsonl": "{}\n",
    }.items():  # fmt: skip
        path = made.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with closing(sqlite3.connect(made.lake / "tombstones.db")) as stones:
        stones.execute("PRAGMA journal_mode=WAL")
        stones.execute("CREATE TABLE stones (key TEXT)")
        stones.execute("INSERT INTO stones VALUES ('gone')")
        stones.commit()
    return made


def test_a_restored_home_is_the_home_of_that_moment(home: Home, tmp_path: Path) -> None:
    before, known = _contents(home.warehouse), open_home(home)
    known.store.close()
    report = _back_up(home, tmp_path / "backup")
    assert report["datasets"] == [{"dataset": DATASET, "rows": 20}]
    assert (report["next_seq"], report["gateway_id"]) == (21, known.gateway_id)
    assert _contents(home.warehouse) == before
    restored = Home(tmp_path / "another user" / "hyp home")
    done = _restore(restored, tmp_path / "backup")
    assert (done.identity.parents, done.identity.forks) == ((known.identity.incarnation,), (20,))
    assert done.next_seq == 21 + moving.LEAP
    assert _messages(restored) == _messages(home)
    assert reader.waiting(restored, DATASET).rows == 5
    entry = metadata.entry(restored, DATASET)
    assert entry
    assert len(metadata.read(entry.metadata).snapshots) == 1
    for name in ("config.toml", "team.token", "delivery/gateway.secret", "delivery/tokens/team.json",
                 "server/server.id", f"spool/{DATASET}/rejected/flush-1.jsonl", "gateway.id"):  # fmt: skip
        assert (restored.root / name).read_bytes() == (home.root / name).read_bytes()
    with closing(sqlite3.connect(restored.lake / "tombstones.db")) as stones:
        assert stones.execute("SELECT key FROM stones").fetchall() == [("gone",)]
    assert (restored.lake / "keys.db").is_file(), "of what retention dropped nothing else knows"
    for name in ("engine", "logs", "telemetry", "delivery/locks", "backup.json"):
        assert not (restored.root / name).exists()
    assert not list(restored.root.parent.glob("*.partial-*"))
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "backup").rglob("*")}
    assert modes == {0o600, 0o700}
    report_of_flush = flush(restored)
    assert (report_of_flush.rows_written, report_of_flush.seq_after) == (5, 20 + moving.LEAP)
    append(restored, rows(5, start=20))
    assert flush(restored).rows_duplicate == 5


def test_two_backups_are_two_folders_and_each_can_be_restored(home: Home, tmp_path: Path) -> None:
    _back_up(home, tmp_path / "monday")
    flush(home)
    _back_up(home, tmp_path / "tuesday")
    for day, count in (("monday", 20), ("tuesday", 25)):
        restored = Home(tmp_path / f"home of {day}")
        _restore(restored, tmp_path / day)
        assert len(_messages(restored)) == count


def test_a_backup_is_not_taken_for_a_home(home: Home, tmp_path: Path) -> None:
    """Opened as one, its tables would be told that they lie there, and it would be a backup no more."""
    _back_up(home, tmp_path / "backup")
    before = _contents(tmp_path / "backup")
    with pytest.raises(NotReady, match="is a backup"):
        open_home(Home(tmp_path / "backup"))
    with pytest.raises(NotReady, match="is a backup"):
        identify(Home(tmp_path / "backup"))
    assert _contents(tmp_path / "backup") == before


def test_what_happens_around_the_moment_is_in_the_backup_once_or_not_at_all(home: Home, tmp_path: Path) -> None:
    """A flush between the first copy of the spool and the moment; another, and new rows, right after it."""

    @contextmanager
    def commits() -> Iterator[None]:
        append(home, rows(3, start=100))
        flush(home)
        append(home, rows(2, start=200))
        yield
        flush(home)
        append(home, rows(4, start=300))
        flush(home)

    _back_up(home, tmp_path / "backup", Hold(nullcontext, commits))
    restored = Home(tmp_path / "restored")
    _restore(restored, tmp_path / "backup")
    assert len(_messages(restored)) == 28
    assert reader.waiting(restored, DATASET).rows == 2
    assert (flush(restored).rows_written, flush(restored).rows_duplicate) == (2, 0)
    assert set(_messages(restored)) < set(_messages(home))
    assert len(_messages(home)) == 34


_PRODUCER = """
import os, sys
from hypaware.spool.writer import SealRule, Spool
from tests.rows import rows
spool = Spool(os.environ["HYP_HOME"], SealRule(linger=float("inf")))
spool.append("ai_gateway_messages", rows(3, start=50))
(segment,) = spool._segments.values()
os.write(segment._fd, b'{"half a line')
print("held", flush=True)
sys.stdin.readline()
"""


def test_what_a_live_producer_holds_is_copied_up_to_its_last_whole_line(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hypaware.maintain.spool_copy._SEAL_SECONDS", 0.0)
    with running(_PRODUCER, home) as producer:
        assert producer.stdout
        assert producer.stdout.readline() == "held\n"
        _back_up(home, tmp_path / "backup")
    (active,) = (tmp_path / "backup").rglob("active/*.jsonl")
    assert active.read_bytes().count(b"\n") == 3
    assert active.read_bytes().endswith(b"\n")
    restored = Home(tmp_path / "restored")
    _restore(restored, tmp_path / "backup")
    assert flush(restored).rows_written == 8


def test_a_batch_that_is_sealed_while_it_is_copied_is_there_once(home: Home, tmp_path: Path) -> None:
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

    _back_up(home, tmp_path / "backup", Hold(nullcontext, commits))
    found = [
        str(path.relative_to(tmp_path / "backup" / "spool" / DATASET))
        for path in (tmp_path / "backup").rglob(sealed.name)
    ]
    assert found == [f"sealed/{sealed.name}"]


_BACK_UP = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
from hypaware.home import Home
from hypaware.maintain.backup import Hold, make
make(Home(Path(os.environ["HYP_HOME"])), Path(sys.argv[1]), Hold(nullcontext, nullcontext), print, lambda: None)
"""
_RESTORE = """
import os, sys
from pathlib import Path
from hypaware.home import Home
from hypaware.maintain.restore import restore
restore(Home(Path(os.environ["HYP_HOME"])), Path(sys.argv[1]), lambda *_, **__: None)
"""


@pytest.mark.parametrize("point", ["after-moment", "after-copy", "before-rename", "after-rename"])
def test_a_killed_backup_is_no_backup_and_the_next_one_clears_it_away(home: Home, tmp_path: Path, point: str) -> None:
    to = tmp_path / "backup"
    code = _BACK_UP.replace("print", "lambda *_, **__: None")
    done = run(code, home, to, crash_at=f"maintain.backup.{point}")
    assert was_killed(done), done.stderr
    if point == "after-rename":
        assert (to / contents.NAME).is_file()
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
        "lake.relocate.before-update", "lake.relocate.after-remove", "state.commit.before-commit:2",
    ],
)  # fmt: skip
def test_a_killed_restore_is_no_home_or_a_whole_one(home: Home, tmp_path: Path, point: str) -> None:
    known = _back_up(home, tmp_path / "backup")
    restored = Home(tmp_path / "restored")
    done = run(_RESTORE, restored, tmp_path / "backup", crash_at=point)
    assert was_killed(done), done.stderr
    if "maintain.restore" in point and not point.endswith("after-rename"):
        assert not restored.root.exists()
        _restore(restored, tmp_path / "backup")
    else:
        with pytest.raises(HypError, match="nothing is ever overwritten"):
            _restore(restored, tmp_path / "backup")
    opened = open_home(restored)
    opened.store.close()
    assert opened.identity.parents == (known["incarnation"],)
    assert _messages(restored) == _messages(home)
    assert not list(tmp_path.glob("*.partial-*"))


def _flip(backup_folder: Path) -> None:
    path = next(backup_folder.rglob("*.parquet"))
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 0xFF
    path.write_bytes(held)


def _cut(backup_folder: Path) -> None:
    os.truncate(backup_folder / "state.db", 4096)


def _lose(backup_folder: Path) -> None:
    next(backup_folder.rglob("*.avro")).unlink()


def _forget(backup_folder: Path) -> None:
    (backup_folder / contents.NAME).unlink()


def _change(what: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def change(backup_folder: Path) -> None:
        held = json.loads((backup_folder / contents.NAME).read_bytes())
        what(held)
        (backup_folder / contents.NAME).write_text(json.dumps(held))

    return change


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (_flip, "is not what it was"),
        (_cut, "has 4096 bytes instead of"),
        (_lose, "is missing"),
        (_forget, "is no backup"),
        (_change(lambda held: held.update(version=2)), "newer version"),
        (
            _change(lambda held: held["files"].update({"../out": {"size": 0, "sha256": ""}})),
            "does not lie in the backup",
        ),
        (_change(lambda held: held.pop("home")), "cannot be read"),
    ],
)
def test_a_damaged_backup_restores_nothing(home: Home, tmp_path: Path, harm: Callable[[Path], None], says: str) -> None:
    _back_up(home, tmp_path / "backup")
    harm(tmp_path / "backup")
    with pytest.raises(HypError, match=says) as refused:
        _restore(Home(tmp_path / "restored"), tmp_path / "backup")
    assert refused.value.exit_code == 1
    assert not list(tmp_path.glob("restored*"))


def test_nothing_is_ever_overwritten(home: Home, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    for to in (taken, taken / "file"):
        with pytest.raises(HypError, match="nothing is ever overwritten"):
            _back_up(home, to)
    empty = tmp_path / "empty"
    empty.mkdir()
    _back_up(home, empty)
    for place in (home, Home(taken)):
        before = _contents(place.root)
        with pytest.raises(HypError, match="nothing is ever overwritten"):
            _restore(place, empty)
        assert _contents(place.root) == before
    (tmp_path / "empty home").mkdir()
    _restore(Home(tmp_path / "empty home"), empty)


def test_a_backup_in_or_around_the_home_is_refused(home: Home, tmp_path: Path) -> None:
    for to in (home.root / "backup", home.root, home.root / ".." / home.root.name / "x"):
        with pytest.raises(HypError, match="must lie elsewhere"):
            _back_up(home, to)


def test_a_place_that_cannot_be_written_is_told_as_such(home: Home, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HypError, match="could not be made, and nothing of it is there") as refused:
        _back_up(home, tmp_path / "file" / "backup")
    assert refused.value.kind == "not_written"


def test_two_backups_into_one_place_at_once_are_one(home: Home, tmp_path: Path) -> None:
    to = tmp_path / "backup*"
    with staging.staged(to), pytest.raises(HypError, match="another process is at work"):
        _back_up(home, to)
    _back_up(home, to)
    assert (to / contents.NAME).is_file()


def test_too_little_space_is_told_before_anything_is_written(
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


def test_a_table_that_misses_a_file_is_not_backed_up_as_if_it_were_whole(home: Home, tmp_path: Path) -> None:
    next(home.warehouse.rglob("*.parquet")).unlink()
    with pytest.raises(HypError, match=r"misses|is missing") as refused:
        _back_up(home, tmp_path / "backup")
    assert refused.value.repair == (f"hyp maintain {DATASET} --rebuild",)
    assert sorted(path.name for path in tmp_path.iterdir()) == [home.root.name]


class _Delivering:
    """Homes with one sink, to a folder that can be asked, or not."""

    def __init__(self, folder: Path, can_be_asked: bool) -> None:
        self.there = FolderDestination(folder)
        options = {"folder": str(folder), "can_be_asked": can_be_asked}
        self.config = Config(sinks={"here": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), options)})

    def deliver(self, home: Home) -> SinkReport:
        opened = open_home(home)
        with closing(opened.store), configured.also(FOLDER):
            return asyncio.run(Driver(opened, self.config, LakeRows(home), Terms(1.0)).deliver(["here"]))[0]

    def check(self, *numbers: range) -> None:
        wanted = Counter(f"message-{number}" for some in numbers for number in some)
        assert Counter(self.there.arrived()) == wanted


def _add(home: Home, numbers: range, **columns: str) -> None:
    append(home, rows(len(numbers), start=numbers.start, **columns))
    assert flush(home).rows_written == len(numbers)


@pytest.fixture
def empty(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.mark.hazard(71)
@pytest.mark.hazard(73)
@pytest.mark.parametrize("can_be_asked", [True, False])
def test_a_restored_home_that_had_delivered_everything_goes_on(empty: Home, tmp_path: Path, can_be_asked: bool) -> None:
    """What the lost home gave out and delivered after its backup is neither given out nor delivered again."""
    post = _Delivering(tmp_path / "there", can_be_asked)
    _add(empty, range(20))
    assert post.deliver(empty).status == "ok"
    _back_up(empty, tmp_path / "backup")
    _add(empty, range(20, 30))
    assert post.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    _add(empty, range(40, 50))
    assert post.deliver(empty).status == "ok"
    post.check(range(30), range(40, 50))
    assert [stream.chunks for stream in post.deliver(empty).streams] == [0]
    lasts = [chunk["last"] for chunk in post.there.chunks()]
    assert max(last for last in lasts if last < moving.LEAP) == 30
    assert max(lasts) == 30 + moving.LEAP


@pytest.mark.hazard(71)
@pytest.mark.hazard(73)
@pytest.mark.parametrize("lost", [(), ("state.db",), ("state.db", "state.mirror.json")])
def test_a_restored_home_with_a_backlog_asks_what_was_delivered_since(
    empty: Home, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """Also one that loses its memory on top of it."""
    post = _Delivering(tmp_path / "there", can_be_asked=True)
    _add(empty, range(20))
    assert post.deliver(empty).status == "ok"
    _add(empty, range(20, 27))
    _back_up(empty, tmp_path / "backup")
    _add(empty, range(27, 31))
    assert post.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    for name in lost:
        for path in empty.root.glob(f"{name}*"):
            path.unlink()
    _add(empty, range(40, 50))
    assert post.deliver(empty).status == "ok"
    post.check(range(31), range(40, 50))


@pytest.mark.hazard(73)
def test_rows_that_only_the_lost_home_had_do_not_hold_up_the_restored_one(empty: Home, tmp_path: Path) -> None:
    """The destination is ahead of a source whose rows end below the fork: they were delivered after the backup."""
    post = _Delivering(tmp_path / "there", can_be_asked=True)
    _add(empty, range(10))
    _add(empty, range(10, 20), client_name="codex")
    _back_up(empty, tmp_path / "backup")
    _add(empty, range(20, 30))
    assert post.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    report = post.deliver(empty)
    assert (report.status, sum(stream.rows for stream in report.streams)) == ("ok", 0)
    _add(empty, range(40, 50))
    _add(empty, range(50, 55), client_name="codex")
    assert post.deliver(empty).status == "ok"
    post.check(range(30), range(40, 55))


@pytest.mark.hazard(73)
def test_a_restored_home_with_a_backlog_is_held_where_nobody_can_be_asked(empty: Home, tmp_path: Path) -> None:
    post = _Delivering(tmp_path / "there", can_be_asked=False)
    _add(empty, range(20))
    assert post.deliver(empty).status == "ok"
    _add(empty, range(20, 27))
    _back_up(empty, tmp_path / "backup")
    assert post.deliver(empty).status == "ok"
    shutil.rmtree(empty.root)
    _restore(empty, tmp_path / "backup")
    _add(empty, range(40, 50))
    report = post.deliver(empty)
    assert report.status == "held"
    assert "is a copy of one that may have gone on" in str(report.streams[0].error)
    post.check(range(27))


@pytest.mark.hazard(71)
def test_original_and_copy_deliver_a_common_backlog_once_and_each_its_own(empty: Home, tmp_path: Path) -> None:
    post = _Delivering(tmp_path / "there", can_be_asked=True)
    _add(empty, range(20))
    _back_up(empty, tmp_path / "backup")
    copy = Home(tmp_path / "copy")
    _restore(copy, tmp_path / "backup")
    _add(copy, range(100, 105))
    assert post.deliver(copy).status == "ok"
    _add(empty, range(20, 25))
    assert post.deliver(empty).status == "ok"
    post.check(range(25), range(100, 105))
    with closing(open_home(empty).store) as store, store.reading() as connection:
        assert flushes.next_seq(connection) == 26


class _Context:
    """What an engine gives a job; its Spark is only asked for, so that the lake is the engine's."""

    spark = object()

    def __init__(self, home: Home) -> None:
        self.home = home

    def progress(self, message: str, done: float | None = None, total: float | None = None, **facts: object) -> None:
        pass

    def check_cancelled(self) -> None:
        pass


def test_flushes_go_on_while_the_tables_are_copied_and_nobody_removes_their_files(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[tuple[bool, bool]] = []
    copy_table = lake_copy.copy_table

    def looking(*args: Any) -> int:
        turn = [getattr(turns, f"_{kind}")[DATASET] for kind in ("changing", "keeping")]
        free.append((not turn[0].locked(), not turn[1].locked()))
        return copy_table(*args)

    monkeypatch.setattr(lake_copy, "copy_table", looking)
    context: Any = _Context(home)
    assert backup.backup(context, {"to": str(tmp_path / "backup")})["datasets"] == [{"dataset": DATASET, "rows": 20}]
    assert free == [(True, False)]
    assert not turns._keeping[DATASET].locked()


def test_a_cancelled_backup_leaves_nothing(home: Home, tmp_path: Path) -> None:
    def cancel() -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        backup.make(home, tmp_path / "backup", _STILL, _quiet, cancel)
    assert sorted(path.name for path in tmp_path.iterdir()) == [home.root.name]
