"""Taking a cache over, on a light lake: every row once, in order, without changing the cache."""

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

from hypaware import config as configuration
from hypaware import durable
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.lake import metadata, rejects, tombstones
from hypaware.lake.tombstones import Stone
from hypaware.model.columns import timestamp_text
from hypaware.model.datasets import GATEWAY, SEQ, SOURCE
from hypaware.opening import identify, open_home
from hypaware.state import flushes
from hypaware.takeover import pieces
from hypaware.takeover.dry import dry_run
from hypaware.takeover.table import CacheDamaged
from tests.claude_transcripts import SAMPLES, unpacked
from tests.light_lake import read_lake
from tests.light_life import append, import_history
from tests.unit.takeover.light_takeover import taken
from tests.unit.takeover.original_cache import DATASET, SAMPLE, Builder, installation, row, spool
from tests.unit.takeover.vectors import vector


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "old" / "hypaware" / "cache"


def lake(home: Home) -> list[dict[str, Any]]:
    """In the order of the sequences, each of them once, and each part once."""
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
    told = of_source(report)
    return told["rows_found"], told["rows_written"], told["rows_duplicate"], told["rows_rejected"]


def prints(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
        )
        for path in [folder, *folder.rglob("*")]
    }


def contents(folder: Path) -> dict[str, str]:
    return {name: told for name, (told, _) in prints(folder).items()}


def sample_rows() -> dict[str, dict[str, Any]]:
    """The sample by another way: Arrow for the files, Spark's own reader for their VARIANTs."""
    found = {}
    for path in (SAMPLE / "datasets" / DATASET / "source=claude" / "table" / "data").glob("*.parquet"):
        for each in pq.read_table(path).to_pylist():
            told = {name: _plain(value) for name, value in each.items()}
            found[told["part_id"]] = told
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return orjson.loads(VariantUtils.to_json(value["value"], value["metadata"]))
    return timestamp_text(value) if isinstance(value, datetime) else value


def test_every_row_of_the_sample_arrives_once_with_all_its_columns(home: Home) -> None:
    report = taken(home, SAMPLE)
    assert counts(report) == (1481, 1481, 0, 0)
    expected = sample_rows()
    found = lake(home)
    assert [expected[each["part_id"]][SEQ] for each in found] == list(range(1, 1482))
    own = identify(home).gateway_id
    json_columns = {"tools", "previous_message_id", "tool_args", "compact_metadata", "status", "raw_frame"}
    for each in found:
        was = expected.pop(each["part_id"])
        attributes = orjson.loads(each["attributes"])
        assert attributes["gateway"].pop("taken_over_from") == was["gateway_id"] == "hypaware-local"
        assert attributes == was["attributes"]
        for name in was.keys() - {"attributes", "gateway_id", SEQ}:
            value = orjson.loads(each[name]) if name in json_columns and each[name] is not None else _plain(each[name])
            assert value == was[name], name
        assert (each[GATEWAY], each[SOURCE]) == (own, "claude")
    assert expected == {}


def test_the_cache_is_left_as_it_was_also_where_nobody_may_write(home: Home, cache: Path) -> None:
    installation(cache.parents[1])
    spool(cache, [row(1)])
    for path in sorted(cache.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    cache.chmod(0o555)
    before = prints(cache.parents[1])
    dry_run(home, configuration.load(home), {"dir": str(cache)}, lambda *_: None)
    assert not home.root.exists()
    taken(home, cache)
    assert prints(cache.parents[1]) == before
    assert len(lake(home)) == 1482


def take_out(parquet: Path, column: str) -> None:
    """Whoever reads a whole row of it fails, also one who may read every file."""
    group = pq.read_metadata(parquet).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    (found,) = [each for each in chunks if each.path_in_schema == column]
    at = found.dictionary_page_offset or found.data_page_offset
    with parquet.open("r+b") as file:
        file.seek(at)
        file.write(bytes(found.total_compressed_size))
    with pytest.raises(OSError, match="page header"):
        pq.read_table(parquet)


def test_a_second_run_reads_no_row_and_a_grown_cache_gives_its_news(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(n) for n in range(5)], range(5))
    builder.commit()
    first = spool(cache, [row(5)])
    assert counts(taken(home, cache)) == (6, 6, 0, 0)
    again = taken(home, cache)
    assert (counts(again), again["datasets"][0]["rows_taken_before"]) == ((5, 0, 5, 0), 5)
    assert again["datasets"][0]["flush_id"] is None
    # What waited was flushed, another row came, and of the file that was taken no row is read again.
    first.unlink()
    builder.add([row(5)], [5])
    builder.commit()
    spool(cache, [row(6)])
    take_out(builder.folder / "data" / "00000000.parquet", "message_id")
    assert counts(taken(home, cache)) == (7, 1, 6, 0)
    spool(cache, [row(7)])
    assert counts(taken(home, cache)) == (7, 1, 6, 0)
    assert parts(home) == ["0", "1", "2", "3", "4", "5", "6", "7"]


