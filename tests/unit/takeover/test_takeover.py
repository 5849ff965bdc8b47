"""Taking over a cache on a light lake: every row once, in order, without changing the cache."""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
from collections import Counter
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.variant_utils import VariantUtils

from hypaware import config
from hypaware.errors import HypError
from hypaware.home import Home, durable_files
from hypaware.iceberg import metadata
from hypaware.lake import prepare, tombstones
from hypaware.lake.tombstones import Tombstone
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import GATEWAY, SEQ, SOURCE
from hypaware.state import flushes
from hypaware.state.home_opener import open_home, read_identity
from hypaware.takeover import rows
from hypaware.takeover.plan import dry_run_takeover
from hypaware.takeover.table import CacheDamaged
from tests.support.claude_transcripts import SAMPLES, unpacked
from tests.support.deletion_vectors import vector
from tests.support.light_home import append, import_history
from tests.support.light_lake import read_lake
from tests.support.light_takeover import take_over
from tests.support.original_cache import DATASET, SAMPLE, Builder, installation, row, spool


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "old" / "hypaware" / "cache"


def lake(home: Home) -> list[dict[str, Any]]:
    """Return the lake's rows by sequence; check that sequences and parts are unique."""
    rows = sorted(read_lake(home, DATASET), key=lambda each: int(each[SEQ]))
    assert len({each[SEQ] for each in rows}) == len(rows)
    assert Counter(each["part_id"] for each in rows).total() == len({each["part_id"] for each in rows})
    return rows


def parts(home: Home) -> list[str]:
    return [each["part_id"].removeprefix("old-").removesuffix("#0") for each in lake(home)]


def of_source(report: dict[str, Any], source: str = "claude") -> dict[str, Any]:
    (found,) = [each for each in report["datasets"][0]["sources"] if each["source"] == source]
    return dict(found)


def counts(report: dict[str, Any]) -> tuple[int, int, int, int]:
    counts_of_source = of_source(report)
    return (
        counts_of_source["rows_found"],
        counts_of_source["rows_written"],
        counts_of_source["rows_duplicate"],
        counts_of_source["rows_rejected"],
    )


def fingerprints(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in [folder, *folder.rglob("*")]
    }


def contents(folder: Path) -> dict[str, str]:
    return {name: counts_of_source for name, (counts_of_source, _) in fingerprints(folder).items()}


def sample_rows() -> dict[str, dict[str, Any]]:
    """Read the sample independently: Arrow for the files, Spark's own reader for their VARIANTs."""
    found = {}
    for path in (SAMPLE / "datasets" / DATASET / "source=claude" / "table" / "data").glob("*.parquet"):
        for each in pq.read_table(path).to_pylist():
            counts_of_source = {name: _plain(value) for name, value in each.items()}
            found[counts_of_source["part_id"]] = counts_of_source
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return orjson.loads(VariantUtils.to_json(value["value"], value["metadata"]))
    return format_timestamp(value) if isinstance(value, datetime) else value


def test_every_row_of_the_sample_is_imported_once_with_all_columns(home: Home) -> None:
    report = take_over(home, SAMPLE)
    assert counts(report) == (1481, 1481, 0, 0)
    expected = sample_rows()
    found = lake(home)
    assert [expected[each["part_id"]][SEQ] for each in found] == list(range(1, 1482))
    own = read_identity(home).gateway_id
    json_columns = {"tools", "previous_message_id", "tool_args", "compact_metadata", "status", "raw_frame"}
    for each in found:
        original = expected.pop(each["part_id"])
        attributes = orjson.loads(each["attributes"])
        assert attributes["gateway"].pop("taken_over_from") == original["gateway_id"] == "hypaware-local"
        assert attributes == original["attributes"]
        for name in original.keys() - {"attributes", "gateway_id", SEQ}:
            value = orjson.loads(each[name]) if name in json_columns and each[name] is not None else _plain(each[name])
            assert value == original[name], name
        assert (each[GATEWAY], each[SOURCE]) == (own, "claude")
    assert expected == {}


