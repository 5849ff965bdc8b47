"""Moved and copied homes: their tables reference files in the new location, and a copy never touches the original."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import fastavro
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from hypaware.errors import HypError, LakeError, NotReady
from hypaware.home import Home, locks
from hypaware.home.storage import parse_location
from hypaware.iceberg import metadata
from hypaware.iceberg.relocate import LakeLocations
from hypaware.lake.table import TableChange
from hypaware.model import datasets
from hypaware.state import flushes, home_opener, recovery
from hypaware.state import store as state_store
from hypaware.state.home_opener import OpenHome, open_home, read_identity
from tests.support.light_home import DATASET, append, flush
from tests.support.light_lake import LightLake, read_lake
from tests.support.prepared_home import PreparedHome
from tests.support.processes import run, running, together, was_killed
from tests.support.rows import rows

OLD = "as it was"
_OPEN = """
from hypaware.home import Home
from hypaware.state.home_opener import open_home
open_home(Home.from_environment()).store.close()
"""
_STEPS = [
    "iceberg.relocate.before-write", "iceberg.relocate.before-update", "iceberg.relocate.after-update",
    "iceberg.relocate.after-remove", "state.commit.before-commit:2", "state.commit.after-commit:2",
    "state.mirror.before-write",
]  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> PreparedHome:
    """Make a home with three commits and a name that a user may choose."""

    def make(home: Home) -> None:
        for start in (0, 10, 20):
            append(home, rows(10, start=start))
            flush(home)

    return PreparedHome(tmp_path_factory.mktemp("relocated"), make, f"my höme {OLD}")


@pytest.fixture
def home(kept: PreparedHome) -> Home:
    return kept.restored()


def _opened(home: Home) -> OpenHome:
    opened = open_home(home)
    opened.store.close()
    return opened


def _copied(home: Home, name: str = "the copy") -> Home:
    return Home(shutil.copytree(home.root, home.root.with_name(name)))


def _moved(home: Home, name: str = "elsewhere") -> Home:
    return Home(home.root.rename(home.root.with_name(name)))


def _contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _entry(home: Home) -> metadata.CatalogEntry:
    found = metadata.find_table(home, DATASET)
    assert found is not None
    return found


def _next_seq(home: Home) -> int:
    with closing(open_home(home).store) as store, store.reading() as connection:
        return flushes.next_sequence(connection)


def _forget(*paths: Path) -> None:
    for path in paths:
        for found in path.parent.glob(f"{path.name}*"):
            found.unlink()


def _names(home: Home, text: str) -> list[str]:
    """Return the files of the lake that contain a text, decoding Avro."""
    found = []
    for path in home.warehouse.rglob("metadata/*"):
        held = path.read_bytes()
        if path.suffix == ".avro":
            with open(path, "rb") as file:
                held = repr(list(fastavro.reader(file))).encode()
        if text.encode() in held:
            found.append(path.name)
    with closing(sqlite3.connect(home.catalog)) as catalog:
        if text in repr(catalog.execute("SELECT * FROM iceberg_tables").fetchall()):
            found.append("catalog.db")
    return found


@pytest.mark.parametrize(
    ("location", "here"),
    [
        ("file:/old home/lake/warehouse/hypaware/t", "file:/new/lake/warehouse/hypaware/t"),
        ("file:///old/lake/warehouse/hypaware/t/a%20b", "file:///new/lake/warehouse/hypaware/t/a%20b"),
        ("/old/lake/warehouse/x", "/new/lake/warehouse/x"),
        ("file:/data/lake/warehouse/own/lake/warehouse/x", "file:/new/lake/warehouse/x"),
        ("file:/new/lake/warehouse/x", "file:/new/lake/warehouse/x"),
        ("/newer/lake/warehouse/x", "/new/lake/warehouse/x"),
        ("file:/ä ö/%/lake/warehouse/data/_hyp_source=a%2Fb/f", "file:/new/lake/warehouse/data/_hyp_source=a%2Fb/f"),
        ("file:/old/lake/warehouse", "file:/new/lake/warehouse"),
        ("s3://bucket/lake/warehouse/x", "s3://bucket/lake/warehouse/x"),
    ],
)
def test_a_location_is_translated_by_its_path_within_the_home(location: str, here: str) -> None:
    assert LakeLocations(Path("/new")).localize(location) == here


def test_a_location_outside_any_home_raises_an_error() -> None:
    with pytest.raises(LakeError, match="outside the warehouse"):
        LakeLocations(Path("/new")).localize("file:/somewhere/else.parquet")


@pytest.mark.hazard(70)
def test_a_moved_home_keeps_its_identity_and_rows(home: Home) -> None:
    before, known = read_lake(home, DATASET), _opened(home).identity
    snapshots = [snapshot.id for snapshot in metadata.read_metadata(_entry(home).metadata).snapshots]
    moved = _moved(home)
    assert len(_names(moved, OLD)) == 11
    assert read_identity(moved).incarnation == known.incarnation
    opened = _opened(moved)
    assert (opened.identity.parents, opened.rebuilt) == ((), None)
    assert opened.identity.home_path == str(moved.root)
    assert read_lake(moved, DATASET) == before
    assert _names(moved, OLD) == []
    assert not home.root.exists()
    with closing(LightLake(moved)) as lake:
        table = lake.catalog.load_table((metadata.NAMESPACE, DATASET))
        counted = [len(table.scan(snapshot_id=each).to_arrow()) for each in snapshots]
    assert counted == [10, 20, 30]
    append(moved, rows(15, start=20))
    report = flush(moved)
    assert (report.seq_after, report.rows.written, report.rows.duplicate) == (30, 5, 10)
    assert {row["_hyp_ingest_seq"] for row in read_lake(moved, DATASET)} == set(range(1, 31)) | set(range(41, 46))


@pytest.mark.hazard(70)
def test_a_home_that_is_moved_back_and_forth_stays_intact(home: Home) -> None:
    before = read_lake(home, DATASET)
    there = _moved(home)
    _opened(there)
    back = _moved(there, home.root.name)
    _opened(back)
    assert read_lake(back, DATASET) == before
    assert flush(back).rows.written == 0


@pytest.mark.hazard(69)
@pytest.mark.hazard(71)
def test_a_copy_works_next_to_its_original_and_never_touches_its_files(home: Home) -> None:
    known = _opened(home).identity
    copy = _copied(home)
    before = _contents(home.root)
    identity = _opened(copy).identity
    assert (identity.parents, identity.forks) == ((known.incarnation,), (30,))
    assert identity.gateway_id == known.gateway_id
    append(copy, rows(5, start=30))
    assert flush(copy).rows.written == 5
    with closing(LightLake(copy)) as lake:
        table = lake.table(datasets.get(DATASET))
        gone = tuple(metadata.iter_live_files(metadata.read_metadata(_entry(copy).metadata)))
        table.replace_files(TableChange("purge", removed=gone, added=()))
        for file in gone:
            assert file.path.is_relative_to(copy.root)
            file.path.unlink()
    assert read_lake(copy, DATASET) == []
    assert _contents(home.root) == before
    append(home, rows(7, start=40))
    assert flush(home).seq_after == 30
    assert len(read_lake(home, DATASET)) == 37
    assert _opened(home).identity == known


@pytest.mark.hazard(71)
def test_a_copy_never_uses_a_sequence_of_its_original(home: Home) -> None:
    copy = _copied(home)
    append(home, rows(10, start=30))
    append(copy, rows(10, start=30))
    theirs, ours = flush(home), flush(copy)
    assert (theirs.seq_last, ours.seq_after) == (40, 30 + home_opener.SKIPPED_SEQUENCES)
    again = _copied(copy, "copy of the copy")
    append(again, rows(1, start=50))
    assert flush(again).seq_after == 40 + 2 * home_opener.SKIPPED_SEQUENCES
    assert _opened(again).identity.forks == (30, 40 + home_opener.SKIPPED_SEQUENCES)


@pytest.mark.hazard(71)
@pytest.mark.parametrize("lost", [("state.db",), ("state.db", "state.mirror.json")])
def test_the_sequence_leap_of_a_copy_survives_the_loss_of_state_and_mirror(home: Home, lost: tuple[str, ...]) -> None:
    copy = _copied(home)
    identity = _opened(copy).identity
    _forget(*(copy.root / name for name in lost))
    append(copy, rows(1, start=30))
    assert flush(copy).seq_after == 30 + home_opener.SKIPPED_SEQUENCES
    assert identity.incarnation in _opened(copy).identity.parents


@pytest.mark.hazard(69)
@pytest.mark.parametrize("how", [_moved, _copied])
def test_a_relocated_home_without_state_and_mirror_counts_as_a_copy(home: Home, how: Callable[[Home], Home]) -> None:
    known, before = _opened(home).identity, read_lake(home, DATASET)
    there = how(home)
    _forget(there.state, there.mirror)
    opened = _opened(there)
    assert opened.rebuilt
    assert opened.gateway_id == known.gateway_id
    assert read_lake(there, DATASET) == before
    assert _names(there, OLD) == []
    assert _next_seq(there) == 31 + home_opener.SKIPPED_SEQUENCES


@pytest.mark.hazard(70)
def test_a_moved_home_that_lost_only_its_state_counts_as_moved(home: Home) -> None:
    before = read_lake(home, DATASET)
    moved = _moved(home)
    _forget(moved.state)
    assert _next_seq(moved) == 31
    assert read_lake(moved, DATASET) == before


@pytest.mark.hazard(69)
def test_a_copy_at_the_path_of_its_original_is_detected(home: Home) -> None:
    known, before = _opened(home).identity, read_lake(home, DATASET)
    copy = _copied(home)
    home.root.rename(home.root.with_name("the original"))
    copy.root.rename(home.root)
    opened = _opened(home)
    assert opened.identity.parents == (known.incarnation,)
    assert read_lake(home, DATASET) == before
    assert _next_seq(home) == 31 + home_opener.SKIPPED_SEQUENCES


@pytest.mark.hazard(69)
@pytest.mark.hazard(70)
@pytest.mark.parametrize(
    ("how", "step"),
    [*((how, step) for how in (_moved, _copied) for step in _STEPS), (_copied, "iceberg.relocate.after-stamp")],
)
def test_a_relocation_killed_at_any_step_is_completed_by_the_next_open(
    home: Home, how: Callable[[Home], Home], step: str
) -> None:
    known, before = _opened(home).identity, read_lake(home, DATASET)
    there = how(home)
    done = run(_OPEN, there, crash_at=step)
    assert was_killed(done), done.stderr
    identity = read_identity(there)
    assert identity.home_path == str(there.root)
    assert identity.incarnation == known.incarnation or known.incarnation in identity.parents
    assert (identity.incarnation == known.incarnation) == (how is _moved)
    assert read_lake(there, DATASET) == before
    assert _names(there, OLD) == []
    append(there, rows(12, start=20))
    report = flush(there)
    assert (report.rows.written, report.rows.duplicate) == (2, 10)
    assert _opened(there).identity == identity


@pytest.mark.hazard(69)
def test_concurrent_processes_relocate_a_copy_once(home: Home) -> None:
    copy = _copied(home)

    def meet(number: int) -> None:
        copy.root.with_name(f"met-{number}").write_text(read_identity(copy).incarnation)

    assert together([partial(meet, number) for number in range(5)]) == [0] * 5
    assert {path.read_text() for path in copy.root.parent.glob("met-*")} == {_opened(copy).identity.incarnation}
    assert len(_opened(copy).identity.parents) == 1


_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)
getattr(fcntl, sys.argv[2])(fd, fcntl.LOCK_EX)
os.ftruncate(fd, 0)
os.pwrite(fd, b"%d" % os.getpid(), 0)
print("held", flush=True)
sys.stdin.readline()
"""


