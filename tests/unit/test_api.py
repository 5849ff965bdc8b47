from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hypaware
from hypaware.api import Lake
from hypaware.errors import NotReady, UsageError
from hypaware.home import Home
from hypaware.model import datasets

DATASET = datasets.list_names()[0]


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
