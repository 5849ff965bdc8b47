"""What leaves: no row of a folder or session that is to stay here, and no secret."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.capture.privacy import Privacy
from hypaware.capture.redact import columns_with_text
from hypaware.export.rows import Page
from hypaware.export.withheld import Leaving, redacted, withheld, without_withheld
from hypaware.home import Home
from hypaware.model.messages import AI_GATEWAY_MESSAGES

KEY = "gh" + "p_" + "a1B2" * 9
names = st.none() | st.sampled_from(["/a", "/b", "/c d", ""])
rows = st.lists(
    st.fixed_dictionaries({"cwd": names, "session_id": st.sampled_from(["s", "t"]), "n": st.integers(0, 9)})
)
SCHEMA = pa.schema([("cwd", pa.string()), ("session_id", pa.string()), ("n", pa.int64())])


@given(rows, st.sets(st.tuples(names, st.sampled_from(["s", "t"]))))
def test_the_table_form_keeps_back_the_same_rows_as_the_row_form(
    found: list[dict[str, object]], closed: set[tuple[str | None, str]]
) -> None:
    def is_withheld(cwd: str | None, session: str | None) -> bool:
        return (cwd, session) in closed

    table = without_withheld(pa.Table.from_pylist(found, SCHEMA), is_withheld)
    assert table.to_pylist() == [row for row in found if not withheld(row, is_withheld)]
    assert table.schema == SCHEMA


def test_a_dataset_without_folder_and_session_has_nothing_to_keep_back() -> None:
    table = pa.table({"x": [1]})
    assert without_withheld(table, lambda cwd, session: True) is table
    only_session = pa.table({"session_id": ["s", "t"]})
    assert without_withheld(only_session, lambda cwd, session: session == "s").to_pylist() == [{"session_id": "t"}]


class OnePage:
    def __init__(self, table: pa.Table) -> None:
        self.table = table

    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> Page:
        return Page(self.table, after, until)

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        return self.table

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        return len(self.table)


@pytest.mark.hazard(59)
def test_a_delivery_sees_only_what_may_leave_and_the_range_stays_whole(home: Home, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here/.hypignore").write_text("local-only")
    table = pa.table(
        {
            "_hyp_ingest_seq": [1, 2, 3],
            "cwd": [str(tmp_path / "here"), "/open", "/open"],
            "session_id": ["s", "s", KEY],
            "part_id": ["a#0", "b#0", KEY],
            "content_text": ["stays", f"use {KEY}", None],
            "tool_args": [None, f'{{"token":"{KEY}"}}', None],
        }
    )
    columns = {name: partial(redact, rules_off=()) for name, redact in columns_with_text(AI_GATEWAY_MESSAGES).items()}
    leaving = Leaving(OnePage(table), Privacy(home).withheld, lambda _dataset: columns)
    page = asyncio.run(leaving.page("ai_gateway_messages", "claude", 0, 3, 10))
    assert (page.after, page.reached, page.table["_hyp_ingest_seq"].to_pylist()) == (0, 3, [2, 3])
    assert KEY not in str(page.table.drop_columns(["part_id"]).to_pylist())
    assert page.table["part_id"].to_pylist() == ["b#0", KEY]
    assert page.table.schema == table.schema
    assert leaving.counts == {"withheld": 1, "github-token": 2, "assigned-secret": 1}
    assert asyncio.run(leaving.between("ai_gateway_messages", "claude", 0, 3)) == page.table
    assert leaving.count("ai_gateway_messages", "claude", 0, 3) == 3


def test_a_text_that_many_rows_share_is_looked_at_once() -> None:
    seen: list[str] = []

    def redact(text: str) -> tuple[str, Counter[str]]:
        seen.append(text)
        return ("-", Counter(x=1)) if text == "secret" else (text, Counter())

    table, counts = redacted(pa.table({"a": ["secret", "plain", "secret", None]}), {"a": redact, "absent": redact})
    assert (table["a"].to_pylist(), counts, sorted(seen)) == (["-", "plain", "-", None], {"x": 2}, ["plain", "secret"])
