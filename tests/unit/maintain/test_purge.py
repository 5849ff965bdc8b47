"""Purge over a light lake: every place that can hold a row, and only the selected rows."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hypaware.config import Config
from hypaware.config.schema import SinkConfig
from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.index.search import search
from hypaware.index.store import open_index
from hypaware.lake import tombstones
from hypaware.lake.dedupe import scan_table_keys
from hypaware.lake.key_index import KeyIndex
from hypaware.lake.row_keys import unpack_keys
from hypaware.lake.table import NotCommitted, TableChange
from hypaware.maintain.purge import copies
from hypaware.maintain.purge.run import plan_purge
from hypaware.maintain.purge.selector import PurgeSelector, SelectorKind
from hypaware.model.datasets import SEQ
from hypaware.spool import segments
from hypaware.spool.writer import Spool
from hypaware.state import dead_letters, flushes, streams
from hypaware.state.flushes import SourceCheckpoint
from hypaware.state.home_opener import open_home
from hypaware.state.streams import StreamKey
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER, FolderDestination
from tests.support.foreign_rows import mark_delete_files
from tests.support.light_home import DATASET, NO_TIMER, append, flush
from tests.support.light_lake import LightLake, LightTable, read_lake
from tests.support.light_purge import deliver, holders, purge
from tests.support.rows import MESSAGES, rows

SECRET = "0b7d5a52-5a0c-4c8e-9f4e-2f1f6f0e7a11"
WORDS = "planted words"
TEXT = f"{WORDS} that must not be found"


def secret(count: int, start: int = 0, **columns: Any) -> list[dict[str, Any]]:
    found = rows(count, start=start, **{"session_id": SECRET, "content_text": TEXT, **columns})
    return [{**each, "message_id": f"hidden-{each['message_id']}"} for each in found]


def messages(home: Home) -> Counter[str]:
    return Counter(row["message_id"] for row in read_lake(home, DATASET))


def expected_messages(count: int, start: int = 0) -> Counter[str]:
    return Counter(f"message-{number}" for number in range(start, start + count))


def sink(folder: Path) -> Config:
    return Config(sinks={"there": SinkConfig(FOLDER.name, "* * * * *", (DATASET,), {"folder": str(folder)})})


def add_reject(home: Home, name: str, line: bytes) -> None:
    folder = segments.spool_folder(home, DATASET)
    folder.create()
    document = {"segment": "s", "ordinal": 0, "reason": "r", "line_base64": base64.b64encode(line).decode()}
    (folder.rejected / f"{name}.jsonl").write_bytes(json.dumps(document).encode() + b"\n")


@pytest.mark.hazard(99)
def test_a_purge_does_not_bring_back_rows_that_another_program_deleted(home: Home) -> None:
    """It would rewrite their files without the delete files."""
    for start in (0, 3):
        append(home, [*rows(2, start=start), *secret(1, start=start + 2)])
        flush(home)
    mark_delete_files(home)
    with pytest.raises(LakeError, match="delete files"):
        purge(home, "session", SECRET)
    assert not tombstones.list_unfinished_purges(home)


@pytest.mark.hazard(44)
def test_no_file_mentions_a_purged_session(home: Home, tmp_path: Path) -> None:
    """Lake and older snapshots, spool, rejects, dead letters, orphans, free pages: all are searched by a reader that
    knows nothing about purge."""
    destination, config = FolderDestination(tmp_path / "there"), sink(tmp_path / "there")
    append(home, [*rows(6), *secret(6, start=6)])
    flush(home)
    append(home, secret(4, start=12))
    append(home, rows(4, start=16))
    flush(home)
    destination.faults.set("refuse", "hidden-message-7\nhidden-message-8\nmessage-17")
    deliver(home, config)
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert len(dead_letters.list_letters(connection)) == 3
    # Besides: spooled rows, an active segment of a dead producer, rejects, an orphan in the lake.
    append(home, secret(3, start=20))
    run_in_child(lambda: append(home, secret(2, start=23), seal=False))
    add_reject(home, "one", segments.encode_lines([{**secret(1, start=30)[0], "role": 7}], 0))
    add_reject(home, "torn", f'{{"n":0,"v":1,"row":{{"session_id":"{SECRET}","content_text":"{WORDS}'.encode())
    add_reject(home, "another", b'{"n":0,"v":1,"row":{"session_id":"another"}}\n')
    data_file = next(home.warehouse.rglob("*.parquet"))
    data_file.with_name("orphan.parquet").write_bytes(data_file.read_bytes())
    incoming = segments.spool_folder(home, DATASET).path / "incoming"
    incoming.mkdir()
    (incoming / "x.2.jsonl").write_bytes(segments.encode_lines([rows(1, start=40)[0], secret(1, start=41)[0]], 0))
    assert len(holders(home, SECRET, WORDS, "hidden-")) > 8

    report = purge(home, "session", SECRET, config=config)

    assert report["remaining"] == []
    assert holders(home, SECRET, WORDS, "hidden-", WORDS[:16]) == set()
    assert messages(home) == expected_messages(6) + expected_messages(4, start=16)
    assert report["datasets"][0]["rows"] == 10
    assert (report["spool"]["rows"], report["rejects"]) == (6, 2)
    assert report["dead_letters"] == {"letters": 2, "rows": 2}
    (copy,) = report["delivered"]
    assert (copy["sink"], copy["rows"]) == ("there", 8)
    assert [path.name for path in segments.spool_folder(home, DATASET).rejected.iterdir()] == ["another.jsonl"]
    assert len((incoming / "x.2.jsonl").read_bytes().splitlines()) == 2, "the server's ledger counts the lines"
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert [letter.reason for letter in dead_letters.list_letters(connection)] == ["message-17 is refused"]


@pytest.mark.hazard(113)
def test_a_purge_removes_the_rows_from_the_index(home: Home) -> None:
    append(home, [*rows(6), *secret(6, start=6)])
    flush(home)
    append(home, secret(2, start=20))
    with open_index(home) as index:
        assert search(index, WORDS)["total"] == 8
    assert home.index.name in {Path(name).name for name in holders(home, SECRET)}, "the search finds what is there"

    assert purge(home, "session", SECRET)["remaining"] == []

    assert home.index.is_file()
    assert holders(home, SECRET, WORDS.split()[0]) == set()
    with open_index(home) as index:
        assert search(index, WORDS)["total"] == 0
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 6


def test_a_dry_run_counts_the_same_rows_and_changes_nothing(home: Home, tmp_path: Path) -> None:
    config = sink(tmp_path / "there")
    append(home, [*rows(6), *secret(6, start=6)])
    flush(home)
    FolderDestination(tmp_path / "there").faults.set("refuse", "hidden-message-7")
    deliver(home, config)
    append(home, secret(3, start=20))
    add_reject(home, "one", segments.encode_lines([{**secret(1, start=30)[0], "role": 7}], 0))
    open_home(home).store.close()
    before = {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()}
    counted = plan_purge(home, PurgeSelector("session", (SECRET,)), lambda *_: None)
    assert {path: path.read_bytes() for path in home.root.rglob("*") if path.is_file()} == before
    report = purge(home, "session", SECRET, config=config)
    for key in ("selector", "spool", "rejects", "dead_letters", "delivered"):
        assert counted[key] == report[key]
    assert [(each["rows"], each["sources"]) for each in counted["datasets"]] == [
        (each["rows"], each["sources"]) for each in report["datasets"]
    ]


@pytest.mark.parametrize(
    ("kind", "value", "remaining"),
    [
        ("session", "a", {"b", "c", "d", "e"}),
        ("source", "codex", {"a", "b", "c", "d"}),
        ("cwd", "/home/dev/acme", {"a", "c", "e"}),
        ("before", "2026-11-15T07:00:03.000000Z", {"d", "e"}),
    ],
)
def test_only_the_selected_rows_are_purged(home: Home, kind: SelectorKind, value: str, remaining: set[str]) -> None:
    append(
        home,
        [
            *rows(1, session_id="a"),
            *rows(1, start=1, session_id="b", cwd="/home/dev/acme/src"),
            *rows(1, start=2, session_id="c", cwd="/home/dev/acme-two"),
            *rows(1, start=3, session_id="d", cwd="/home/dev/acme"),
            *rows(1, start=4, session_id="e", client_name="codex", cwd="/work"),
        ],
    )
    flush(home)
    before = {row["session_id"]: row for row in read_lake(home, DATASET)}
    assert purge(home, kind, value)["remaining"] == []
    assert {row["session_id"]: row for row in read_lake(home, DATASET)} == {name: before[name] for name in remaining}


def test_files_without_a_selected_row_are_not_rewritten(home: Home) -> None:
    for day in ("2026-10-01", "2026-10-02", "2026-10-03"):
        append(home, rows(3, start=int(day[-2:]) * 10, message_created_at=f"{day}T00:00:00Z"))
        flush(home)
    append(home, secret(2, message_created_at="2026-10-02T00:00:00Z"))
    append(home, secret(2, start=5, message_created_at="2026-10-04T00:00:00Z"))
    flush(home)
    entry = metadata.find_table(home, DATASET)
    assert entry
    before = {file.path: file.day for file in metadata.iter_live_files(metadata.read_metadata(entry.metadata))}
    (report,) = purge(home, "session", SECRET)["datasets"]
    assert (report["files_rewritten"], report["files_removed"]) == (0, 2)
    entry = metadata.find_table(home, DATASET)
    assert entry
    table_metadata = metadata.read_metadata(entry.metadata)
    assert {file.path for file in metadata.iter_live_files(table_metadata)} < before.keys()
    assert len(table_metadata.snapshots) == 1


def test_other_rows_of_a_rewritten_file_are_unchanged(home: Home) -> None:
    append(home, [*rows(20), *secret(20, start=20), *rows(20, start=40)])
    flush(home)
    before = {row["message_id"]: row for row in read_lake(home, DATASET)}
    purge(home, "session", SECRET)
    after = {row["message_id"]: row for row in read_lake(home, DATASET)}
    assert after == {name: before[name] for name in expected_messages(20) + expected_messages(20, start=40)}
    assert flush(home).rows.written == 0
    append(home, rows(1, start=90))
    flush(home)
    assert min(row[SEQ] for row in read_lake(home, DATASET) if row["message_id"] == "message-90") > 60


@pytest.mark.hazard(85)
@pytest.mark.parametrize(
    "lost", [(), ("state.db", "state.mirror.json"), ("lake/keys.db",), ("state.db", "lake/keys.db")]
)
def test_a_purged_session_never_comes_back_even_after_losses(home: Home, lost: tuple[str, ...]) -> None:
    append(home, [*rows(5), *secret(8, start=5)])
    flush(home)
    purge(home, "session", SECRET)
    for name in lost:
        for suffix in ("", "-wal", "-shm"):
            (home.root / f"{name}{suffix}").unlink(missing_ok=True)
    append(home, secret(12, start=5))
    fork = [{**row, "session_id": "a-fork"} for row in secret(10, start=5)]
    append(home, [*fork, *rows(5)])
    report = flush(home)
    # Only the fork's own rows are accepted.
    assert (report.rows.purged, report.rows.duplicate, report.rows.rejected) == (20, 5, 0)
    assert messages(home) == expected_messages(5) + Counter(["hidden-message-13", "hidden-message-14"])


@pytest.mark.hazard(85)
def test_purged_rows_of_a_source_stay_out_and_new_ones_are_accepted(home: Home) -> None:
    append(home, rows(5))
    flush(home)
    append(home, rows(2, start=5))
    purge(home, "source", "claude")
    append(home, rows(9))
    report = flush(home)
    assert (report.rows.written, report.rows.purged) == (2, 7)
    assert messages(home) == expected_messages(2, start=7)


@pytest.mark.hazard(85)
def test_allow_reimport_lets_an_import_restore_all_rows(home: Home) -> None:
    append(home, secret(6))
    flush(home)
    purge(home, "session", SECRET)
    report = purge(home, "session", SECRET, allow_reimport=True)
    assert report["tombstones"]["lifted"] == 1
    append(home, secret(6))
    assert flush(home).rows.written == 6
    assert purge(home, "session", SECRET, allow_reimport=True)["remaining"] == []
    assert messages(home) == Counter()
    append(home, secret(6))
    assert flush(home).rows.written == 6, "the keys are removed with the rows"


def test_lifting_one_session_keeps_the_other_out(home: Home) -> None:
    append(home, [*secret(3), *rows(3, start=3, session_id="second")])
    flush(home)
    purge(home, "session", SECRET, "second")
    purge(home, "session", "second", allow_reimport=True)
    append(home, [*secret(3), *rows(3, start=3, session_id="second")])
    assert flush(home).rows.purged == 3
    assert messages(home) == expected_messages(3, start=3)


def test_rows_of_a_session_survive_the_purge_of_its_fork(home: Home) -> None:
    """The fork copied them, and the lake has them under the first session: they belong to that one."""
    append(home, rows(5, session_id="first"))
    flush(home)
    append(home, [*rows(5, session_id="fork"), *rows(3, start=5, session_id="fork")])
    flush(home)
    append(home, rows(6, session_id="fork"))
    purge(home, "session", "fork")
    home.keys.unlink()
    append(home, rows(5, session_id="first"))
    report = flush(home)
    assert (report.rows.duplicate, report.rows.purged) == (5, 0)
    assert messages(home) == expected_messages(5)


@pytest.mark.hazard(43)
def test_a_pending_intent_delivers_its_remaining_rows_once(home: Home, tmp_path: Path) -> None:
    destination, config = FolderDestination(tmp_path / "there"), sink(tmp_path / "there")
    append(home, [*rows(4), *secret(4, start=4), *rows(4, start=8)])
    flush(home)
    destination.faults.set("lose_answer", 1)
    deliver(home, config)
    with closing(open_home(home).store) as store, store.reading() as connection:
        planned = streams.load_intent(connection, StreamKey("there", DATASET, "claude"))
    assert planned
    assert planned.due
    arrived = Counter(destination.arrived())
    (copy,) = purge(home, "session", SECRET, config=config)["delivered"] or [{"rows": 0, "rows_under_way": 0}]
    assert copy["rows"] + copy["rows_under_way"] >= sum(name.startswith("hidden") for name in arrived)
    destination.faults.clear()
    append(home, rows(2, start=12))
    flush(home)
    for _ in range(2):
        deliver(home, config)
    assert Counter(destination.arrived()) == arrived | expected_messages(4) | expected_messages(6, start=8)
    with closing(open_home(home).store) as store, store.reading() as connection:
        stream = streams.load_stream(connection, StreamKey("there", DATASET, "claude"))
    assert stream
    assert stream.watermark == 14


def test_an_active_segment_is_reported_and_purged_by_the_next_run(home: Home) -> None:
    append(home, rows(2))
    flush(home)
    with Spool(home, NO_TIMER) as spool:
        spool.append(DATASET, secret(3))
        report = purge(home, "session", SECRET)
        (data_file,) = report["remaining"]
        assert data_file["file"].startswith(f"spool/{DATASET}/active/")
        assert report["spool"]["held"]
        assert tombstones.list_unfinished_purges(home) == [f"hyp purge --session {SECRET}"]
    report = purge(home, "session", SECRET)
    assert (report["remaining"], report["spool"]["rows"], tombstones.list_unfinished_purges(home)) == ([], 3, [])
    assert holders(home, SECRET, WORDS) == set()


def test_rows_that_a_session_adds_during_its_purge_are_kept_out(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches arrive after the purge has emptied the spool: one before it searches the spool, one during the
    search."""
    append(home, rows(2) + secret(3))
    flush(home)
    batches = iter([secret(2, start=3), secret(2, start=5)])

    def with_new_rows(step_function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any) -> Any:
            result = step_function(*args)
            for batch in islice(batches, 1):
                append(home, batch)
            return result

        return step

    monkeypatch.setattr(copies, "remove_rejects", with_new_rows(copies.remove_rejects))
    monkeypatch.setattr(copies, "flush_spool", with_new_rows(copies.flush_spool))
    report = purge(home, "session", SECRET)
    assert list(batches) == []
    assert (report["remaining"], report["spool"]["rows"], tombstones.list_unfinished_purges(home)) == ([], 4, [])
    assert holders(home, SECRET, WORDS) == set()


