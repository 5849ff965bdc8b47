"""Finding a cache of the original and listing its contents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.errors import HypError
from hypaware.takeover import cache, watermarks
from hypaware.takeover.table import CacheDamaged
from tests.support.original_cache import DATASET, SAMPLE, Builder, installation, row, spool, watermark


def test_the_sample_has_one_partition_and_an_empty_spool() -> None:
    found = cache.find_cache(SAMPLE)
    assert [(each.dataset, each.name) for each in found.partitions] == [(DATASET, "source=claude")]
    assert found.spools == []
    assert found.datasets == [DATASET]


def test_a_cache_is_found_from_any_directory_above_it(tmp_path: Path) -> None:
    root = installation(tmp_path)
    assert {cache.find_cache(path).root for path in (root, root.parent, tmp_path)} == {root}


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_that_is_not_a_cache_is_refused(tmp_path: Path, exists: bool) -> None:
    with pytest.raises(HypError, match="has no directory `datasets`" if exists else "does not exist") as refused:
        cache.find_cache(tmp_path if exists else tmp_path / "nothing")
    assert refused.value.kind == "not_a_cache"


def test_older_layouts_are_read_and_retired_partitions_and_links_are_not(tmp_path: Path) -> None:
    Builder(tmp_path, "client=claude/date=2026-09-01", "epoch=3").commit({"epoch": 3, "rowCount": 0})
    Builder(tmp_path, "source=codex", "table-7").commit()
    Builder(tmp_path, ".retired/source=old").commit()
    bare = Builder(tmp_path, "all", "")
    bare.commit()
    (bare.folder.parent / "cursor.json").unlink()
    (tmp_path / "datasets" / DATASET / "source=elsewhere").symlink_to(SAMPLE)
    found = cache.find_cache(tmp_path)
    assert {each.name: each.live_table().name for each in found.partitions} == {
        "client=claude/date=2026-09-01": "epoch=3",
        "source=codex": "table-7",
        "all": "all",
    }
    assert [path.name for path in found.not_followed] == ["source=elsewhere"]


@pytest.mark.parametrize(
    ("cursor", "message"),
    [
        ({"tableDir": "table-9"}, "table-9, which does not exist"),
        ({"tableDir": "../source=codex/table"}, "not a directory next to it"),
        ({"tableDir": ".."}, "not a directory next to it"),
        ({"tableDir": 7}, "not a directory next to it"),
        ("[1", "cannot read"),
        ([], "is not a cursor"),
    ],
)
def test_a_cursor_that_names_no_table_raises_cache_damaged(tmp_path: Path, cursor: object, message: str) -> None:
    builder = Builder(tmp_path).commit()
    text = cursor if isinstance(cursor, str) else json.dumps(cursor)
    (builder.folder.parent / "cursor.json").write_text(text)
    (partition,) = cache.find_cache(tmp_path).partitions
    with pytest.raises(CacheDamaged, match=message):
        partition.live_table()


def test_spool_files_are_listed_oldest_first_without_flushed_bytes(tmp_path: Path) -> None:
    active = spool(tmp_path, [row(3)])
    old = spool(tmp_path, [row(1)], name="flush-1700-9-a.jsonl")
    partly_flushed = spool(tmp_path, [row(0)], name="flush-1600-9-a.jsonl")
    first = partly_flushed.stat().st_size
    spool(tmp_path, [row(2)], name=partly_flushed.name)
    partly_flushed.with_name(f"{partly_flushed.name}.progress.json").write_text(json.dumps({"byteOffset": first}))
    done = spool(tmp_path, [row(4)], name="flush-1500-9-a.jsonl")
    done.with_name(f"{done.name}.progress.json").write_text(json.dumps({"byteOffset": done.stat().st_size}))
    found = cache.find_cache(tmp_path).spools
    assert [(each.path, each.start) for each in found] == [(partly_flushed, first), (old, 0), (active, 0)]


@pytest.mark.hazard(24)
def test_watermarks_belong_to_a_sink_a_dataset_and_a_partition(tmp_path: Path) -> None:
    root = installation(tmp_path)
    watermark(root, "team", 1000)
    watermark(root, "second", 7, partition="client=claude/date=2026-09-01")
    shared = root.parent / "plugins" / "@hypaware" / "s3" / "watermarks" / DATASET / "source=codex.json"
    shared.parent.mkdir(parents=True)
    shared.write_text(json.dumps({"continuation": {"v": 1, "seq": "5"}}))
    torn = watermark(root, "torn", 5)
    torn.write_text('{"v": 1')
    found = watermarks.find_watermarks(cache.find_cache(root), [])
    assert [(each.sink, each.partition, each.seq) for each in found] == [
        ("s3", "source=codex", 5),
        ("second", "client=claude/date=2026-09-01", 7),
        ("team", "source=claude", 1000),
        ("torn", "source=claude", None),
    ]


@pytest.mark.hazard(25)
def test_two_partitions_with_the_same_sanitised_name_share_a_watermark_key(tmp_path: Path) -> None:
    for name in ("source=a b", "source=a_b"):
        Builder(tmp_path, name).commit()
    found = cache.find_cache(tmp_path)
    assert {watermarks.partition_key(each) for each in found.partitions} == {"source=a_b"}


def test_watermarks_are_found_in_a_directory_that_the_user_names(tmp_path: Path) -> None:
    root = installation(tmp_path / "old")
    elsewhere = tmp_path / "state" / "watermarks" / DATASET / "source=claude.json"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_text(json.dumps({"v": 1, "continuation": {"v": 1, "seq": "9"}}))
    (found,) = watermarks.find_watermarks(cache.find_cache(root), [tmp_path / "state"])
    assert (found.sink, found.seq) == (watermarks.UNNAMED, 9)
