"""A flush returns when its files are on the disk; nothing follows a commit of a dead process before that one is."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.iceberg import fsync
from hypaware.lake.commit import open_table
from hypaware.state.home_opener import open_home
from tests.support.light_home import append, flush
from tests.support.light_lake import LightLake
from tests.support.rows import DATASET, MESSAGES, rows


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> set[Path]:
    """Return the paths that are synced from now on."""
    found, real = set[Path](), os.fsync

    def note(file: int) -> None:
        real(file)
        found.add(Path(f"/proc/self/fd/{file}").readlink())

    monkeypatch.setattr(os, "fsync", note)
    return found


def table_files(home: Home) -> set[Path]:
    """Return the data files, manifests, lists of manifests and metadata of the table."""
    suffixes = (".parquet", ".avro", ".json")
    return {path for path in home.lake.rglob("*") if path.suffix in suffixes and DATASET in path.parts}


def test_all_files_of_a_commit_are_synced_when_the_flush_returns(home: Home, synced: set[Path]) -> None:
    open_home(home).store.close()
    for some in (rows(3), rows(6)[3:]):
        before = table_files(home)
        append(home, some)
        flush(home)
        written = table_files(home) - before
        assert len(written) >= 4
        assert written - synced == set()


def test_a_commit_that_was_not_synced_is_synced_before_anything_follows(
    home: Home, synced: set[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_home(home).store.close()
    append(home, rows(3))
    with monkeypatch.context() as dead:
        dead.setattr(fsync, "fsync_commit", lambda *_: None)
        flush(home)
    left = table_files(home) - synced
    assert left, "as if the process had died after the commit"
    with (
        closing(open_home(home).store) as store,
        closing(LightLake(home)) as lake,
        open_table(home, store, lake, MESSAGES),
    ):
        assert left - synced == set()
