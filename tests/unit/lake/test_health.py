"""The lake check before a query, backup, purge or maintenance."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.lake import health
from hypaware.maintain import rebuild
from tests.support.light_home import DATASET, append, flush
from tests.support.rows import rows


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    for number in range(3):
        append(found, rows(2, start=2 * number))
        flush(found)
    return found


def newest(home: Home) -> Path:
    entry = metadata.find_table(home, DATASET)
    assert entry
    return entry.metadata


def test_an_intact_lake_passes_and_so_does_a_home_without_one(home: Home, tmp_path: Path) -> None:
    health.check_tables(home)
    health.check_tables(Home(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.hazard(17)
def test_a_lost_catalog_does_not_pass_for_an_empty_lake(home: Home) -> None:
    """Otherwise a query would return 0, and a backup would contain no rows and report success."""
    with closing(sqlite3.connect(home.catalog)) as catalog, catalog:
        catalog.execute("DELETE FROM iceberg_tables")
    with pytest.raises(LakeError, match="has no such table") as raised:
        health.check_tables(home)
    assert raised.value.repair == (f"hyp maintain {DATASET} --rebuild",)
    health.check_tables(home, ["another_dataset"])


@pytest.mark.parametrize("what", ["metadata", "oldest manifest", "newest data file"])
def test_an_unreadable_table_is_reported_immediately_with_the_repair_command(home: Home, what: str) -> None:
    """Iceberg itself retries a torn file for a minute and a half."""
    known = metadata.read_metadata(newest(home))
    assert known.current
    manifests = metadata.read_manifests(known.current)
    if what == "metadata":
        newest(home).write_bytes(newest(home).read_bytes()[:1500])
    elif what == "oldest manifest":
        min(manifests, key=lambda each: each.path.stat().st_mtime_ns).path.unlink()
    else:
        added = next(each for each in manifests if each.snapshot_id == known.current_id)
        next(metadata.read_data_files(known, added)).path.unlink()
    metadata._manifest_cache = metadata._ManifestCache(100)
    with pytest.raises(LakeError, match="is damaged") as raised:
        health.check_tables(home)
    assert raised.value.repair == (f"hyp maintain {DATASET} --rebuild",)


def test_a_live_table_is_not_an_old_generation_when_its_home_is_reached_through_a_link(
    home: Home, tmp_path: Path
) -> None:
    """Through a link its path differs from the catalog: as an old generation, it would be removed."""
    (tmp_path / "link").symlink_to(home.root)
    left = home.warehouse / metadata.NAMESPACE / f"{DATASET}-0123abcd"
    left.mkdir()
    for reached in (home, Home(tmp_path / "link")):
        assert [folder.name for folder in rebuild.find_abandoned(reached, DATASET)] == [left.name]
