"""`hyp import-cache`: output, errors and exit codes, with a lake that needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypaware.cli import import_cache
from hypaware.home import Home
from tests.support.delivery_home import DeliveryHome
from tests.support.light_lake import read_lake
from tests.support.light_takeover import take_over
from tests.support.original_cache import DATASET, SAMPLE, Builder, config_of, row, spool, watermark

Ran = tuple[int, str, str]
Hyp = Callable[..., Ran]


@pytest.fixture(autouse=True)
def light_engine(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the job in this process, with its arguments sent through JSON as to an engine."""

    def run_job(name: str, args: dict[str, Any]) -> dict[str, Any]:
        assert name == "import-cache"
        sent = json.loads(json.dumps(args))
        return take_over(home, Path(sent.pop("dir")), **sent)

    monkeypatch.setattr(import_cache, "run_job", run_job)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Create a cache that contains every special case."""
    root = tmp_path / "old" / "hypaware" / "cache"
    builder = Builder(root)
    builder.add([row(1), row(2), row(3)], [None, 2, 3])
    builder.commit()
    path = spool(root, [row(3), row(4, mood="calm"), row(5, role=None)])
    with path.open("a") as file:
        file.write("{")
    (root / "datasets" / "logs" / "all" / "_hypaware_spool").mkdir(parents=True)
    Builder(root, "../logs/source=x").commit()
    return root


def test_the_sample_cache_is_imported_and_a_second_import_adds_nothing(hyp: Hyp, home: Home) -> None:
    code, out, _ = hyp("import-cache", str(SAMPLE))
    assert code == 0
    assert out.splitlines()[-1].split() == [DATASET, "claude", "1481", "1481", "0", "0", "0", "0"]
    code, out, err = hyp("import-cache", str(SAMPLE))
    assert code == 0
    assert out.splitlines()[-1].split() == [DATASET, "claude", "1481", "0", "1481", "0", "0", "0"]
    assert "1481 rows are in files that were imported before" in err
    assert len(read_lake(home, DATASET)) == 1481


def test_everything_that_was_changed_or_skipped_is_reported(hyp: Hyp, home: Home, cache: Path) -> None:
    code, out, err = hyp("import-cache", str(cache.parents[1]))
    assert code == 0
    assert out.splitlines()[-1].split() == [DATASET, "claude", "6", "4", "1", "1", "1", "3"]
    assert f"1 rows were rejected; see the reasons in {home.spool / DATASET / 'rejected'}" in err
    assert "a spool file ends with an incomplete line of 1 bytes" in err
    assert "stored in attributes.taken_over because there is no such column (rows): mood (1)" in err
    assert "warning: not imported: dataset logs (0 rows): the dataset is not installed" in err


def test_a_dry_run_creates_no_home_and_reports_what_it_would_write(hyp: Hyp, home: Home, cache: Path) -> None:
    code, out, err = hyp("import-cache", str(cache), "--dry-run")
    assert code == 0
    assert "would write" in out
    assert "1 rows would be rejected" in err
    code, out, _ = hyp("import-cache", str(cache), "--dry-run", "--json")
    report = json.loads(out)
    assert (code, report["dry_run"], report["dir"]) == (0, True, str(cache))
    assert report["datasets"][0]["sources"][0]["rows_written"] == 4
    assert not home.root.exists()


def test_the_document_has_the_watermark_of_each_sink(hyp: Hyp, home: Home, cache: Path, tmp_path: Path) -> None:
    DeliveryHome(home).declare(team=tmp_path / "delivered", second=tmp_path / "second")
    for sink in ("team", "central", "gone"):
        watermark(cache, sink, 2)
    config_of(cache, team={"dir": str(tmp_path / "delivered")})
    code, out, err = hyp("import-cache", str(cache), "--sink", "central=second", "--same-destination", "second")
    assert code == 0, err
    assert ["team", "claude", "2", "team", "2"] in [line.split()[:5] for line in out.splitlines()]
    code, out, _ = hyp(
        "import-cache", str(cache), "--other-destination", "second", "--sink", "central=second", "--json"
    )
    result = {each["sink"]: each for each in json.loads(out)["watermarks"]}
    assert {name: (each["honoured"], each["to"], each["new"]) for name, each in result.items()} == {
        "team": (True, "team", 2),
        "central": (False, "second", None),
        "gone": (False, None, None),
    }
    assert set(result["team"]) == {"sink", "dataset", "partition", "source", "old", "to", "honoured", "new", "why"}


@pytest.mark.parametrize(
    ("args", "code", "kind", "why"),
    [
        (["--sink", "central"], 2, "usage", "THEIRS=OURS"),
        (["--same-destination", "nobody"], 2, "unknown_sink", "unknown sink 'nobody'"),
        ([], 1, "destination_unclear", "--same-destination team"),
    ],
)
def test_a_rejected_request_changes_nothing(
    hyp: Hyp, home: Home, cache: Path, tmp_path: Path, args: list[str], code: int, kind: str, why: str
) -> None:
    DeliveryHome(home).declare(team=tmp_path / "delivered")
    watermark(cache, "team", 2)
    for dry in ([], ["--dry-run"]):
        ended, out, _ = hyp("import-cache", str(cache), *args, *dry, "--json")
        error = json.loads(out)["error"]
        assert (ended, error["kind"]) == (code, kind)
        assert why in error["message"]
    assert list(home.root.rglob("*.parquet")) == []


def test_a_folder_without_a_cache_is_reported_without_an_engine(hyp: Hyp, home: Home, tmp_path: Path) -> None:
    code, out, _ = hyp("import-cache", str(tmp_path), "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "not_a_cache")
    assert not home.root.exists()


def test_an_unreadable_file_stops_the_import_or_is_skipped_by_name(hyp: Hyp, home: Home, cache: Path) -> None:
    (missing,) = cache.rglob("*.parquet")
    missing.unlink()
    code, out, _ = hyp("import-cache", str(cache), "--json")
    assert (code, json.loads(out)["error"]["kind"]) == (1, "cache_unreadable")
    assert read_lake(home, DATASET) == []
    code, out, err = hyp("import-cache", str(cache), "--skip-unreadable")
    assert code == 0
    assert f"cannot read {missing}" in err
    assert out.splitlines()[-1].split()[2:4] == ["3", "2"]
