"""After a purge, nothing of the removed rows is left in the files of the index."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from backports import zstd

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.index import database
from hypaware.index.refresh import refresh_index
from hypaware.index.scrub import scrub_index
from hypaware.index.store import Index, open_index
from hypaware.model.datasets import SEQ
from hypaware.state.home_opener import open_home
from hypaware.testing.fault_injection import run_in_child
from tests.support.edited_lake import DATASET, add_file, rewrite, stored_row
from tests.support.index_oracle import assert_index_agrees
from tests.support.rows import rows

SECRETS = (b"quetzalword", b"/srv/quetzalfolder", b"quetzalbranch", b"quetzaltool", b"quetzalprompt", b"message-5")
POINTS = [point.name for point in list_crash_points() if point.name.startswith("index.")]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    gateway = open_home(home).gateway_id
    plain = [stored_row(number, each, gateway) for number, each in enumerate(rows(400, start=100), 1)]
    secret = rows(
        40,
        start=500,
        content_text="quetzalword and quetzalprompt " * 20,
        role="user",
        cwd="/srv/quetzalfolder",
        git_branch="quetzalbranch",
        tool_name="quetzaltool",
        session_id="session-quetzal",
    )
    add_file(home, plain[:200] + [stored_row(1000 + number, each, gateway) for number, each in enumerate(secret)])
    add_file(home, plain[200:])
    refresh_index(home)
    return home


def purge(home: Home) -> None:
    rewrite(home, lambda row: None if row[SEQ] >= 1000 else row)


def found_secrets(home: Home) -> set[bytes]:
    """Search the files of the index, and everything in them that is compressed."""
    contents = [path.read_bytes() for path in database.list_files(home)]
    for raw in list(contents):
        start = 0
        while (start := raw.find(b"\x28\xb5\x2f\xfd", start)) >= 0:
            # A block may begin in one page and end in others; what its first bytes hold is decompressed.
            try:
                contents.append(zstd.ZstdDecompressor().decompress(raw[start : start + 4096]))
            except zstd.ZstdError:
                pass
            start += 4
    return {secret for secret in SECRETS if any(secret in content for content in contents)}


@pytest.mark.hazard(113)
def test_after_a_scrub_no_byte_of_removed_rows_is_left(home: Home) -> None:
    assert found_secrets(home) == set(SECRETS), "the search finds what is there"
    purge(home)
    scrub_index(home)
    assert found_secrets(home) == set()
    assert home.index.is_file()
    with open_index(home) as index:
        assert_index_agrees(home, index, ["text", "quetzalword"])


@pytest.mark.hazard(113)
def test_rows_that_an_earlier_refresh_removed_are_scrubbed_too(home: Home) -> None:
    purge(home)
    assert refresh_index(home).removed == 40
    assert found_secrets(home), "removing rows is not enough"
    scrub_index(home)
    assert found_secrets(home) == set()


@pytest.mark.hazard(113)
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_scrub_is_finished_by_the_next(home: Home, point: str) -> None:
    purge(home)
    run_in_child(lambda: scrub_index(home), crash_at=point)
    scrub_index(home)
    assert found_secrets(home) == set()
    with open_index(home) as index:
        assert_index_agrees(home, index, ["text"])


@pytest.mark.hazard(113)
def test_an_index_that_cannot_be_scrubbed_is_deleted(home: Home) -> None:
    purge(home)
    with database.hold_lock(home, 0):
        scrub_index(home, lock_seconds=0.0)
    assert database.list_files(home) == []


@pytest.mark.hazard(113)
def test_a_reader_does_not_keep_purged_rows_on_the_disk(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.1)
    with Index(home) as index:
        index.connection.execute("SELECT count(*) FROM parts").fetchone()
        purge(home)
        scrub_index(home)
        assert found_secrets(home) == set()
        assert index.connection.execute("SELECT count(*) FROM parts").fetchone()[0] == 440


@pytest.mark.hazard(113)
def test_a_damaged_index_is_deleted(home: Home) -> None:
    purge(home)
    with home.index.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * 40_000)
    scrub_index(home)
    assert found_secrets(home) == set()


@pytest.mark.hazard(113)
def test_an_index_that_cannot_be_compared_with_all_data_files_is_deleted(home: Home) -> None:
    purge(home)
    found = metadata.find_table(home, DATASET)
    assert found is not None
    file = next(metadata.iter_live_files(metadata.read_metadata(found.metadata)))
    file.path.write_bytes(file.path.read_bytes()[:100])

    scrub_index(home)

    assert found_secrets(home) == set()
    with open_index(home) as index:
        assert not index.connection.execute("SELECT 1 FROM parts WHERE seq >= 1000").fetchall()


def test_a_home_without_an_index_stays_without_one(home: Home) -> None:
    for path in database.list_files(home):
        path.unlink()
    scrub_index(home)
    assert database.list_files(home) == []


def test_blocks_of_the_index_are_found_by_the_search_of_these_tests(home: Home) -> None:
    with open_index(home) as index:
        ((texts,),) = index.connection.execute("SELECT texts FROM blocks LIMIT 1")
    assert texts.startswith(b"\x28\xb5\x2f\xfd")
    assert orjson.loads(zstd.decompress(texts))
