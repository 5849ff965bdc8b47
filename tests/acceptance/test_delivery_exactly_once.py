"""Deliveries next to the product's own maintenance, and after a rollback of the whole home.

A plain server, which only knows the ids of batches, and a folder receive every row once while the lake is compacted,
loses expired days and moves to a new generation, and while exports are killed in between.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from tests.support.command import Hyp
from tests.support.light_home import flush
from tests.support.light_lake import read_lake
from tests.support.plain_server import PlainServer
from tests.support.receiver import served
from tests.support.rows import DATASET, row

TODAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
POINTS = ("export.plan.after-mirror", "export.ship.after-answer", "export.ack.after-commit")


def aged(numbers: range, days: int) -> list[dict[str, Any]]:
    at = (TODAY - timedelta(days=days)).isoformat()
    return [row(number, message_created_at=at, conversation_started_at=at) for number in numbers]


def in_folder(folder: Path) -> Counter[str]:
    """Count the rows that manifests name."""
    found: Counter[str] = Counter()
    for manifest in folder.rglob("_manifests/*.json"):
        for each in json.loads(manifest.read_bytes())["objects"]:
            lines = gzip.decompress((folder / each["key"]).read_bytes()).splitlines()
            found.update(json.loads(line)["message_id"] for line in lines)
    return found


def messages(*numbers: range) -> Counter[str]:
    return Counter(f"message-{number}" for each in numbers for number in each)


@pytest.fixture
def server() -> Iterator[PlainServer]:
    with PlainServer(token=None) as running:
        yield running


def test_every_row_arrives_once_through_compaction_retention_and_a_new_generation(
    hyp: Hyp, tmp_path: Path, server: PlainServer
) -> None:
    folder = tmp_path / "folder"
    hyp.home.mkdir(mode=0o700)
    (hyp.home / "config.toml").write_text(
        f'version = 1\n[retention]\ndefault_days = 30\n[sinks.team]\nkind = "forward"\nurl = "{server.url}"\n'
        f'[sinks.archive]\nkind = "blob"\nencoder = "jsonl"\ndestination = "{folder}"\n'
    )
    inline = Hyp(hyp.home, inline=True)
    steps = (("maintain", "--compact-only", "--force"), ("maintain", "--force"), ("maintain", "--rebuild"))
    start = 0
    for point, step in zip(POINTS, steps, strict=True):
        for days in (40, 2):
            hyp.ingest(aged(range(start, start + 10), days))
            hyp.ok("flush")
            start += 10
        hyp.ok("engine", "stop")
        assert inline.run("export", HYP_CRASH_AT=point).code == -9
        hyp.ok(*step)
        hyp.ingest(aged(range(start, start + 5), 1))
        start += 5
        hyp.ok("export")
        assert Counter(each["message_id"] for each in server.rows()) == messages(range(start))
        assert in_folder(folder) == messages(range(start))
    hyp.ok("maintain", "--force")
    assert len(read_lake(Home(hyp.home), DATASET)) < start, "retention dropped nothing"
    before = len(server.requests)
    hyp.ok("export")
    assert len(server.requests) == before


@pytest.mark.hazard(97)
def test_a_home_rolled_back_in_place_delivers_its_new_rows(hyp: Hyp, tmp_path: Path) -> None:
    """As with `rsync -a --delete` of a backup into the existing folder."""
    there, folder = Home(tmp_path / "there"), tmp_path / "folder"
    with ExitStack() as stack:
        server = stack.enter_context(served(there))
        hyp.home.mkdir(mode=0o700)
        (tmp_path / "token").write_text(server.token)
        (hyp.home / "config.toml").write_text(
            f'version = 1\n[sinks.team]\nkind = "forward"\nurl = "{server.url}"\ntoken_file = "{tmp_path / "token"}"\n'
            f'[sinks.archive]\nkind = "blob"\nencoder = "jsonl"\ndestination = "{folder}"\n'
        )
        hyp.ingest(aged(range(10), 1))
        hyp.ok("export")
        hyp.ingest(aged(range(10, 14), 1))
        hyp.ok("flush")
        hyp.ok("engine", "stop")
        shutil.copytree(hyp.home, tmp_path / "snapshot", symlinks=True, ignore=shutil.ignore_patterns("*.sock"))
        hyp.ingest(aged(range(100, 109), 1))
        hyp.ok("export")
        hyp.ok("engine", "stop")
        inode = hyp.home.stat().st_ino
        for path in hyp.home.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(tmp_path / "snapshot", hyp.home, symlinks=True, dirs_exist_ok=True)
        assert hyp.home.stat().st_ino == inode

        hyp.ingest(aged(range(200, 209), 1))
        told = hyp.run("export", "--json")
        assert "rolled back" in told.err
        status = {sink["sink"]: sink["status"] for sink in told.json["sinks"]}
        assert status == {"team": "ok", "archive": "held"}
        assert in_folder(folder) == messages(range(14), range(100, 109))
        hyp.ok("export", "resend", "archive", "--yes")
        hyp.ok("export")
        flush(there)
        wanted = messages(range(14), range(100, 109), range(200, 209))
        assert Counter(each["message_id"] for each in read_lake(there, DATASET)) == wanted
        assert set(in_folder(folder)) == set(wanted)
        assert {message for message, times in in_folder(folder).items() if times > 1} <= set(messages(range(10, 14)))
        hyp.ok("verify")
