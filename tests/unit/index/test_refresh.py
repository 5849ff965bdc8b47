"""What a refresh does with the changes of a lake and a spool that need a particular order of events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hypaware.config.edit import set_value
from hypaware.errors import NotReady
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.index import refresh, spool_rows
from hypaware.index.refresh import refresh_index
from hypaware.index.schema import SPOOLED
from hypaware.index.spool_rows import SpoolFile
from hypaware.index.store import Index, open_index
from hypaware.model.datasets import SEQ
from hypaware.spool.writer import Spool
from hypaware.state.home_opener import open_home
from tests.support.edited_lake import DATASET, add_file, rewrite, stored_row
from tests.support.index_oracle import assert_index_agrees, find_word, read_sessions
from tests.support.light_home import NO_TIMER, append, flush
from tests.support.live_rows import Part
from tests.support.rows import row, rows


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    open_home(home).store.close()
    return home


def stored(home: Home, first: int, count: int, **columns: Any) -> list[dict[str, Any]]:
    gateway = open_home(home).gateway_id
    return [stored_row(first + number, each, gateway) for number, each in enumerate(rows(count, first, **columns))]


def count(index: Index, where: str = "1") -> int:
    found: int = index.connection.execute(f"SELECT count(*) FROM parts WHERE {where}").fetchone()[0]
    return found


def test_a_second_refresh_reads_no_data_file(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    add_file(home, stored(home, 1, 5))
    refresh_index(home)
    monkeypatch.setattr(refresh, "lake_rows", None)
    monkeypatch.setattr(metadata, "read_metadata", None)
    assert refresh_index(home).added == 0


def test_only_new_files_are_read(home: Home) -> None:
    add_file(home, stored(home, 1, 5))
    assert refresh_index(home).added == 5
    add_file(home, stored(home, 6, 2))
    report = refresh_index(home)
    assert (report.added, report.changed, report.removed) == (2, 0, 0)


def test_manifests_whose_files_are_indexed_are_not_read_again(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in (1, 4, 7):
        add_file(home, stored(home, first, 3))
    refresh_index(home)
    add_file(home, stored(home, 10, 3))
    read: list[metadata.ManifestFile] = []
    read_files = metadata.read_cached_files

    def read_cached_files(known: Any, manifest: metadata.ManifestFile) -> Any:
        read.append(manifest)
        return read_files(known, manifest)

    monkeypatch.setattr(metadata, "read_cached_files", read_cached_files)
    assert refresh_index(home).added == 3
    assert len(read) == 1
    rewrite(home, lambda each: None if each[SEQ] == 5 else each)
    report = refresh_index(home)
    assert (report.added, report.changed, report.removed) == (0, 0, 1)
    with open_index(home) as index:
        assert_index_agrees(home, index, ["text"])


def test_the_newest_rows_come_first(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for month in range(1, 4):
        add_file(home, stored(home, month * 10, 4, message_created_at=f"2026-0{month}-01T00:00:00Z"))
    monkeypatch.setattr(refresh, "_BATCH_ROWS", 1)
    assert not refresh_index(home, limit_rows=4).complete
    with Index(home) as index:
        assert {seq for (seq,) in index.connection.execute("SELECT seq FROM parts")} == {30, 31, 32, 33}
        assert index.progress == pytest.approx(1 / 3)


def test_a_row_of_the_spool_is_shown_again_when_the_lake_loses_it(home: Home) -> None:
    add_file(home, stored(home, 1, 3))
    append(home, rows(1, start=1))
    with open_index(home) as index:
        assert count(index, f"seq >= {SPOOLED}") == 0
    rewrite(home, lambda each: None if each[SEQ] == 1 else each)
    with open_index(home) as index:
        assert count(index, f"seq >= {SPOOLED}") == 1
        assert_index_agrees(home, index, ["text"])


def test_a_segment_that_is_committed_while_it_is_to_be_read(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    append(home, rows(3))
    list_spool = spool_rows.list_spool
    listings: list[list[SpoolFile]] = []

    def flush_after_catalog(where: Home) -> list[SpoolFile]:
        listings.append(list_spool(where))
        return listings[-1]

    plan_lake = refresh.plan_lake

    def plan_then_flush(where: Home, connection: Any) -> Any:
        plan = plan_lake(where, connection)
        if len(listings) == 1:
            flush(home)
        return plan

    monkeypatch.setattr(spool_rows, "list_spool", flush_after_catalog)
    monkeypatch.setattr(refresh, "plan_lake", plan_then_flush)
    with open_index(home) as index:
        assert count(index, f"seq < {SPOOLED}") == 3
        assert len(listings) > 1
        assert_index_agrees(home, index, ["text"])


def test_a_line_that_is_being_written_is_read_when_it_is_whole(home: Home) -> None:
    spool = Spool(home, NO_TIMER)
    spool.append(DATASET, rows(1))
    (path,) = (home.spool / DATASET / "active").glob("*.jsonl")
    whole = path.read_bytes()
    line = whole.replace(b'{"n":0,', b'{"n":1,').replace(b"message-0", b"message-1")
    with path.open("ab") as file:
        file.write(line[:50])
    with open_index(home) as index:
        assert count(index) == 1
    with path.open("ab") as file:
        file.write(line[50:])
    with open_index(home) as index:
        assert count(index) == 2


def test_rows_without_a_sequence_are_left_out(home: Home) -> None:
    add_file(home, [*stored(home, 1, 2), {**stored(home, 9, 1)[0], SEQ: None}])
    with open_index(home) as index:
        assert_index_agrees(home, index, ["text"])
        assert count(index) == 2


def test_sessions_with_one_id_on_two_machines_stay_two(home: Home) -> None:
    add_file(home, [stored_row(1, row(1, gateway_id="gw-a")), stored_row(2, row(2, gateway_id="gw-b"))])
    with open_index(home) as index:
        assert {key[1] for key in read_sessions(index)} == {"gw-a", "gw-b"}


def test_hostile_times_and_texts(home: Home) -> None:
    times = ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999Z"]
    texts = [
        "x" * 1_000_000,
        "\x00\x1b[31m\ud83d".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
        "'\"); --",
    ]
    made = [
        row(number, message_created_at=at, content_text=text)
        for number, (at, text) in enumerate(zip(times, texts, strict=False))
    ]
    add_file(home, [stored_row(number, each, open_home(home).gateway_id) for number, each in enumerate(made, 1)])
    with open_index(home) as index:
        assert_index_agrees(home, index)
        assert len(index.text_tables()) == 2
        # Filters for a time beyond the first and the last month find them too.
        assert index.text_tables(since=250_000_000_000_000_000) == [index.text_tables()[0]]


def test_a_moved_home_keeps_its_index(home: Home, tmp_path: Path) -> None:
    add_file(home, stored(home, 1, 5))
    refresh_index(home)
    moved = Home(home.root.rename(tmp_path / "moved"))
    assert refresh_index(moved).added == 0
    with open_index(moved) as index:
        assert_index_agrees(moved, index, ["text"])


def test_without_text_the_index_holds_none(home: Home) -> None:
    add_file(home, stored(home, 1, 5, content_text="verysecretword", role="user"))
    with open_index(home) as index:
        assert find_word(index, "verysecretword").total() == 5
    set_value(home, "index.text", "false")
    with open_index(home) as index:
        assert_index_agrees(home, index, ["verysecretword"], with_text=False)
        assert index.text_tables() == []
    assert b"verysecretword" not in home.index.read_bytes()
    set_value(home, "index.text", "true")
    with open_index(home) as index:
        assert_index_agrees(home, index, ["verysecretword"])


def test_without_a_home_nothing_is_created(tmp_path: Path) -> None:
    missing = Home(tmp_path / "missing")
    with pytest.raises(NotReady) as raised:
        open_index(missing)
    assert (raised.value.exit_code, raised.value.repair) == (3, ("hyp setup",))
    assert not missing.root.exists()


class TestLiveRows:
    """A part that the gateway and the transcript have both recorded is shown once."""

    @pytest.mark.parametrize("kind", ["user", "answer", "call"])
    def test_in_the_spool_the_native_row_is_shown(self, home: Home, kind: str) -> None:
        append(home, [Part(1, kind).live()])
        with open_index(home) as index:
            assert count(index) == 1
        append(home, [Part(1, kind).native()])
        with open_index(home) as index:
            assert self._message_ids(index) == [Part(1, kind).native_id]

    @pytest.mark.parametrize("kind", ["user", "answer", "call"])
    def test_a_native_row_of_a_committed_live_row_waits_for_the_flush(self, home: Home, kind: str) -> None:
        append(home, [Part(1, kind).live()])
        flush(home)
        append(home, [Part(1, kind).native(), Part(2, kind).native()])
        with open_index(home) as index:
            assert self._message_ids(index) == ["live-1", Part(2, kind).native_id]

    @pytest.mark.parametrize("kind", ["user", "answer", "call"])
    def test_a_live_row_of_a_committed_native_row_is_left_out(self, home: Home, kind: str) -> None:
        append(home, [Part(1, kind).native()])
        flush(home)
        append(home, [Part(1, kind).live(), Part(2, kind).live()])
        with open_index(home) as index:
            assert self._message_ids(index) == [Part(1, kind).native_id, "live-2"]

    def test_equal_texts_match_one_to_one(self, home: Home) -> None:
        append(home, [Part(number, text="continue").native() for number in (1, 2)])
        flush(home)
        append(home, [Part(number, text="continue").live() for number in (1, 2, 3)])
        with open_index(home) as index:
            assert count(index) == 3

    @staticmethod
    def _message_ids(index: Index) -> list[str]:
        from hypaware.index.blocks import read_contents

        seqs = [seq for (seq,) in index.connection.execute("SELECT seq FROM parts ORDER BY at, seq")]
        contents = read_contents(index, seqs)
        return [contents[seq].message_id for seq in seqs]


class TestUnreadableFiles:
    def data_files(self, home: Home) -> list[Path]:
        return sorted(home.warehouse.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)

    @pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PAR1 garbage PAR1")])
    def test_the_rows_of_other_files_are_shown_with_a_warning(self, home: Home, damage: Any) -> None:
        add_file(home, stored(home, 1, 3))
        add_file(home, stored(home, 4, 3))
        saved = self.data_files(home)[-1].read_bytes()
        broken = self.data_files(home)[-1]
        damage(broken)
        for _ in range(2):
            notes: list[str] = []
            with open_index(home, note=notes.append) as index:
                assert count(index) == 3
            assert len(notes) == 1
            assert str(broken) in notes[0]
            assert "hyp verify" in notes[0]
        broken.write_bytes(saved)
        with open_index(home) as index:
            assert_index_agrees(home, index, ["text"])

    def test_a_file_that_is_compacted_and_expired_during_a_refresh(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add_file(home, stored(home, 1, 3))
        plan_lake = refresh.plan_lake
        plans = []

        def plan_then_compact(where: Home, connection: Any) -> Any:
            plans.append(plan_lake(where, connection))
            if len(plans) == 1:
                before = self.data_files(home)
                rewrite(home, lambda each: each)
                for path in before:
                    path.unlink()
            return plans[-1]

        monkeypatch.setattr(refresh, "plan_lake", plan_then_compact)
        notes: list[str] = []
        with open_index(home, note=notes.append) as index:
            assert_index_agrees(home, index, ["text"])
        assert notes == []


def test_rows_that_another_program_deleted_are_shown_with_a_warning(home: Home) -> None:
    add_file(home, stored(home, 1, 3))
    read_manifests = metadata.read_manifests
    deletes = metadata.ManifestFile(home.warehouse / "deletes.avro", 1, 1, deletes=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata, "read_manifests", lambda snapshot: [*read_manifests(snapshot), deletes])
        refresh_index(home)
    for _ in range(2):
        notes: list[str] = []
        open_index(home, note=notes.append).close()
        assert len(notes) == 1
        assert "delete files" in notes[0]