def test_a_read_only_cache_is_imported_and_not_changed(home: Home, cache: Path) -> None:
    installation(cache.parents[1])
    spool(cache, [row(1)])
    for path in sorted(cache.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    cache.chmod(0o555)
    before = fingerprints(cache.parents[1])
    dry_run_takeover(home, config.load(home), {"dir": str(cache)}, lambda *_: None)
    assert not home.root.exists()
    take_over(home, cache)
    assert fingerprints(cache.parents[1]) == before
    assert len(lake(home)) == 1482


def damage_column(parquet: Path, column: str) -> None:
    """Damage one column, so that reading a whole row of the file fails."""
    group = pq.read_metadata(parquet).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    (found,) = [each for each in chunks if each.path_in_schema == column]
    index = found.dictionary_page_offset or found.data_page_offset
    with parquet.open("r+b") as file:
        file.seek(index)
        file.write(bytes(found.total_compressed_size))
    with pytest.raises(OSError, match="page header"):
        pq.read_table(parquet)


def test_a_second_run_reads_only_new_rows(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(n) for n in range(5)], range(5))
    builder.commit()
    first = spool(cache, [row(5)])
    assert counts(take_over(home, cache)) == (6, 6, 0, 0)
    again = take_over(home, cache)
    assert (counts(again), again["datasets"][0]["rows_taken_before"]) == ((5, 0, 5, 0), 5)
    assert again["datasets"][0]["flush_id"] is None
    # The spool was flushed and another row arrived; the imported data file is not read again.
    first.unlink()
    builder.add([row(5)], [5])
    builder.commit()
    spool(cache, [row(6)])
    damage_column(builder.folder / "data" / "00000000.parquet", "message_id")
    assert counts(take_over(home, cache)) == (7, 1, 6, 0)
    spool(cache, [row(7)])
    assert counts(take_over(home, cache)) == (7, 1, 6, 0)
    assert parts(home) == ["0", "1", "2", "3", "4", "5", "6", "7"]


def test_a_moved_cache_or_a_lost_state_does_not_duplicate_rows(home: Home, cache: Path, tmp_path: Path) -> None:
    builder = Builder(cache)
    builder.add([row(n) for n in range(5)], range(5))
    builder.commit()
    spool(cache, [row(5)])
    take_over(home, cache)
    moved = cache.rename(tmp_path / "elsewhere")
    assert counts(take_over(home, moved)) == (5, 0, 5, 0)
    for name in ("state.db", "state.mirror.json"):
        (home.root / name).unlink()
    assert counts(take_over(home, moved)) == (6, 0, 6, 0)
    assert len(lake(home)) == 6


@pytest.mark.hazard(23)
def test_rows_without_a_sequence_come_first_then_the_old_order_then_the_spool(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(20), row(4), row(10)], [20, None, 10])
    builder.add([row(0), row(1)], None)
    builder.add([row(15), row(5)], [15, 5])
    builder.commit()
    spool(cache, [row(99)])
    spool(cache, [row(98)], name="flush-1-2-3.jsonl", folder="all")
    report = take_over(home, cache)
    assert parts(home) == ["4", "0", "1", "5", "10", "15", "20", "98", "99"]
    counts_of_source = of_source(report)
    assert (
        counts_of_source["without_sequence"],
        counts_of_source["pending_spool"],
        counts_of_source["rows_written"],
    ) == (3, 2, 9)
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.load_high_water(connection)[DATASET]["claude"] == max(each[SEQ] for each in lake(home))


@pytest.mark.hazard(14)
def test_rows_that_share_an_old_sequence_get_different_sequences(home: Home, cache: Path) -> None:
    """Two processes of the original could reserve the same block of sequences."""
    builder = Builder(cache)
    builder.add([row(n) for n in (1, 2, 3)], [1, 2, 3])
    builder.add([row(n) for n in (11, 12, 13)], [1, 2, 2])
    builder.commit()
    assert counts(take_over(home, cache)) == (6, 6, 0, 0)
    assert parts(home) == ["1", "11", "2", "12", "13", "3"]


