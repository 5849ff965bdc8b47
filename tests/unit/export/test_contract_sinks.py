"""The sink contract for real destinations: a plain HTTP server, our own server, folders of Parquet and JSON lines."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hypaware.export.sinks.blob import BLOB
from hypaware.export.sinks.forward import FORWARD
from hypaware.export.stream_destination import RollbackCheck
from hypaware.home import Home
from hypaware.state.streams import Stream
from hypaware.testing import contract
from hypaware.testing.contract import SINK, SinkContract
from tests.support.light_home import DATASET, flush
from tests.support.light_lake import read_lake
from tests.support.plain_server import PlainServer
from tests.support.receiver import Server, served, stored


def check_fresh_chunk(contract: SinkContract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh chunk whose range the destination has is never acknowledged.

    The home is rolled back after its round has asked the destination.
    """

    find_highest = RollbackCheck._highest

    async def skip_current(self: RollbackCheck, stream: Stream, incarnation: str, above: int) -> int | None:
        is_current = incarnation == self.identity.incarnation
        return None if is_current else await find_highest(self, stream, incarnation, above)

    monkeypatch.setattr(RollbackCheck, "_highest", skip_current)
    with contract.sink_home(tmp_path) as site:
        site.commit(6, sources=("claude",))
        site.deliver()
        shutil.copytree(tmp_path / "home", tmp_path / "snapshot", symlinks=True)
        site.commit(3, start=100, sources=("claude",))
        site.deliver()
        for path in site.home.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(tmp_path / "snapshot", site.home.root, symlinks=True, dirs_exist_ok=True)
        site.lake.purge([f"message-{number}" for number in range(100, 103)])
        site.commit(3, start=200, sources=("claude",))
        (stream,) = site.deliver().streams
        assert stream.error is not None
        assert (stream.error["kind"], stream.rows) == ("home_rolled_back", 0)
        (stream,) = site.deliver().streams
        if contract.drops_known_rows:
            assert {f"message-{number}" for number in range(200, 203)} < set(
                contract.arrived(tmp_path, site.config.sinks[SINK].options)
            )
        else:
            assert stream.held


_FEW_POINTS = ("export.ship.before-send", "export.plan.after-mirror", "export.ship.after-answer")


class TestPlainServer(SinkContract):
    kind = FORWARD
    can_be_queried = False
    keeps_ids = True
    servers: dict[str, PlainServer]

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        self.servers = {}
        yield
        for server in self.servers.values():
            server.__exit__()

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._server(f"{tmp_path}/there")

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._server(f"{tmp_path}/elsewhere")

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        (server,) = (each for each in self.servers.values() if each.url == options["url"])
        return [row["message_id"] for row in server.rows()]

    @pytest.mark.hazard(106)
    def test_a_kill_while_a_refused_chunk_is_split_loses_no_row(self, tmp_path: Path) -> None:
        super().test_a_kill_while_a_refused_chunk_is_split_loses_no_row(tmp_path)

    def _server(self, name: str) -> Mapping[str, Any]:
        if name not in self.servers:
            self.servers[name] = PlainServer(token=None).__enter__()
        return {"url": self.servers[name].url, "token_file": "", "token_env": ""}


class TestFolderOfParquet(SinkContract):
    kind = BLOB
    encoder = "parquet"
    points = ("export.blob.before-object", "export.blob.after-object", "export.blob.after-manifest")

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"destination": str(tmp_path / "there"), "encoder": self.encoder}

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        return {"destination": str(tmp_path / "elsewhere"), "encoder": self.encoder}

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        """Read the objects that manifests name, and nothing else."""
        root = Path(options["destination"])
        found = []
        for manifest in sorted(root.rglob("_manifests/*.json")):
            for each in json.loads(manifest.read_bytes())["objects"]:
                found += self.messages(root / each["key"])
        return found

    @pytest.mark.hazard(97)
    def test_a_fresh_chunk_that_the_destination_has_is_a_contradiction(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_fresh_chunk(self, tmp_path, monkeypatch)

    @pytest.mark.hazard(97)
    def test_a_home_rolled_back_in_place_loses_no_row(self, tmp_path: Path) -> None:
        super().test_a_home_rolled_back_in_place_loses_no_row(tmp_path)

    def messages(self, path: Path) -> list[str]:
        found: list[str] = pq.read_table(path, columns=["message_id"]).column(0).to_pylist()
        return found


class TestFolderOfJsonLines(TestFolderOfParquet):
    encoder = "jsonl"

    @pytest.fixture(autouse=True)
    def _few_points(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other crash points are covered by the Parquet contract."""
        if "HYP_SOAK" not in os.environ:
            monkeypatch.setattr(contract, "POINTS", _FEW_POINTS)

    def messages(self, path: Path) -> list[str]:
        return [json.loads(line)["message_id"] for line in gzip.decompress(path.read_bytes()).splitlines()]


class TestOurServer(SinkContract):
    """Rows are counted in the server's spool, which only a registered batch enters."""

    kind = FORWARD
    drops_known_rows = True
    servers: dict[str, Server]

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        self.servers = {}
        with ExitStack() as self.running:
            yield

    def options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._server(tmp_path / "there")

    def other_options(self, tmp_path: Path) -> Mapping[str, Any]:
        return self._server(tmp_path / "elsewhere")

    def arrived(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        (home,) = (Home(Path(path)) for path, server in self.servers.items() if server.url == options["url"])
        return stored(home)

    def arrived_once(self, tmp_path: Path, options: Mapping[str, Any]) -> list[str]:
        (home,) = (Home(Path(path)) for path, server in self.servers.items() if server.url == options["url"])
        flush(home)
        return [row["message_id"] for row in read_lake(home, DATASET)]

    @pytest.mark.hazard(97)
    def test_a_fresh_chunk_that_the_destination_has_is_a_contradiction(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        check_fresh_chunk(self, tmp_path, monkeypatch)

    @pytest.mark.hazard(97)
    def test_a_home_rolled_back_in_place_loses_no_row(self, tmp_path: Path) -> None:
        super().test_a_home_rolled_back_in_place_loses_no_row(tmp_path)

    def _server(self, path: Path) -> Mapping[str, Any]:
        if str(path) not in self.servers:
            self.servers[str(path)] = self.running.enter_context(served(Home(path)))
            (path / "token").write_text(self.servers[str(path)].token)
        return {"url": self.servers[str(path)].url, "token_file": str(path / "token"), "token_env": ""}
