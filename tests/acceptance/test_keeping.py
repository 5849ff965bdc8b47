"""Maintenance as a user sees it: compaction, retention, purge and rebuild next to all other work.

The oracle is a few sets of row numbers: acknowledged, purged, and old enough to expire. At the end the lake holds the
rest, each row once, and so does the folder that everything was delivered to.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hypaware.faults import list_crash_points
from hypaware.home import Home
from hypaware.iceberg.metadata import find_table, iter_live_files, read_metadata
from hypaware.model.datasets import SEQ
from tests.support.command import Hyp, Result
from tests.support.light_lake import read_lake
from tests.support.rows import DATASET, row

KEPT_DAYS = 30
TODAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)


def aged(number: int, days: int, session: str = "session-1", source: str = "claude") -> dict[str, Any]:
    at = (TODAY - timedelta(days=days)).isoformat()
    return row(number, message_created_at=at, conversation_started_at=at, session_id=session, client_name=source)


def part(number: int) -> str:
    return f"message-{number}#0"


class Site:
    """A home that delivers to a folder."""

    def __init__(self, hyp: Hyp, folder: Path) -> None:
        self.hyp = hyp
        self.folder = folder
        hyp.home.mkdir(mode=0o700)
        (hyp.home / "config.toml").write_text(
            f"version = 1\n[retention]\ndefault_days = {KEPT_DAYS}\n"
            f'[sinks.archive]\nkind = "blob"\nencoder = "jsonl"\ndestination = "{folder}"\n'
        )

    def flush(self, *rows: dict[str, Any]) -> None:
        self.hyp.ingest(list(rows))
        self.hyp.ok("flush")

    def lake(self) -> Counter[str]:
        """Return the rows according to an independent reader."""
        found = read_lake(Home(self.hyp.home), DATASET)
        assert len({each[SEQ] for each in found}) == len(found)
        return Counter(each["part_id"] for each in found)

    def delivered(self) -> Counter[str]:
        """Return the rows that the manifests in the folder name."""
        found: Counter[str] = Counter()
        for path in self.folder.rglob("_manifests/*.json"):
            for told in json.loads(path.read_bytes())["objects"]:
                data = (self.folder / told["key"]).read_bytes()
                lines = (gzip.decompress(data) if told["key"].endswith(".gz") else data).splitlines()
                found.update(json.loads(line)["part_id"] for line in lines)
        return found

    def files(self) -> int:
        known = find_table(Home(self.hyp.home), DATASET)
        assert known
        return len(list(iter_live_files(read_metadata(known.metadata))))

    def purge_what_goes_on(self, session: str) -> Result:
        """Purge a session that is being recorded. Retry if a producer does not seal its rows in time."""
        while True:
            done = self.hyp.run("purge", "--session", session, "--yes", "--json")
            remaining = done.json.get("remaining")
            if done.code == 0 and remaining == []:
                return done
            assert remaining, done.out + done.err
            assert {Path(each["file"]).parent.name for each in remaining} == {"active"}, remaining

    def kept(self, *args: str, **extra: str) -> dict[str, Any]:
        (report,) = self.hyp.ok("maintain", *args, **extra)["datasets"]
        return dict(report)


@pytest.fixture
def site(hyp: Hyp, tmp_path: Path) -> Site:
    return Site(hyp, tmp_path / "archive")


@pytest.mark.hazard(39)
@pytest.mark.hazard(40)
def test_a_lake_is_maintained_from_its_first_commit_to_an_idle_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small commits, compaction, retention that waits for the sink, expiry, and then nothing to do."""
    monkeypatch.setenv("HYP_DEV_TELEMETRY", "1")
    numbers = iter(range(1000))
    for _ in range(12):
        site.flush(aged(next(numbers), 0), aged(next(numbers), 10), aged(next(numbers), 40, source="codex"))
    sent = {part(number) for number in range(36)}
    before = site.hyp.query(f"SELECT part_id, content_text FROM {DATASET} ORDER BY 1")
    told = site.kept("--dry-run")
    assert told["files_before"] == site.files() == 36
    first = site.kept(DEV_RUN_ID="kept-1")
    assert first["files_before"] == 36
    foretold = ("files_after", "rows_expired", "rows_held", "snapshots_expired", "dropped", "rewritten")
    assert {key: told[key] for key in foretold} == {key: first[key] for key in foretold}
    assert sum(part["files"] for part in first["rewritten"]) > 24
    assert first["files_after"] == site.files() < 12
    assert first["rows_expired"] == 0
    assert first["rows_held"] == 12, "codex's rows are too old, and nobody has them yet"
    assert first["held"][0]["sinks"] == ["archive"]
    assert site.hyp.query(f"SELECT part_id, content_text FROM {DATASET} ORDER BY 1") == before
    site.hyp.ok("export")
    assert site.delivered() == Counter(sent)
    second = site.kept()
    assert (second["rows_expired"], second["rows_held"]) == (12, 0)
    assert set(site.lake()) == {part(number) for number in range(36) if number % 3 != 2}
    third = site.kept()
    assert third["reason"] == "nothing to do"
    assert third["files_before"] == third["files_after"]
    exported = site.hyp.ok("export")
    assert sum(stream["rows"] for sink in exported["sinks"] for stream in sink["streams"]) == 0
    assert site.delivered() == Counter(sent)
    assert site.hyp.run("verify", "--deep").code == 0
    spans = [span for span in _spans(site.hyp.home) if span["attributes"].get("dev_run_id") == "kept-1"]
    assert {"maintain.compact", "maintain.retain"} <= {span["name"] for span in spans}
    assert all(span["attributes"]["status"] == "ok" for span in spans if span["name"].startswith("maintain."))