def test_of_a_duplicate_part_the_older_row_is_imported(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(1, content_text="newer"), row(2)], [7, 8])
    builder.add([row(1, content_text="older")], [3])
    builder.commit()
    spool(cache, [row(2), row(3)])
    assert counts(take_over(home, cache)) == (5, 3, 2, 0)
    first = lake(home)[0]
    assert (first["part_id"], first["content_text"]) == ("old-1#0", "older")


def test_rows_in_the_homes_own_spool_are_not_imported_again(home: Home, cache: Path) -> None:
    own_row = {name: value for name, value in row(2).items() if name != "gateway_id"}
    append(home, [own_row])
    builder = Builder(cache)
    builder.add([row(1), row(2), row(3)], [1, 2, 3])
    builder.commit()
    assert counts(take_over(home, cache)) == (3, 2, 1, 0)
    assert sorted(parts(home)) == ["1", "2", "3"]


def test_a_later_import_of_the_transcripts_does_not_duplicate_imported_rows(home: Home, cache: Path) -> None:
    """Import the rows that the original made of these transcripts, then the transcripts themselves."""
    text = lzma.decompress((SAMPLES / "original-rows.jsonl.xz").read_bytes())
    originals = [orjson.loads(line) for line in text.splitlines()]
    spool(cache, originals)
    report = take_over(home, cache)
    assert counts(report)[3] == 0
    before = parts(home)
    config = cache.parents[1] / "claude"
    unpacked(config / "projects" / "-project")
    outcome = import_history(home, {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(config)})
    assert outcome.rows_skipped >= 164, "the rows were made of these transcripts"
    assert outcome.rows.written == 0
    assert parts(home) == before


