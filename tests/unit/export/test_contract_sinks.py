"""The contract, over real destinations: a plain HTTP server, and folders of Parquet and of JSON lines."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hypaware.export.sinks.blob import BLOB
from hypaware.export.sinks.forward import FORWARD
from hypaware.testing.contract import SinkContract
from tests.plain_server import PlainServer


class TestPlainServer(SinkContract):
    kind = FORWARD
    can_be_asked = False
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
        """As a reader goes by manifests: what they name, and nothing else."""
        root = Path(options["destination"])
        found = []
        for manifest in sorted(root.rglob("_manifests/*.json")):
            for stored in json.loads(manifest.read_bytes())["objects"]:
                found += self.messages(root / stored["key"])
        return found

    def messages(self, path: Path) -> list[str]:
        found: list[str] = pq.read_table(path, columns=["message_id"]).column(0).to_pylist()
        return found


class TestFolderOfJsonLines(TestFolderOfParquet):
    encoder = "jsonl"

    def messages(self, path: Path) -> list[str]:
        return [json.loads(line)["message_id"] for line in gzip.decompress(path.read_bytes()).splitlines()]
