"""Copies of a home: rows that one of them has delivered are not delivered by the other."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from hypaware.config import SinkConfig
from hypaware.export import destination_change
from hypaware.home import Home
from hypaware.state.home_opener import open_home, read_identity
from hypaware.testing import fault_injection
from hypaware.testing.fault_injection import run_in_child
from hypaware.testing.folder_sink import FOLDER
from tests.support.light_home import DATASET, append, flush
from tests.support.retention_cases import NOW, RetentionSite
from tests.support.rows import row


@pytest.fixture(autouse=True)
def _folder_sink() -> Iterator[None]:
    with fault_injection.register_kind(FOLDER):
        yield


@pytest.mark.hazard(71)
@pytest.mark.parametrize("can_be_queried", [True, False])
def test_a_copy_with_an_unfinished_flush_delivers_no_row_again(tmp_path: Path, can_be_queried: bool) -> None:
    """The rows are in both lakes, above everything that was recorded when the copy was made."""
    site = RetentionSite(Home(tmp_path / "home"))
    destination = site.declare("a")
    options = {"folder": str(destination.folder), "can_be_queried": can_be_queried}
    site.sinks["a"] = SinkConfig(FOLDER.name, "* * * * *", (DATASET,), options)
    site.commit(1, 1)
    site.record_incarnation()
    site.deliver()
    append(site.home, [row(n, message_created_at=(NOW - timedelta(days=1)).isoformat()) for n in (10, 11)])

    def killed() -> None:
        flush(site.home)

    assert not run_in_child(killed, "lake.commit.after-commit")
    shutil.copytree(site.home.root, tmp_path / "copy", symlinks=True)
    site.numbers = 20
    site.commit(1)
    site.record_incarnation()
    site.deliver()
    copy = RetentionSite(Home(tmp_path / "copy"), sinks=site.sinks)
    flush(copy.home)
    copy.deliver()
    assert max(Counter(destination.arrived()).values()) == 1


@pytest.mark.hazard(73)
@pytest.mark.hazard(97)
@pytest.mark.parametrize("decision", [destination_change.adopt, destination_change.resend])
def test_a_home_rolled_back_in_place_loses_no_row(tmp_path: Path, decision: Callable[..., object]) -> None:
    """Path, inode and machine are the same, and new rows get the sequences of rows that were delivered before."""
    site = RetentionSite(Home(tmp_path / "home"))
    destination = site.declare("a")
    site.commit(1, 1)
    site.deliver()
    shutil.copytree(site.home.root, tmp_path / "kept", symlinks=True)
    undone = site.commit(1, 1, 1)
    site.deliver()
    before, folder = read_identity(site.home), site.home.root.stat()
    for path in site.home.root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(tmp_path / "kept", site.home.root, symlinks=True, dirs_exist_ok=True)
    assert (site.home.root.stat().st_ino, site.home.root.stat().st_dev) == (folder.st_ino, folder.st_dev)
    site.numbers = 100
    disputed = site.commit(1, 1, 1)
    (report,) = site.deliver()
    assert [stream.error and stream.error["kind"] for stream in report.streams] == ["home_rolled_back"]
    after = read_identity(site.home)
    assert (after.gateway_id, after.parents) == (before.gateway_id, (before.incarnation,))
    later = site.commit(1, 1)
    (report,) = site.deliver()
    assert report.status == "held"
    assert "`hyp export adopt a`" in str(report.as_json())
    with closing(open_home(site.home).store) as store:
        decision(site.home, site.config, store, "a")
    (report,) = site.deliver()
    assert report.status == "ok"
    arrived = Counter(destination.arrived())
    sent = disputed if decision is destination_change.resend else []
    assert arrived == Counter(["message-0", "message-1", *undone, *sent, *later])
    assert [each.status for each in site.deliver()] == ["ok"]


@pytest.mark.hazard(71)
@pytest.mark.parametrize("decision", [destination_change.adopt, destination_change.resend])
def test_rows_in_the_spool_of_a_copied_home_do_not_go_out_from_both(
    tmp_path: Path, decision: Callable[..., object]
) -> None:
    site = RetentionSite(Home(tmp_path / "home"))
    destination = site.declare("a")
    site.commit(1, 1)
    site.deliver()
    spooled = [row(n, message_created_at=(NOW - timedelta(days=1)).isoformat()) for n in (10, 11, 12)]
    append(site.home, spooled)
    shutil.copytree(site.home.root, tmp_path / "copy", symlinks=True)
    copy = RetentionSite(Home(tmp_path / "copy"), sinks=site.sinks, numbers=20)
    flush(site.home)
    site.deliver()
    later = copy.commit(1, 1)
    (report,) = copy.deliver()
    assert (report.status, "3 rows were in its spool" in str(report.as_json())) == ("held", True)
    assert max(Counter(destination.arrived()).values()) == 1
    with closing(open_home(copy.home).store) as store:
        decision(copy.home, copy.config, store, "a")
    (report,) = copy.deliver()
    assert report.status == "ok"
    arrived = Counter(destination.arrived())
    assert all(arrived[message] == 1 for message in ("message-0", "message-1", *later))
    times = 2 if decision is destination_change.resend else 1
    assert all(arrived[each["message_id"]] == times for each in spooled)