def _spans(home: Path) -> Iterator[dict[str, Any]]:
    for path in (home / "telemetry").glob("traces-*.jsonl"):
        for line in path.read_text().splitlines():
            yield json.loads(line)


_COMMANDS = {
    "maintain.compact": ("maintain", "--force", "--compact-only"),
    "maintain.retain": ("maintain", "--expire-only"),
    "maintain.expire": ("maintain", "--force", "--expire-only"),
    "maintain.rebuild": ("maintain", DATASET, "--rebuild"),
    "maintain.purge": ("purge", "--yes", "--session"),
    "lake.tombstones": ("purge", "--yes", "--session"),
}
# Rejects and dead letters, which do not occur here, are tested in tests/unit/maintain, and what other machines of a
# shared lake forget in tests/spark/test_team_purge.py.
_NOT_HERE = (
    "maintain.purge.before-lines", "maintain.purge.after-lines", "maintain.purge.after-letters",
    "maintain.purge.before-done", "maintain.purge.after-done",
)  # fmt: skip
# Each kill costs a Spark start. Points without Spark are tested in tests/unit/maintain, and here only in a soak.
_WITHOUT_SPARK = (
    "lake.tombstones.before-commit", "maintain.purge.after-clean", "maintain.purge.after-forget",
    "maintain.purge.after-keys", "maintain.purge.after-sweep", "maintain.purge.before-finish",
    "maintain.purge.before-forget",
)  # fmt: skip
POINTS = [
    (point.name, args)
    for point in list_crash_points()
    for begins, args in _COMMANDS.items()
    if point.name.startswith(begins)
    and point.name not in _NOT_HERE
    and (point.name not in _WITHOUT_SPARK or "HYP_SOAK" in os.environ)
]


