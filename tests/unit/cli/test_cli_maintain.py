"""`hyp maintain`: output, and when it needs an engine.

The engine runs the jobs of `tests.support.delivery_jobs`: only retention, over a lake that needs no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hypaware.engine import client, inline
from hypaware.engine.launcher import Engine
from hypaware.home import Home
from hypaware.iceberg import metadata
from tests.support import light_home
from tests.support.delivery_jobs import maintenances_of
from tests.support.light_lake import read_lake
from tests.support.rows import of_age, rows

Hyp = Callable[..., tuple[int, str, str]]
KEYS = {
    "dataset", "files_before", "files_after", "bytes_before", "bytes_after", "rows_expired", "rows_held",
    "snapshots_expired", "reason",
}  # fmt: skip


@pytest.fixture(autouse=True)
def light_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HYP_ENGINE", "inline")
    monkeypatch.setattr(
        client, "Engine", lambda home: Engine(home, jobs="tests.support.delivery_jobs", check=lambda: None)
    )
    yield
    inline.close_inline()


@pytest.fixture
def lake(home: Home) -> Home:
    """Create five rows, two of them on expired days, that the sink has not received."""
    home.root.mkdir()
    home.config.write_text(
        'version = 1\n[retention]\ndefault_days = 30\n[sinks.archive]\nkind = "blob"\n'
        f'destination = "{home.root.parent / "archive"}"\n'
    )
    for age in (90, 60):
        light_home.append(home, rows(1, start=age, message_created_at=of_age(age)))
    light_home.append(home, rows(3, message_created_at=of_age(0)))
    light_home.flush(home)
    return home


def report(ran: tuple[int, str, str]) -> dict[str, Any]:
    (found,) = json.loads(ran[1])["datasets"]
    assert isinstance(found, dict)
    return found


def files(folder: Path) -> dict[Path, bytes]:
    beside = ("-wal", "-shm", ".lock")
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.name.endswith(beside)}


def test_maintain_without_a_home_does_nothing_and_creates_none(hyp: Hyp, home: Home) -> None:
    assert hyp("maintain") == (0, "the lake is empty\n", "")
    assert hyp("maintain", "--rebuild", "--json")[:2] == (0, '{\n  "datasets": []\n}\n')
    assert not home.root.exists()


def test_verify_without_a_home_creates_none(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("verify", "--json")
    assert (code, json.loads(out)["ok"]) == (0, True)
    assert not home.root.exists()


@pytest.mark.parametrize(
    "args",
    [["--compact-only", "--expire-only"], ["--rebuild", "--compact-only"], ["--budget", "5"], ["--budget", "0s"]],
)
def test_contradictory_options_are_wrong_usage(hyp: Hyp, home: Home, args: list[str]) -> None:
    assert hyp("maintain", *args)[0] == 2
    assert hyp("maintain", "no_such_dataset")[0] == 1
    assert not home.root.exists()


def test_held_rows_are_listed_with_their_sink_and_the_repair(hyp: Hyp, lake: Home) -> None:
    code, out, _ = hyp("maintain", "--json")
    found = report((code, out, ""))
    assert code == 0
    assert found.keys() >= KEYS
    assert (found["rows_expired"], found["rows_held"], len(found["held"])) == (0, 2, 2)
    assert found["held"][0]["sinks"] == ["archive"]
    code, out, _ = hyp("maintain")
    assert code == 0
    assert "2 rows of 2 days due to be dropped, held for archive" in out
    assert "to deliver them: hyp export archive" in out
    assert found["held"][0]["until"] in out
    assert len(maintenances_of(lake)) == 1, "the second time nothing was due"


def test_delivered_days_are_dropped_and_then_nothing_is_due(hyp: Hyp, lake: Home) -> None:
    assert hyp("export")[0] == 0
    found = report(hyp("maintain", light_home.DATASET, "--budget", "10m", "--json"))
    assert (found["rows_expired"], found["rows_held"], found["files_before"] - found["files_after"]) == (2, 0, 2)
    assert len(read_lake(lake, light_home.DATASET)) == 3
    again = report(hyp("maintain", "--json"))
    assert (again["reason"], again["files_after"]) == ("nothing to do", found["files_after"])
    (requested,) = maintenances_of(lake)
    assert (requested["dataset"], requested["budget"], requested["only"]) == (light_home.DATASET, 600.0, None)


def test_force_and_rebuild_always_run_the_job(hyp: Hyp, lake: Home) -> None:
    lake.config.write_text("version = 1\n")
    assert hyp("maintain", "--expire-only")[0] == 0
    assert maintenances_of(lake) == []
    assert hyp("maintain", "--compact-only", "--force")[0] == 0
    assert hyp("maintain", "--rebuild")[0] == 0
    requested = [(each["only"], each["force"], each["rebuild"]) for each in maintenances_of(lake)]
    assert requested == [("compact", True, False), (None, False, True)]


@pytest.mark.hazard(54)
def test_a_dry_run_writes_nothing_and_starts_nothing(hyp: Hyp, lake: Home) -> None:
    hyp("export")
    before = files(lake.root)
    for args, left in (([], 1), (["--force"], 1), (["--compact-only"], 3), (["--expire-only"], 1), (["--rebuild"], 3)):
        code, out, _ = hyp("maintain", "--dry-run", *args, "--json")
        result = report((code, out, ""))
        assert (code, result["files_before"], result["files_after"]) == (0, 3, left), args
        assert [part["rows"] for part in result["dropped"]] == [1] * (3 - left)
    assert hyp("maintain", "--dry-run")[1].count("would drop 2 rows of 2 days") == 1
    assert files(lake.root) == before
    assert maintenances_of(lake) == []
    assert metadata.read_retention_start(lake, light_home.DATASET) is None


def test_a_failed_dataset_makes_the_command_fail_with_its_report(hyp: Hyp, lake: Home) -> None:
    (lake.root / "fail-maintain").touch()
    code, out, _ = hyp("maintain", "--force", "--json")
    document = json.loads(out)
    assert (code, document["error"]["kind"]) == (1, "maintenance_failed")
    assert document["datasets"][0]["errors"] == ["a part of it went wrong"]
    code, _, err = hyp("maintain", "--force")
    assert (code, f"{light_home.DATASET}: a part of it went wrong" in err) == (1, True)