@pytest.mark.hazard(70)
@pytest.mark.parametrize(
    ("lock", "kind", "repair"),
    [
        ("lake/lake.lock", "lockf", "hyp engine stop"),
        ("run/engine.lock", "flock", "hyp engine stop"),
        ("run/daemon.lock", "flock", "hyp daemon stop"),
        ("run/server.lock", "flock", "kill {pid}"),
    ],
)
def test_a_home_moved_while_processes_use_it_waits_for_them(
    home: Home, monkeypatch: pytest.MonkeyPatch, lock: str, kind: str, repair: str
) -> None:
    """POSIX locks, which the JVM uses, and flock do not see each other."""
    monkeypatch.setattr(locks, "WAIT_SECONDS", 0.0)
    moved = _moved(home)
    with running(_HOLD, moved, moved.root / lock, kind) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        before = _contents(moved.warehouse)
        for use in (open_home, read_identity):
            with pytest.raises(NotReady, match="is still running in it") as refused:
                use(moved)
            assert (refused.value.exit_code, refused.value.kind) == (3, "home_in_use")
            assert refused.value.repair == (repair.format(pid=process.pid),)
        assert _contents(moved.warehouse) == before
    assert _opened(moved).identity.home_path == str(moved.root)
    assert len(read_lake(moved, DATASET)) == 30


