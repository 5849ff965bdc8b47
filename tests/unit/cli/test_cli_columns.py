"""Tables of the reading commands: their width, and short numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hypaware.cli import columns
from hypaware.cli.columns import TextColumn, format_cost, format_span, render_columns

cells = st.lists(st.text(max_size=50), min_size=1, max_size=3)


@given(st.lists(cells, min_size=2, max_size=6), st.integers(10, 150))
def test_no_line_of_a_table_is_wider_than_the_terminal(values: list[list[str]], width: int) -> None:
    rows = min(map(len, values))
    table = [
        TextColumn(f"column {at}", each[:rows], rank=at, right=at % 2 == 1, flexible=at == 0)
        for at, each in enumerate(values)
    ]

    lines = list(render_columns(table, width))

    assert len(lines) == rows + 1
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize(
    ("cost", "unpriced", "shown"),
    [
        *((None, [], "-"), (None, ["x"], "?"), (0.0, [], "$0.00"), (0.001, [], "<$0.01"), (1.234, [], "$1.23")),
        *((1.234, ["x"], "$1.23+"), (1234.5, [], "$1,234.50"), (12_345.6, [], "$12,346")),
    ],
)
def test_costs_are_shown_in_dollars(cost: float | None, unpriced: list[str], shown: str) -> None:
    assert format_cost(cost, unpriced) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (59, "59s"), (59.6, "1m"), (3599, "1h00"), (7500, "2h05"), (200_000, "2d")]
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert format_span(seconds) == shown


def test_characters_that_count_as_narrow_take_one_column_each() -> None:
    narrow = [char for char in map(chr, range(0x20, 0x3000)) if columns._NARROW.fullmatch(char)]

    assert len(narrow) > 800
    assert [char for char in narrow if cell_len(char) != 1] == []