def test_a_moved_cache_and_a_lost_state_give_nothing_twice(home: Home, cache: Path, tmp_path: Path) -> None:
    builder = Builder(cache)
    builder.add([row(n) for n in range(5)], range(5))
    builder.commit()
    spool(cache, [row(5)])
    taken(home, cache)
    moved = cache.rename(tmp_path / "elsewhere")
    assert counts(taken(home, moved)) == (5, 0, 5, 0)
    for name in ("state.db", "state.mirror.json"):
        (home.root / name).unlink()
    assert counts(taken(home, moved)) == (6, 0, 6, 0)
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
    report = taken(home, cache)
    assert parts(home) == ["4", "0", "1", "5", "10", "15", "20", "98", "99"]
    told = of_source(report)
    assert (told["without_sequence"], told["pending_spool"], told["rows_written"]) == (3, 2, 9)
    with closing(open_home(home).store) as store, store.reading() as connection:
        assert flushes.high_water(connection)[DATASET]["claude"] == max(each[SEQ] for each in lake(home))


@pytest.mark.hazard(14)
def test_rows_that_share_an_old_sequence_get_sequences_of_their_own(home: Home, cache: Path) -> None:
    """Two processes of the original could give out the same block."""
    builder = Builder(cache)
    builder.add([row(n) for n in (1, 2, 3)], [1, 2, 3])
    builder.add([row(n) for n in (11, 12, 13)], [1, 2, 2])
    builder.commit()
    assert counts(taken(home, cache)) == (6, 6, 0, 0)
    assert parts(home) == ["1", "11", "2", "12", "13", "3"]


def test_a_part_that_is_there_twice_is_taken_once_the_older_one(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(1, content_text="newer"), row(2)], [7, 8])
    builder.add([row(1, content_text="older")], [3])
    builder.commit()
    spool(cache, [row(2), row(3)])
    assert counts(taken(home, cache)) == (5, 3, 2, 0)
    first = lake(home)[0]
    assert (first["part_id"], first["content_text"]) == ("old-1#0", "older")


def test_rows_that_the_home_has_are_not_taken_again_wherever_they_wait(home: Home, cache: Path) -> None:
    mine = {name: value for name, value in row(2).items() if name != "gateway_id"}
    append(home, [mine])
    builder = Builder(cache)
    builder.add([row(1), row(2), row(3)], [1, 2, 3])
    builder.commit()
    assert counts(taken(home, cache)) == (3, 2, 1, 0)
    assert sorted(parts(home)) == ["1", "2", "3"]


def test_a_later_import_of_the_transcripts_does_not_double_what_was_taken_over(home: Home, cache: Path) -> None:
    """The rows that the original made of these transcripts, and then the transcripts themselves."""
    text = lzma.decompress((SAMPLES / "original-rows.jsonl.xz").read_bytes())
    originals = [orjson.loads(line) for line in text.splitlines()]
    spool(cache, originals)
    report = taken(home, cache)
    assert counts(report)[3] == 0
    before = parts(home)
    config = cache.parents[1] / "claude"
    unpacked(config / "projects" / "-project")
    outcome = import_history(home, {"HOME": "/nonexistent", "CLAUDE_CONFIG_DIR": str(config)})
    assert outcome.rows_skipped >= 164, "the transcripts are the ones that these rows were made of"
    assert outcome.rows_written == 0
    assert parts(home) == before