def test_rows_deleted_in_the_original_are_not_imported(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    kept = builder.add([row(n) for n in range(6)], range(6))
    builder.delete(kept, vector({1, 4}), 2)
    builder.commit()
    assert counts(take_over(home, cache)) == (4, 4, 0, 0)
    assert parts(home) == ["0", "2", "3", "5"]


@pytest.mark.hazard(84)
def test_rows_older_than_retention_keeps_are_not_imported(
    home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "read_retention_start", lambda _home, _table: "2026-09-02")
    builder = Builder(cache)
    builder.add([row(n) for n in (10, 59, 60, 61)], [1, 2, 3, 4])
    builder.commit()
    report = take_over(home, cache)
    assert (of_source(report)["rows_too_old"], of_source(report)["rows_duplicate"]) == (2, 0)
    assert parts(home) == ["60", "61"]


@pytest.mark.hazard(85)
def test_rows_purged_here_are_not_imported_from_a_cache(home: Home, cache: Path) -> None:
    read_identity(home)
    durable_files.make_dir(home.lake)
    index = "2026-11-15T00:00:00Z"
    tombstones.create_tombstones(home, [Tombstone("session", "session-2", "hyp purge --session session-2")], index)
    builder = Builder(cache)
    builder.add([row(1), row(2, session_id="session-2"), row(3)], [1, 2, 3])
    builder.commit()
    spool(cache, [row(4, session_id="session-2"), row(5), row(3)])
    planned = dry_run_takeover(home, config.load(home), {"dir": str(cache)}, lambda *_: None)
    done = take_over(home, cache)
    for report in (planned, done):
        assert (*counts(report), of_source(report)["rows_purged"]) == (6, 3, 1, 0, 2)
    assert parts(home) == ["1", "3", "5"]


@pytest.mark.hazard(85)
def test_rows_purged_here_are_counted_for_a_cache_without_a_spool(home: Home, cache: Path) -> None:
    read_identity(home)
    durable_files.make_dir(home.lake)
    purged = Tombstone("session", "session-2", "hyp purge --session session-2")
    tombstones.create_tombstones(home, [purged], "2026-11-15T00:00:00Z")
    builder = Builder(cache)
    builder.add([row(1), row(2, session_id="session-2"), row(3)], [1, 2, 3])
    builder.commit()
    report = take_over(home, cache)
    assert (*counts(report), of_source(report)["rows_purged"]) == (3, 2, 0, 0, 1)


def test_values_without_a_column_are_kept_in_attributes_and_reported(home: Home, cache: Path) -> None:
    moment = datetime.fromisoformat("2026-09-01T00:00:00Z")
    builder = Builder(cache, more={"mood": pa.string(), "seen_at": pa.timestamp("us", tz="UTC"), "blob": pa.binary()})
    builder.add([row(1, mood="calm", seen_at=moment.isoformat(), blob=b"\xff"), row(2)], [1, 2])
    builder.commit()
    spool(cache, [row(3, schema_version=6, attributes="[1]", mood={"deep": [1]}), row(4, attributes=None)])
    report = take_over(home, cache)
    assert report["datasets"][0]["columns_set_aside"] == {
        "attributes": 1,
        "blob": 1,
        "mood": 2,
        "schema_version": 1,
        "seen_at": 1,
    }
    found = [orjson.loads(each["attributes"]) for each in lake(home)]
    assert found[0]["taken_over"] == {"mood": "calm", "seen_at": "2026-09-01T00:00:00.000000Z", "blob": "/w=="}
    assert found[0]["client"] == {"name": "claude", "version": "1"}
    assert "taken_over" not in found[1]
    assert found[2]["taken_over"] == {"attributes": [1], "mood": {"deep": [1]}, "schema_version": 6}
    assert found[3] == {"gateway": {"taken_over_from": "hypaware-local"}}
    assert {each["schema_version"] for each in lake(home)} == {7}


def test_rows_that_cannot_be_stored_are_kept_as_rejects(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(1), row(2, part_id="another#9"), row(3), row(9), row(10)], [1, 2, 3, 9, 10])
    damaged = builder.folder / "data" / "00000000.parquet"
    table = pq.read_table(damaged)
    times = table.column("message_created_at").cast(pa.int64()).to_pylist()
    times[3] = 2**62
    statuses = table.column("status").to_pylist()
    statuses[4] = {"metadata": b"\x01\x00\x00", "value": b"\xff"}
    for name, values in (("message_created_at", times), ("status", statuses)):
        index = table.schema.get_field_index(name)
        table = table.set_column(
            index, table.schema.field(index), pa.array(values).cast(table.schema.field(index).type)
        )
    pq.write_table(table, damaged)
    builder.entries[0]["data_file"]["file_size_in_bytes"] = damaged.stat().st_size
    builder.commit()
    path = spool(cache, [row(4, role=None), "no row", row(5)])
    with path.open("a") as file:
        file.write('{"version": 2, "columns": [], "rows": []}\nnot json\n\n')
        file.write('{"version": 1, "columns": [], "rows": [')
    report = take_over(home, cache)
    counts_of_source = report["datasets"][0]
    assert counts(report) == (7, 3, 0, 4)
    assert (counts_of_source["not_rows"], counts_of_source["torn_bytes"]) == (3, 39)
    assert parts(home) == ["1", "3", "5"]
    kept = [
        orjson.loads(line) for path in home.spool.rglob("rejected/*.jsonl") for line in path.read_bytes().splitlines()
    ]
    assert sorted(each["reason"].split(":")[0] for each in kept) == [
        "column message_created_at",
        "column part_id",
        "column role is required",
        "column status",
        "the line is not an envelope of version 1 with columns and rows",
        "the line is not an envelope of version 1 with columns and rows",
        "the row is not a JSON object",
    ]
    assert prepare.count_all_rejects(home, DATASET) == 7
    # The incomplete line is finished later; its rows are imported then.
    with path.open("a") as file:
        file.write(f"{json.dumps(row(6))}]}}\n")
    assert counts(take_over(home, cache)) == (6, 1, 5, 0)
    assert prepare.count_all_rejects(home, DATASET) == 7


