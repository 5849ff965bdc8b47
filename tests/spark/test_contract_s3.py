"""The sink contract for a real S3 server; the objects are read from the server's folder."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hypaware.testing import contract
from hypaware.testing.contract import SinkHome
from tests.support import processes
from tests.support.s3_server import ENVIRONMENT, S3Server
from tests.unit.export.test_contract_sinks import TestFolderOfParquet as OfParquet

pytestmark = pytest.mark.spark

# A separate process: the threads of the S3 library do not survive a fork.
_WORK = """
import pickle, sys
from pathlib import Path
from hypaware.testing import fault_injection
from hypaware.export.sinks.blob import BLOB
site, work, faults = pickle.loads(Path(sys.argv[1]).read_bytes())
with fault_injection.register_kind(fault_injection.wrap_kind(BLOB, faults)):
    getattr(site, work)()
"""
# Starting a process takes a second: a short run kills only at the sink's own crash points and next to them.
_FEW_POINTS = ("export.ship.before-send", "export.plan.after-mirror", "export.ship.after-answer")


def _run_in_process(work: Callable[[], None], crash_at: str | None = None) -> bool:
    site = work.__self__  # type: ignore[attr-defined]
    assert isinstance(site, SinkHome)
    here = site.home.root.parent
    (here / "work").write_bytes(pickle.dumps((site, work.__name__, here / "faults")))
    done = processes.run(_WORK, site.home, here / "work", crash_at=crash_at)
    assert done.returncode == 0 or processes.was_killed(done), done.stderr
    return done.returncode == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running:
        running.make_bucket("bucket")
        yield running


class TestS3(OfParquet):
    server: S3Server

    @pytest.fixture(autouse=True)
    def _server(self, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        monkeypatch.setattr(contract, "run_in_child", _run_in_process)
        if "HYP_SOAK" not in os.environ:
            monkeypatch.setattr(contract, "POINTS", _FEW_POINTS)
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._named(tmp_path / "there")

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._named(tmp_path / "elsewhere")

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        folder = self.server.buckets / str(options["destination"]).removeprefix("s3://")
        return super().arrived(tmp_path, {"destination": str(folder)})

    def _named(self, path: Path) -> Mapping[str, Any]:
        prefix = hashlib.sha256(str(path).encode()).hexdigest()[:16]
        return self.server.options("bucket", prefix, encoder="parquet")