def test_an_engine_that_has_just_acquired_the_lake_relocates_the_home_itself(home: Home) -> None:
    """Its own locks do not block it: its client may not have opened the home before."""
    moved = _moved(home)
    lake_lock = """
import fcntl, json, os, sys
from hypaware.home import Home
from hypaware.state.home_opener import open_home

from pathlib import Path
home = Home(Path(os.environ["HYP_HOME"]))
home.lake_owner.write_text(json.dumps({"pid": os.getpid()}))
home.engine_lock.write_text(str(os.getpid()))
lock = os.open(home.engine_lock, os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
ready, go = os.pipe()
if os.fork() == 0:
    jvm = os.open(home.lake_lock, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(jvm, fcntl.LOCK_EX)
    os.write(go, b"x")
    sys.stdin.readline()
    os._exit(0)
os.read(ready, 1)
open_home(home).store.close()
print("opened", flush=True)
"""
    with running(lake_lock, moved) as process:
        assert process.stdout
        assert process.stdout.readline() == "opened\n"
    assert len(read_lake(moved, DATASET)) == 30


def test_process_files_copied_from_the_original_are_ignored(home: Home) -> None:
    home.engine.mkdir(exist_ok=True)
    home.run.mkdir(exist_ok=True)
    for name in ("engine.lock", "engine.pid", "daemon.lock", "server.lock"):
        (home.run / name).write_text(f"{os.getppid()}\n")
    home.lake_lock.touch()
    copy = _copied(home)
    assert _opened(copy).identity.home_path == str(copy.root)