def test_an_emptied_table_keeps_its_floor(home: Home) -> None:
    append(home, secret(5))
    flush(home)
    assert purge(home, "source", "claude")["remaining"] == []
    assert holders(home, SECRET, WORDS) == set()
    append(home, rows(1, start=50))
    flush(home)
    assert [row[SEQ] for row in read_lake(home, DATASET)] == [6]


def test_checkpoints_are_forgotten_only_with_allow_reimport(home: Home) -> None:
    append(home, rows(1))
    flush(home)

    def marks() -> int:
        with closing(sqlite3.connect(home.state)) as state:
            return int(state.execute("SELECT count(*) FROM sources").fetchone()[0])

    with closing(open_home(home).store) as store, store.transaction() as connection:
        mark = SourceCheckpoint("claude", DATASET, "/x", 1, 1, 1, 1, "h", (), True, (), None, None)
        flushes.add_pending_checkpoints(connection, "f", [mark])
        flushes.promote_checkpoints(connection, "f")
    purge(home, "session", "session-1")
    assert marks() == 1
    purge(home, "session", "session-1", allow_reimport=True)
    assert marks() == 0


def test_the_key_index_holds_exactly_the_remaining_rows(home: Home) -> None:
    append(home, [*rows(7), *secret(9, start=7)])
    flush(home)
    purge(home, "session", SECRET)
    with closing(KeyIndex(home.keys)) as index, closing(LightLake(home)) as lake:
        table = lake.table(MESSAGES)
        scanned = scan_table_keys(home, lake, table, MESSAGES)
        in_lake = {key for result in scanned for key, _ in unpack_keys(result.keys, result.seqs)}
        assert (index.count(), set(index.find(in_lake))) == (7, in_lake)
        assert index.indexed_through(DATASET, table.uuid) == table.floor