def test_a_missing_or_damaged_file_stops_the_takeover_unless_skipped(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    names = [builder.add([row(10 * n + index) for index in range(3)], range(10 * n, 10 * n + 3)) for n in range(4)]
    builder.commit()
    Builder(cache, "source=codex").commit({"tableDir": "gone"})
    (builder.folder / names[1]).unlink()
    (builder.folder / names[2]).write_bytes((builder.folder / names[2]).read_bytes()[:-9])
    another = builder.folder / names[3]
    pq.write_table(pq.read_table(another), another, compression="none")
    with pytest.raises(CacheDamaged, match=r"and 3 more.*--skip-unreadable"):
        take_over(home, cache)
    assert lake(home) == []
    report = take_over(home, cache, skip_unreadable=True)
    assert counts(report) == (3, 3, 0, 0)
    assert len(report["not_taken"]) == 4
    assert parts(home) == ["0", "1", "2"]


def test_damage_found_while_reading_withdraws_the_rows_of_the_file(
    home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_BATCH_ROWS", 1)
    builder = Builder(cache)
    builder.add([row(n) for n in (1, 3)], [1, 3])
    broken = builder.folder / builder.add([row(n, content_text="some text " * 9) for n in (2, 4)], [2, 4])
    pq.write_table(pq.read_table(broken), broken, row_group_size=1)
    builder.entries[1]["data_file"]["file_size_in_bytes"] = broken.stat().st_size
    builder.commit()
    # The first row can be read, the second cannot.
    group = pq.read_metadata(broken).row_group(1)
    index = next(group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == "content_text")
    content = bytearray(broken.read_bytes())
    start = index.dictionary_page_offset or index.data_page_offset
    content[start : start + 12] = b"\xff" * 12
    broken.write_bytes(content)
    with pytest.raises(CacheDamaged, match="cannot read"):
        take_over(home, cache)
    assert lake(home) == []
    report = take_over(home, cache, skip_unreadable=True)
    assert counts(report) == (2, 2, 0, 0)
    assert "cannot read" in report["not_taken"][0]["why"]
    assert parts(home) == ["1", "3"]


def test_a_dataset_that_is_not_installed_is_reported(home: Home, cache: Path) -> None:
    installation(cache.parents[1])
    shutil.copytree(cache / "datasets" / DATASET, cache / "datasets" / "logs")
    report = take_over(home, cache)
    assert [(each["what"], each["rows"]) for each in report["not_taken"]] == [("dataset logs", 1481)]
    assert counts(report)[1] == 1481


def test_a_dry_run_predicts_the_real_run_and_changes_nothing(home: Home, cache: Path) -> None:
    append(home, [{name: value for name, value in row(2).items() if name != "gateway_id"}])
    builder = Builder(cache)
    builder.add([row(n) for n in range(5)], [None, 1, 2, 3, 4])
    builder.add([row(3)], [9])
    builder.commit()
    spool(cache, [row(4), row(5), row(6, role=None), "no row"])
    read_identity(home)
    before = contents(home.root)
    planned = dry_run_takeover(home, config.load(home), {"dir": str(cache)}, lambda *_: None)
    assert contents(home.root) == before
    assert counts(planned) == (9, 5, 3, 1)
    done = take_over(home, cache)
    unplanned = dict.fromkeys(("seq_after", "seq_last", "flush_id"))
    assert [{**each, **unplanned} for each in done["datasets"]] == planned["datasets"]
    assert {**planned, "dry_run": False, "datasets": []} == {**done, "datasets": []}


def test_a_spool_flushed_during_the_import_stops_the_takeover(
    home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spool(cache, [row(1), row(2)])

    def flushed(_home: Home, _table: str) -> None:
        # Called after the survey, before the rows are read.
        path.unlink()
        spool(cache, [row(3)])

    monkeypatch.setattr(metadata, "read_retention_start", flushed)
    with pytest.raises(HypError, match="flushed or replaced during the import"):
        take_over(home, cache)
    assert lake(home) == []