@pytest.mark.hazard(72)
@pytest.mark.parametrize("torn", ["metadata", "manifest", "data"])
def test_a_commit_torn_before_a_move_is_rolled_back_after_it(home: Home, torn: str) -> None:
    """The newest commit was neither durable nor recorded."""
    append(home, rows(5, start=30))
    with closing(open_home(home).store) as store, store.transaction() as connection:
        recorded = flushes.load_high_water(connection)
    flush(home)
    newest = metadata.read_metadata(_entry(home).metadata)
    assert newest.current
    manifest = next(each for each in metadata.read_manifests(newest.current) if each.snapshot_id == newest.current_id)
    file = next(metadata.read_data_files(newest, manifest))
    victim = {"metadata": newest.path, "manifest": manifest.path, "data": file.path}[torn]
    os.truncate(victim, 20)
    with closing(open_home(home).store) as store, store.transaction() as connection:
        flushes.lower_high_water(connection, DATASET, recorded[DATASET]["claude"])
    moved = _moved(home)
    _opened(moved)
    append(moved, rows(1, start=50))
    assert flush(moved).rows.written >= 1
    assert {row["message_id"] for row in read_lake(moved, DATASET)} >= {f"message-{n}" for n in range(30)}


def test_every_path_in_the_metadata_is_rewritten(home: Home) -> None:
    """Path properties and the namespace location are rewritten, and stale checksum files are removed."""
    with closing(LightLake(home)) as lake:
        table = lake.catalog.load_table((metadata.NAMESPACE, DATASET))
        with table.transaction() as transaction:
            transaction.set_properties({"write.data.path": f"file://{home.warehouse}/hypaware/{DATASET}/data"})
        place = {"location": f"file://{home.warehouse}/hypaware"}
        lake.catalog.update_namespace_properties(metadata.NAMESPACE, updates=place)
    current = _entry(home).metadata
    current.with_name(f".{current.name}.crc").write_bytes(b"crc")
    moved = _moved(home)
    _opened(moved)
    known = metadata.read_metadata(_entry(moved).metadata)
    assert known.properties["write.data.path"] == f"file://{moved.warehouse}/hypaware/{DATASET}/data"
    held = json.loads(known.path.read_bytes())
    assert parse_location(held["location"]) == moved.warehouse / "hypaware" / DATASET
    with closing(SqlCatalog(metadata.CATALOG, uri=f"sqlite:///{moved.catalog}")) as catalog:
        properties = catalog.load_namespace_properties(metadata.NAMESPACE)
        assert properties["location"] == f"file://{moved.warehouse}/hypaware"
    assert list(moved.warehouse.rglob("*.crc")) == []


