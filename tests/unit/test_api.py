from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hypaware
from hypaware.api import Lake
from hypaware.engine import client
from hypaware.engine.launcher import Engine
from hypaware.errors import LakeError, NotReady, UsageError
from hypaware.home import Home
from hypaware.model import datasets
from tests.support.index_home import make_home, response
from tests.support.processes import eventually

DATASET = datasets.list_names()[0]


@pytest.fixture
def paged(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A lake whose engine gives three pages of ten rows."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    for name in ("HYP_ENGINE", "HYP_CRASH_AT"):
        monkeypatch.delenv(name, raising=False)
    client.run_job(Engine(home, jobs="tests.support.engine_jobs", check=lambda: None), "echo", {})
    yield Lake(home)
    client.stop_engine(home)


def test_opening_a_lake_at_a_mistyped_path_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no home at") as raised:
        hypaware.open_lake(tmp_path / "typo")

    assert raised.value.repair == ("hyp setup",)
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("since", [None, "7", 7.0, -1, True])
def test_a_start_that_is_no_sequence_is_refused_before_anything_is_read(tmp_path: Path, since: Any) -> None:
    with pytest.raises(UsageError, match="since must be an integer from 0"):
        Lake(Home(tmp_path)).read_rows_since(DATASET, None, since)


@pytest.mark.parametrize("until", ["7", 7.0, -1, False])
def test_an_end_that_is_no_sequence_is_refused_before_anything_is_read(tmp_path: Path, until: Any) -> None:
    with pytest.raises(UsageError, match="until must be an integer from 0"):
        Lake(Home(tmp_path)).read_rows_since(DATASET, None, 0, until)


def test_the_next_page_and_no_further_one_is_read_while_the_rows_of_one_are_used(paged: Lake) -> None:
    rows = paged.read_rows_since(DATASET, None, 0)

    assert next(rows) == ({"session_id": "0"}, 1)
    eventually((paged.home.root / "read-10").exists)
    assert not (paged.home.root / "read-20").exists()
    assert [(row["session_id"], seq) for row, seq in rows] == [(str((seq - 1) // 10 * 10), seq) for seq in range(2, 31)]


def test_an_error_of_a_page_comes_after_the_rows_before_it(paged: Lake) -> None:
    read: list[int] = []
    with pytest.raises(LakeError, match="a data file is missing"):
        read.extend(seq for _, seq in paged.read_rows_since(DATASET, None, 0, until=5))

    assert read == list(range(1, 11))


def test_rows_that_are_no_longer_wanted_leave_the_engine_free(paged: Lake) -> None:
    rows = paged.read_rows_since(DATASET, None, 0)
    next(rows)
    rows.close()  # type: ignore[attr-defined]

    assert client.engine_status(paged.home)["jobs"] == []


def test_sessions_and_usage_have_the_shapes_of_the_commands(tmp_path: Path) -> None:
    make_home(
        tmp_path / "home",
        response(1, at="2026-11-14T08:00:00Z", usage={"output_tokens": 1_000_000}, content_text="connection refused"),
        response(2, at="2026-11-15T08:00:00Z", session_id="b", client_name="codex"),
    )
    lake = hypaware.open_lake(tmp_path / "home")

    assert [each["session_id"] for each in lake.sessions()["sessions"]] == ["b", "session-1"]
    assert [each["session_id"] for each in lake.sessions(sort="cost", limit=1)["sessions"]] == ["session-1"]
    assert [each["session_id"] for each in lake.sessions(grep="refused", client="claude")["sessions"]] == ["session-1"]
    assert lake.usage(by="client", timezone="UTC", since="2026-11-14")["total"]["cost_usd"] == 20.0
    assert [row["key"] for row in lake.usage(by="client")["rows"]] == ["claude", "codex"]


def test_unknown_groupings_orders_and_filters_are_refused(tmp_path: Path) -> None:
    lake = hypaware.open_lake(make_home(tmp_path / "home"))

    with pytest.raises(UsageError, match="by must be one of day, week"):
        lake.usage(by="hour")
    with pytest.raises(UsageError, match="sort must be one of time, cost"):
        lake.sessions(sort="size")
    with pytest.raises(UsageError, match="--since"):
        lake.sessions(since="soon")
    with pytest.raises(TypeError):
        lake.sessions(projekt="web")