def test_a_purge_without_matches_does_not_change_the_lake(home: Home) -> None:
    append(home, rows(3))
    flush(home)
    append(home, rows(3, start=3))
    flush(home)
    before = metadata.find_table(home, DATASET)
    assert purge(home, "session", "no-such-session")["remaining"] == []
    assert metadata.find_table(home, DATASET) == before


def test_a_log_that_quotes_a_row_is_reported(home: Home) -> None:
    append(home, secret(1))
    flush(home)
    home.logs.mkdir()
    (home.logs / "x.log").write_text("the row hidden-message-0#0 was odd")
    (home.logs / "y.log").write_text("the row hidden-message-01#0 was odd too, and is another's")
    (found,) = purge(home, "session", SECRET)["remaining"]
    assert found["file"] == "logs/x.log"


def test_short_ids_are_not_searched_for(home: Home) -> None:
    """Otherwise a purge of rows with ids such as m1, m2 would never succeed: these occur in every program."""
    append(home, [{**each, "message_id": f"m{number}"} for number, each in enumerate(rows(3, session_id=SECRET))])
    flush(home)
    home.engine.mkdir()
    (home.engine / "unpacked.so").write_bytes(b"\x7fELF m0 m1#0 \x00m2\x00")
    report = purge(home, "session", SECRET)
    assert (report["remaining"], report["looked_for"], read_lake(home, DATASET)) == ([], {"rows": 3, "ids": 0}, [])