def test_each_manifest_is_rewritten_once_and_old_files_are_removed(home: Home) -> None:
    known = metadata.read_metadata(_entry(home).metadata)
    manifests = {each.path.name for snapshot in known.snapshots for each in metadata.read_manifests(snapshot)}
    moved = _moved(home)
    _opened(moved)
    now = {path.name for path in moved.warehouse.rglob("*-m0.avro")}
    assert len(now) == len(manifests) == 3
    assert now.isdisjoint(manifests)
    assert len(list(moved.warehouse.rglob("snap-*.avro"))) == 3
    assert len(list(moved.warehouse.rglob("*.metadata.json"))) == 2


def test_a_home_reached_through_a_symlink_uses_its_real_path(home: Home) -> None:
    before = read_lake(home, DATASET)
    moved = _moved(home)
    link = home.root.with_name("link")
    link.symlink_to(moved.root)
    identity = read_identity(Home(link))
    assert identity.home_path == str(moved.root)
    assert _entry(moved).metadata.is_relative_to(moved.root)
    assert read_identity(moved) == identity
    link.unlink()
    assert read_lake(moved, DATASET) == before


def test_a_state_copied_before_its_mirror_is_first_raised_to_the_mirror(home: Home) -> None:
    """A copy of a home in use has an older state and a newer mirror."""
    early = home.root.with_name("early")
    shutil.copy(home.state, early)
    append(home, rows(10, start=30))
    flush(home)
    copy = _copied(home)
    _forget(copy.state)
    shutil.copy(early, copy.state)
    identity = _opened(copy).identity
    assert identity.forks[-1] == 40
    assert _next_seq(copy) == 41 + home_opener.SKIPPED_SEQUENCES
    assert recovery.summarize_lake(copy).floor == 40 + home_opener.SKIPPED_SEQUENCES


def test_a_copy_without_sequences_left_for_a_leap_raises_an_error(home: Home) -> None:
    with closing(open_home(home).store) as store, store.transaction() as connection:
        flushes.raise_next_sequence(connection, 2**62 - 5)
    copy = _copied(home)
    with pytest.raises(HypError, match="can be moved, but not copied"):
        open_home(copy)
    with closing(sqlite3.connect(copy.state)) as state:
        (held,) = state.execute("SELECT value FROM meta WHERE key = 'identity'").fetchone()
    assert json.loads(held)["home_path"] == str(home.root)
    assert _opened(_moved(home)).identity.parents == ()


def test_state_and_mirror_of_a_moved_home_have_its_new_path(home: Home) -> None:
    moved = _moved(home)
    known = read_identity(moved)
    with closing(open_home(moved).store) as store, store.reading() as connection:
        assert state_store.load_identity(connection) == known