def test_purged_and_expired_rows_of_the_original_stay_away(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    kept = builder.add([row(n) for n in range(6)], range(6))
    builder.delete(kept, vector({1, 4}), 2)
    builder.commit()
    assert counts(taken(home, cache)) == (4, 4, 0, 0)
    assert parts(home) == ["0", "2", "3", "5"]


@pytest.mark.hazard(84)
def test_what_retention_dropped_here_does_not_come_back(
    home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "retained_from", lambda _home, _table: "2026-09-02")
    builder = Builder(cache)
    builder.add([row(n) for n in (10, 59, 60, 61)], [1, 2, 3, 4])
    builder.commit()
    report = taken(home, cache)
    assert (of_source(report)["rows_too_old"], of_source(report)["rows_duplicate"]) == (2, 0)
    assert parts(home) == ["60", "61"]


@pytest.mark.hazard(85)
def test_what_was_purged_here_does_not_come_back_through_a_cache(home: Home, cache: Path) -> None:
    identify(home)
    durable.make_dir(home.lake)
    at = "2026-11-15T00:00:00Z"
    tombstones.set_up(home, [Stone("session", "session-2", "hyp purge --session session-2")], at)
    builder = Builder(cache)
    builder.add([row(1), row(2, session_id="session-2"), row(3)], [1, 2, 3])
    builder.commit()
    spool(cache, [row(4, session_id="session-2"), row(5), row(3)])
    foretold = dry_run(home, configuration.load(home), {"dir": str(cache)}, lambda *_: None)
    done = taken(home, cache)
    for report in (foretold, done):
        assert (*counts(report), of_source(report)["rows_purged"]) == (6, 3, 1, 0, 2)
    assert parts(home) == ["1", "3", "5"]


def test_what_ours_has_no_column_for_is_kept_and_told(home: Home, cache: Path) -> None:
    moment = datetime.fromisoformat("2026-09-01T00:00:00Z")
    builder = Builder(cache, more={"mood": pa.string(), "seen_at": pa.timestamp("us", tz="UTC"), "blob": pa.binary()})
    builder.add([row(1, mood="calm", seen_at=moment.isoformat(), blob=b"\xff"), row(2)], [1, 2])
    builder.commit()
    spool(cache, [row(3, schema_version=6, attributes="[1]", mood={"deep": [1]}), row(4, attributes=None)])
    report = taken(home, cache)
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


def test_rows_that_cannot_be_stored_are_kept_with_the_reason(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    builder.add([row(1), row(2, part_id="another#9"), row(3), row(9), row(10)], [1, 2, 3, 9, 10])
    spoilt = builder.folder / "data" / "00000000.parquet"
    held = pq.read_table(spoilt)
    moments = held.column("message_created_at").cast(pa.int64()).to_pylist()
    moments[3] = 2**62
    statuses = held.column("status").to_pylist()
    statuses[4] = {"metadata": b"\x01\x00\x00", "value": b"\xff"}
    for name, values in (("message_created_at", moments), ("status", statuses)):
        at = held.schema.get_field_index(name)
        held = held.set_column(at, held.schema.field(at), pa.array(values).cast(held.schema.field(at).type))
    pq.write_table(held, spoilt)
    builder.entries[0]["data_file"]["file_size_in_bytes"] = spoilt.stat().st_size
    builder.commit()
    path = spool(cache, [row(4, role=None), "no row", row(5)])
    with path.open("a") as file:
        file.write('{"version": 2, "columns": [], "rows": []}\nnot json\n\n')
        file.write('{"version": 1, "columns": [], "rows": [')
    report = taken(home, cache)
    told = report["datasets"][0]
    assert counts(report) == (7, 3, 0, 4)
    assert (told["not_rows"], told["torn_bytes"]) == (3, 39)
    assert parts(home) == ["1", "3", "5"]
    kept = [
        orjson.loads(line) for path in home.spool.rglob("rejected/*.jsonl") for line in path.read_bytes().splitlines()
    ]
    assert sorted(each["reason"].split(":")[0] for each in kept) == [
        "a row is a JSON object",
        "column message_created_at",
        "column part_id",
        "column role is required",
        "column status",
        "the line is no envelope of version 1 with columns and rows",
        "the line is no envelope of version 1 with columns and rows",
    ]
    assert rejects.total(home, DATASET) == 7
    # The line that was torn is finished later, and its rows come then.
    with path.open("a") as file:
        file.write(f"{json.dumps(row(6))}]}}\n")
    assert counts(taken(home, cache)) == (6, 1, 5, 0)
    assert rejects.total(home, DATASET) == 7


def test_a_missing_or_torn_data_file_stops_everything_unless_it_may_be_left_out(home: Home, cache: Path) -> None:
    builder = Builder(cache)
    names = [builder.add([row(10 * n + at) for at in range(3)], range(10 * n, 10 * n + 3)) for n in range(4)]
    builder.commit()
    Builder(cache, "source=codex").commit({"tableDir": "gone"})
    (builder.folder / names[1]).unlink()
    (builder.folder / names[2]).write_bytes((builder.folder / names[2]).read_bytes()[:-9])
    another = builder.folder / names[3]
    pq.write_table(pq.read_table(another), another, compression="none")
    with pytest.raises(CacheDamaged, match=r"and 3 more like it.*--skip-unreadable"):
        taken(home, cache)
    assert lake(home) == []
    report = taken(home, cache, skip_unreadable=True)
    assert counts(report) == (3, 3, 0, 0)
    assert len(report["not_taken"]) == 4
    assert parts(home) == ["0", "1", "2"]


def test_damage_that_only_reading_finds_takes_back_its_file(
    home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_BATCH_ROWS", 1)
    builder = Builder(cache)
    builder.add([row(n) for n in (1, 3)], [1, 3])
    broken = builder.folder / builder.add([row(n, content_text="some text " * 9) for n in (2, 4)], [2, 4])
    pq.write_table(pq.read_table(broken), broken, row_group_size=1)
    builder.entries[1]["data_file"]["file_size_in_bytes"] = broken.stat().st_size
    builder.commit()
    # The second row cannot be read, after the first one was.
    group = pq.read_metadata(broken).row_group(1)
    at = next(group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == "content_text")
    bytes_of = bytearray(broken.read_bytes())
    start = at.dictionary_page_offset or at.data_page_offset
    bytes_of[start : start + 12] = b"\xff" * 12
    broken.write_bytes(bytes_of)
    with pytest.raises(CacheDamaged, match="cannot be read"):
        taken(home, cache)
    assert lake(home) == []
    report = taken(home, cache, skip_unreadable=True)
    assert counts(report) == (2, 2, 0, 0)
    assert "cannot be read" in report["not_taken"][0]["why"]
    assert parts(home) == ["1", "3"]


def test_a_dataset_that_is_not_installed_is_told_of(home: Home, cache: Path) -> None:
    installation(cache.parents[1])
    shutil.copytree(cache / "datasets" / DATASET, cache / "datasets" / "logs")
    report = taken(home, cache)
    assert [(each["what"], each["rows"]) for each in report["not_taken"]] == [("dataset logs", 1481)]
    assert counts(report)[1] == 1481


def test_a_dry_run_says_what_a_real_one_does_and_leaves_no_trace(home: Home, cache: Path) -> None:
    append(home, [{name: value for name, value in row(2).items() if name != "gateway_id"}])
    builder = Builder(cache)
    builder.add([row(n) for n in range(5)], [None, 1, 2, 3, 4])
    builder.add([row(3)], [9])
    builder.commit()
    spool(cache, [row(4), row(5), row(6, role=None), "no row"])
    identify(home)
    before = contents(home.root)
    foretold = dry_run(home, configuration.load(home), {"dir": str(cache)}, lambda *_: None)
    assert contents(home.root) == before
    assert counts(foretold) == (9, 5, 3, 1)
    done = taken(home, cache)
    left_open = dict.fromkeys(("seq_after", "seq_last", "flush_id"))
    assert [{**each, **left_open} for each in done["datasets"]] == foretold["datasets"]
    assert {**foretold, "dry_run": False, "datasets": []} == {**done, "datasets": []}


def test_a_spool_that_is_flushed_while_it_is_read_stops_the_take_over(
    home: Home, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = spool(cache, [row(1), row(2)])

    def flushed(_home: Home, _table: str) -> None:
        """After the survey, before the rows are read."""
        path.unlink()
        spool(cache, [row(3)])

    monkeypatch.setattr(metadata, "retained_from", flushed)
    with pytest.raises(HypError, match="flushed or replaced meanwhile"):
        taken(home, cache)
    assert lake(home) == []
