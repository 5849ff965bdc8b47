"""The privacy gate on tables: no row of an excluded folder or session leaves, and no secret."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.rows import PrivacyGate, redact_table
from hypaware.home import Home
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.privacy.redact import text_redactors
from hypaware.privacy.secret_rules import SECRET_HINT
from tests.support.secrets import REDACTION, redact_row, redact_text

KEY = "gh" + "p_" + "a1B2" * 9
names = st.none() | st.sampled_from(["/a", "/b", "/c d", ""])
rows = st.lists(
    st.fixed_dictionaries({"cwd": names, "session_id": st.sampled_from(["s", "t"]), "n": st.integers(0, 9)})
)
SCHEMA = pa.schema([("cwd", pa.string()), ("session_id", pa.string()), ("n", pa.int64())])


@given(rows, st.sets(st.tuples(names, st.sampled_from(["s", "t"]))))
def test_the_policy_is_checked_for_each_pair_of_folder_and_session(
    found: list[dict[str, object]], closed: set[tuple[str | None, str]]
) -> None:
    def is_withheld(cwd: str | None, session: str | None) -> bool:
        return (cwd, session) in closed

    table = pa.Table.from_pylist(found, SCHEMA).append_column(
        "_hyp_ingest_seq", pa.array(range(len(found)), pa.int64())
    )
    stay = [(row["cwd"], row["session_id"]) in closed for row in found]
    left, report = PrivacyGate(is_withheld).filter_rows("any", table)
    assert left.column("_hyp_ingest_seq").to_pylist() == [seq for seq, stays in enumerate(stay) if not stays]
    assert report.withheld == tuple(seq for seq, stays in enumerate(stay) if stays)
    assert PrivacyGate(is_withheld).still_allowed(table) == (not any(stay))


def test_a_dataset_without_folder_and_session_withholds_nothing() -> None:
    neither, only_session = (
        pa.table({"_hyp_ingest_seq": [1]}),
        pa.table({"_hyp_ingest_seq": [1, 2], "session_id": ["s", "t"]}),
    )
    assert PrivacyGate(lambda cwd, session: True).filter_rows("any", neither)[1].withheld == ()
    assert PrivacyGate(lambda cwd, session: session == "s").filter_rows("any", only_session)[1].withheld == (1,)


@pytest.mark.hazard(59)
def test_gated_rows_contain_no_excluded_rows_and_no_secrets_and_are_counted(home: Home, tmp_path: Path) -> None:
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
    columns = {
        name: partial(redact, redaction=REDACTION) for name, redact in text_redactors(AI_GATEWAY_MESSAGES).items()
    }
    gate = PrivacyGate(PrivacyPolicy(home).is_withheld, lambda _dataset: columns)
    found, gate_report = gate.filter_rows("ai_gateway_messages", table)
    assert found["_hyp_ingest_seq"].to_pylist() == [2, 3]
    assert KEY not in str(found.drop_columns(["part_id"]).to_pylist())
    assert found["part_id"].to_pylist() == ["b#0", KEY]
    assert found.schema == table.schema
    assert gate_report.withheld == (1,)
    assert gate_report.secrets == {2: {"github-token": 1, "assigned-secret": 1}, 3: {"github-token": 1}}
    assert (gate_report.slice(2, 3).withheld, gate_report.slice(2, 3).secrets) == ((), {3: {"github-token": 1}})
    assert not gate.still_allowed(table)
    assert gate.still_allowed(found)
    (tmp_path / "here/.hypignore").unlink()
    assert gate.still_allowed(table)


texts = st.none() | st.lists(st.sampled_from([KEY, "password=", "hunter2!x", " ", "text", '"', "ü"])).map("".join)


@given(st.lists(st.lists(st.fixed_dictionaries({"content_text": texts, "cwd": texts}), max_size=4), max_size=3))
def test_table_redaction_equals_row_redaction(chunks: list[list[dict[str, str | None]]]) -> None:
    schema = pa.schema([("content_text", pa.string()), ("cwd", pa.large_string())])
    table = pa.concat_tables([schema.empty_table(), *(pa.Table.from_pylist(each, schema) for each in chunks)])
    found, matches = redact_table(
        table, {"content_text": redact_text, "cwd": redact_text, "absent": redact_text}, SECRET_HINT
    )
    expected = [redact_row(AI_GATEWAY_MESSAGES, row) for chunk in chunks for row in chunk]
    assert found.to_pylist() == [row for row, _ in expected]
    assert matches == {place: counts for place, (_, counts) in enumerate(expected) if counts}
    assert found.schema == schema


def test_a_shared_text_is_redacted_once_and_a_text_without_a_hint_never() -> None:
    seen: list[str] = []

    def redact(text: str) -> tuple[str, Counter[str]]:
        seen.append(text)
        return ("-", Counter(x=1)) if text == "secret" else (text, Counter())

    table, matches = redact_table(
        pa.table({"a": ["secret", "plain", "secret", None, "secretary"]}), {"a": redact}, "secret"
    )
    assert table["a"].to_pylist() == ["-", "plain", "-", None, "secretary"]
    assert (matches, sorted(seen)) == ({0: {"x": 1}, 2: {"x": 1}}, ["secret", "secretary"])