@pytest.mark.hazard(36)
@pytest.mark.hazard(44)
@pytest.mark.hazard(85)
def test_maintenance_killed_at_each_crash_point_in_turn_loses_and_doubles_nothing(site: Site) -> None:
    """Each command first recovers the previous, killed one; rows keep arriving and are delivered now and then."""
    numbers = iter(range(100_000))
    sent: set[str] = set()
    old: set[str] = set()
    purged: set[str] = set()
    for place, (point, args) in enumerate(POINTS):
        session = f"secret-{place}"
        for _ in range(2):
            batch = [aged(next(numbers), 1), aged(next(numbers), 1, session), aged(next(numbers), 50, source="codex")]
            site.flush(*batch)
            names = [part(int(each["message_index"])) for each in batch]
            sent |= set(names)
            old.add(names[2])
            if args[0] == "purge":
                purged.add(names[1])
        if place % 2 == 0 or args[1] == "--expire-only":
            site.hyp.ok("export")
        given = (*args, session) if args[-1] == "--session" else args
        killed = site.hyp.run(*given, HYP_CRASH_AT=point)
        assert killed.code != 0, f"{point} was not reached: {killed.out}{killed.err}"
        assert "killed" in killed.err or killed.code == -signal.SIGKILL or "engine" in killed.err, killed.err
        if args[0] == "purge":
            # The user sees that it was cut off and runs it again.
            site.hyp.ok(*given)
    site.hyp.ok("export")
    site.kept("--force")
    assert set(site.lake()) == sent - purged - old
    assert max(site.lake().values()) == 1
    delivered = site.delivered()
    assert sent - purged <= set(delivered) <= sent
    assert max(delivered.values()) == 1
    # The client's own history must not bring back purged rows.
    site.hyp.ingest([aged(number, 1, f"secret-{len(POINTS)}") for number in _numbers(purged)])
    site.hyp.ok("flush")
    site.hyp.ok("export")
    assert set(site.lake()) == sent - purged - old
    audit = site.hyp.run("verify", "--deep", "--json")
    assert audit.code == 0, audit.out


def _numbers(parts: set[str]) -> list[int]:
    return sorted(int(name.removeprefix("message-").removesuffix("#0")) for name in parts)


@pytest.mark.hazard(36)
@pytest.mark.hazard(43)
def test_flushes_exports_and_queries_continue_during_every_maintenance_job(site: Site) -> None:
    """Three users of one engine next to a slow maintenance job: none of them fails, nothing is lost or doubled."""
    site.flush(*(aged(number, number % 5) for number in range(20)))
    done = threading.Event()
    failed: list[str] = []
    sent = {part(number) for number in range(20)}

    def on_and_on(what: str) -> None:
        number = 1000
        while not done.is_set():
            if what == "flush":
                batch = [aged(number + n, n % 3, f"session-{n % 2}") for n in range(6)]
                site.hyp.ingest(batch)
                sent.update(part(number + n) for n in range(6))
                number += 6
                result = site.hyp.run("flush")
            elif what == "export":
                result = site.hyp.run("export")
            else:
                result = site.hyp.run("query", "sql", f"SELECT count(*), count(DISTINCT part_id) FROM {DATASET}")
            if result.code != 0:
                failed.append(f"{what}: {result.err}")

    users = [threading.Thread(target=on_and_on, args=(what,)) for what in ("flush", "export", "query")]
    for user in users:
        user.start()
    try:
        for args in (["--force"], ["--rebuild"], ["--force"]):
            report = site.kept(DATASET, *args)
            assert report["errors"] == []
        purged = site.purge_what_goes_on("session-1")
        site.kept("--force")
    finally:
        done.set()
        for user in users:
            user.join()
    # A purge does not wait for a very slow query; that query may fail, and the purge reports it.
    may_fail = "query" if "a job that is still running may read what is removed" in purged.err else "nobody"
    assert [each for each in failed if not each.startswith(may_fail)] == []
    site.hyp.ok("flush")
    site.hyp.ok("export")
    gone = {name for name in sent if (number := _numbers({name})[0]) < 1000 or (number - 1000) % 6 % 2 == 1}
    assert set(site.lake()) == sent - gone
    delivered = site.delivered()
    assert sent - gone <= set(delivered) <= sent
    assert max(delivered.values()) == 1
    assert max(site.lake().values()) == 1