def test_a_failed_commit_leaves_everything_unchanged(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, key index and files are unchanged; the tombstones stay, and the next purge finds the rows."""
    append(home, [*rows(3), *secret(3, start=3)])
    flush(home)
    before = set(home.warehouse.rglob("*.parquet"))

    def refuse(_table: LightTable, _change: TableChange) -> None:
        raise NotCommitted("another commit came first")

    with monkeypatch.context() as patched:
        patched.setattr(LightTable, "replace_files", refuse)
        with pytest.raises(NotCommitted):
            purge(home, "session", SECRET)
    assert set(home.warehouse.rglob("*.parquet")) == before
    with closing(KeyIndex(home.keys)) as index, closing(LightLake(home)) as lake:
        assert index.indexed_through(DATASET, lake.table(MESSAGES).uuid) == 0, "the next use indexes all keys again"
    assert sum(messages(home).values()) == 6
    assert purge(home, "session", SECRET)["remaining"] == []
    assert messages(home) == expected_messages(3)


@pytest.mark.hazard(44)
def test_an_incomplete_file_of_a_killed_compaction_does_not_stop_a_purge(home: Home) -> None:
    """An incomplete unreferenced file is removed unread, with the rows that it may hold."""
    append(home, [*rows(3), *secret(3, start=3)])
    flush(home)
    intact = next(home.warehouse.rglob("*.parquet"))
    torn = intact.with_name("keep-0123456789abcdef-1.parquet")
    torn.write_bytes(intact.read_bytes()[:500])
    assert purge(home, "session", SECRET)["remaining"] == []
    assert not torn.exists()
    assert messages(home) == expected_messages(3)


@pytest.mark.hazard(85)
def test_a_row_purged_by_time_does_not_come_back_with_another_time(home: Home) -> None:
    """A client's request repeats its history, and parts with an unknown time get that of the request."""
    old = rows(2, message_created_at="2026-01-01T00:00:00Z")
    append(home, [*old, *rows(1, start=2)])
    flush(home)
    assert purge(home, "before", "2026-06-01T00:00:00.000000Z")["remaining"] == []
    append(home, rows(2))
    assert flush(home).rows.written == 0
    assert messages(home) == expected_messages(1, start=2)
