"""A home written by an earlier version keeps working.

`tests/fixtures/home-before-live.tar.xz` was written by the version before live recording: 50 rows in the lake and in
the folder that they were delivered to, a purge, and 5 rows in the spool. Unpacked elsewhere, it counts as a copy.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hypaware.home import Home
from tests.acceptance.test_keeping import Site
from tests.support.command import Hyp
from tests.support.light_lake import read_lake
from tests.support.live_rows import Part
from tests.support.rows import DATASET

HOME = Path(__file__).parents[1] / "fixtures" / "home-before-live.tar.xz"
NOW = datetime.now(UTC).isoformat()


class OldSite(Site):
    def __init__(self, hyp: Hyp, folder: Path) -> None:
        self.hyp, self.folder = hyp, folder


@pytest.fixture
def site(tmp_path: Path) -> Iterator[OldSite]:
    with tarfile.open(HOME) as packed:
        packed.extractall(tmp_path, filter="data")
    config = tmp_path / ".hyp" / "config.toml"
    config.write_text(config.read_text().replace("/home/dev/archive", str(tmp_path / "archive")))
    hyp = Hyp(tmp_path / ".hyp")
    yield OldSite(hyp, tmp_path / "archive")
    hyp.run("engine", "stop")


def test_a_home_of_an_earlier_version_keeps_working(site: OldSite) -> None:
    hyp = site.hyp
    old = {f"message-{number}#0" for number in range(55)}
    before = hyp.ok("status")
    assert before["spool"]["rows"] == 5
    assert hyp.ok("flush")["datasets"][0]["rows_written"] == 5
    assert set(site.lake()) == old
    parts = [Part(number, kind) for number, kind in enumerate(("user", "answer", "call"))]
    site.flush(*(part.live(message_created_at=NOW, conversation_started_at=NOW) for part in parts))
    hyp.ingest([part.native(message_created_at=NOW, conversation_started_at=NOW) for part in parts])
    (report,) = hyp.ok("flush", DATASET)["datasets"]
    assert (report["rows_written"], report["rows_settled"]) == (0, 3)
    hyp.ok("maintain", DATASET, "--force")
    assert set(site.lake()) == old | {f"{part.native_id}#0" for part in parts}
    hyp.ok("export", "adopt", "archive", "--yes")
    # The unpacked home is a copy: the original may deliver the rows of its spool.
    assert "5 rows were in its spool" in hyp.run("export", "--json").out
    hyp.ok("export", "resend", "archive", "--yes")
    hyp.ok("export")
    assert site.delivered() == Counter(site.lake())
    audit = hyp.run("verify", "--deep", "--json")
    assert audit.code == 0, audit.out
    assert len({row["gateway_id"] for row in read_lake(Home(hyp.home), DATASET)}) == 1
