"""The selection rule in its three forms: for a row, for columns, and for metadata."""

from __future__ import annotations

import gzip
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.iceberg.metadata import DataFile
from hypaware.maintain.purge import verify
from hypaware.maintain.purge.search import SearchTask
from hypaware.maintain.purge.selector import PurgeSelector, RowPredicate, SelectorKind, unaffected_datasets
from hypaware.model import datasets
from hypaware.model.columns import Column, ColumnType, format_timestamp
from hypaware.model.datasets import KEY_BYTES, SEQ, SOURCE, Dataset
from tests.support.rows import DATASET, MESSAGES

EXCHANGES = datasets.get("ai_gateway_exchanges")
RAW_COLUMNS = ("session_id", "request_body", "request_headers")
NAMES = st.sampled_from(["a", "ab", "a b", "ä", "\U0001f600", "b", "~"])
PATHS = st.lists(st.sampled_from(["work", "acme", "acme-two", "ä", "a b"]), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts) or "/"
)
MOMENTS = st.integers(0, 6).map(lambda hours: datetime(2026, 11, 14, 20, tzinfo=UTC) + timedelta(hours=hours))


@st.composite
def selectors(draw: st.DrawFn) -> PurgeSelector:
    kind: SelectorKind = draw(st.sampled_from(["session", "source", "cwd", "before"]))
    if kind == "before":
        return PurgeSelector(kind, (format_timestamp(draw(MOMENTS)),))
    values = st.lists(PATHS.map(lambda path: path.rstrip("/")) if kind == "cwd" else NAMES, min_size=1, max_size=3)
    return PurgeSelector(kind, tuple(draw(values)))


ROWS = st.lists(
    st.fixed_dictionaries(
        {"session_id": NAMES, "client_name": NAMES, "cwd": st.none() | PATHS, "message_created_at": MOMENTS}
    ),
    max_size=8,
)


@given(selectors(), ROWS)
def test_all_forms_of_the_rule_agree_on_a_row(selector: PurgeSelector, found: list[dict[str, Any]]) -> None:
    table = pa.table(
        {
            "session_id": pa.array([row["session_id"] for row in found], pa.string()),
            "cwd": pa.array([row["cwd"] for row in found], pa.string()),
            SOURCE: pa.array([row["client_name"] for row in found], pa.string()),
            "message_created_at": pa.array([row["message_created_at"] for row in found], pa.timestamp("us", "UTC")),
        }
    )
    coerced = [{**row, "message_created_at": format_timestamp(row["message_created_at"])} for row in found]
    by_row = [selector.matches(MESSAGES, {k: v for k, v in row.items() if v is not None}) for row in coerced]
    assert RowPredicate(selector, DATASET).select(table).to_pylist() == by_row
    column = selector.column(MESSAGES)
    assert column is not None
    values = [value for value in table.column(column).to_pylist() if value is not None]
    if any(by_row):
        assert selector.may_match(min(values), max(values))
        assert selector.may_match(None, None)
    for row, matches in zip(found, by_row, strict=True):
        day = row["message_created_at"].date()
        assert not matches or selector.may_be_in(_file(row["client_name"], day))


RAW = st.lists(
    st.fixed_dictionaries(
        {
            "session_id": st.none() | st.sampled_from(["session-one", "session-two", "short"]),
            "request_body": st.none() | st.text(max_size=3).map(lambda text: f"{text} session-one"),
            "request_headers": st.none() | st.sampled_from(['{"id":"session-two"}', '{"id":"session-two-2"}', "short"]),
        }
    ),
    max_size=8,
)


@given(st.lists(st.sampled_from(["session-one", "session-two", "short"]), min_size=1, unique=True), RAW)
def test_all_forms_agree_on_a_row_without_a_session(names: list[str], found: list[dict[str, Any]]) -> None:
    selector = PurgeSelector("session", tuple(names))
    table = pa.table({name: pa.array([row[name] for row in found], pa.string()) for name in RAW_COLUMNS})
    by_row = [selector.matches(EXCHANGES, {k: v for k, v in row.items() if v is not None}) for row in found]
    assert RowPredicate(selector, EXCHANGES.name).select(table).to_pylist() == by_row
    has_session = [row["session_id"] in names for row in found]
    assert all(matches for matches, is_selected in zip(by_row, has_session, strict=True) if is_selected)
    assert not any(
        matches for matches, row in zip(by_row, found, strict=True) if row["session_id"] not in (None, *names)
    )


PLAIN = Dataset(
    name="plain",
    about="Rows without a session and a folder.",
    columns=(Column("id", ColumnType.STRING, ""), Column("at", ColumnType.TIMESTAMP, "")),
    time_column="at",
    source_columns=(),
    key_column="id",
)


def test_a_row_without_a_session_is_selected_if_its_text_mentions_the_session() -> None:
    selector = PurgeSelector("session", ("session-one", "8letters", "7letter"))
    assert selector.matches(EXCHANGES, {"request_body": "before session-one after"})
    assert selector.matches(EXCHANGES, {"request_headers": '{"id":"8letters"}'})
    assert not selector.matches(EXCHANGES, {"request_body": "7letter"}), "a short id may occur by chance"
    assert not selector.matches(EXCHANGES, {"request_body": "session-one-2 or xsession-one"}), "it is another word"
    assert not selector.matches(EXCHANGES, {"session_id": "other", "request_body": "session-one"})
    assert not selector.matches(MESSAGES, {"content_text": "session-one"}), "every message has its session"
    assert not PurgeSelector("cwd", ("/session-one",)).matches(MESSAGES, {"content_text": "/session-one"})


@pytest.mark.parametrize(
    ("kind", "dataset", "expected"),
    [
        ("session", MESSAGES, False),
        ("session", EXCHANGES, True),
        ("session", PLAIN, False),
        ("cwd", MESSAGES, True),
        ("cwd", EXCHANGES, False),
        ("source", EXCHANGES, False),
        ("before", EXCHANGES, False),
        ("before", PLAIN, False),
    ],
)
def test_rows_that_may_lack_the_session_or_folder_are_known(
    kind: SelectorKind, dataset: Dataset, expected: bool
) -> None:
    assert PurgeSelector(kind, ("a value",)).may_be_unattributed(dataset) is expected


def test_rows_without_a_folder_are_selected_by_the_sessions_that_worked_in_it() -> None:
    by_folder, by_session = PurgeSelector("cwd", ("/work",)), PurgeSelector("session", ("s",))
    assert by_folder.for_dataset(MESSAGES, ["s", "t"]) is by_folder
    assert by_folder.for_dataset(EXCHANGES, ["s", "t"]) == PurgeSelector("session", ("s", "t"))
    assert by_folder.for_dataset(PLAIN, ["s", "t"]) is None
    assert by_session.for_dataset(EXCHANGES, ["t"]) is by_session
    assert by_session.for_dataset(PLAIN, ["t"]) is None


def test_a_selector_keeps_later_rows_out_only_if_it_is_of_sessions_or_a_time() -> None:
    kinds: list[SelectorKind] = ["session", "source", "cwd", "before"]
    assert [PurgeSelector(kind, ("v",)).is_permanent for kind in kinds] == [True, False, False, True]
    named = PurgeSelector.from_args({"kind": "session", "values": ["b", "a b", "b"]})
    assert named.as_json() == {"kind": "session", "values": ["b", "a b"]}
    assert PurgeSelector.from_args(named.as_json()) == named
    assert [stone.command for stone in named.tombstones] == ["hyp purge --session b", "hyp purge --session 'a b'"]


def _file(source: str, day: date | None) -> DataFile:
    return DataFile(Path("/x"), 1, 1, source, 1, 1, 1, day)


@pytest.mark.parametrize(
    ("selector", "source", "day", "expected"),
    [
        (PurgeSelector("source", ("claude",)), "codex", date(2026, 1, 1), False),
        (PurgeSelector("before", ("2026-10-02T05:00:00.000000Z",)), "claude", date(2026, 10, 3), False),
        (PurgeSelector("before", ("2026-10-02T05:00:00.000000Z",)), "claude", date(2026, 10, 2), True),
        (PurgeSelector("before", ("2026-10-02T05:00:00.000000Z",)), "claude", None, True),
        (PurgeSelector("session", ("s",)), "claude", date(2026, 10, 2), True),
    ],
)
def test_partitions_without_a_match_are_excluded(
    selector: PurgeSelector, source: str, day: date | None, expected: bool
) -> None:
    assert selector.may_be_in(_file(source, day)) is expected


@pytest.mark.parametrize(
    ("kind", "value", "lowest", "highest", "expected"),
    [
        ("session", "b", "a", "c", True),
        ("session", "b", "b", "b", True),
        ("session", "b", "c", "d", False),
        ("session", "b", "a", "az", False),
        ("session", "b", None, "a", True),
        ("session", "b", "c", None, True),
        ("cwd", "/srv", "/srv/acme", "/srv/ä", True),
        ("cwd", "/srv", "/x", "/y", False),
        ("before", "2026-10-02T05:00:00.000000Z", datetime(2026, 10, 2, 4, 59), datetime(2026, 10, 3), True),
        ("before", "2026-10-02T05:00:00.000000Z", datetime(2026, 10, 2, 5), datetime(2026, 10, 3), False),
    ],
)
def test_bounds_exclude_a_row_group_only_if_no_value_between_them_matches(
    kind: SelectorKind, value: str, lowest: str | datetime | None, highest: str | datetime | None, expected: bool
) -> None:
    assert PurgeSelector(kind, (value,)).may_match(lowest, highest) is expected


def test_row_groups_are_skipped_by_their_bounds(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pq.ParquetWriter(
        path, pa.schema([(SEQ, pa.int64()), ("session_id", pa.string()), ("part_id", pa.string())])
    ) as out:
        for start, name in ((0, "a"), (10, "b"), (20, "c")):
            out.write_table(
                pa.table(
                    {SEQ: [start, start + 1], "session_id": [name, f"{name}x"], "part_id": [f"{name}#0", f"{name}#1"]}
                )
            )
    (found,) = SearchTask(DATASET, (path,), PurgeSelector("session", ("bx", "c")), None).run().reports
    assert (found.rows, found.total_rows, list(found.seqs), found.ids) == (2, 6, [11, 20], ["b#1", "c#0"])
    assert all(packed and len(packed) % KEY_BYTES == 0 for packed in found.hashes)


def test_a_file_older_than_the_column_has_no_match(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({SEQ: [1], "part_id": ["a#0"]}), path)
    (found,) = SearchTask(DATASET, (path,), PurgeSelector("cwd", ("/work",)), None).run().reports
    assert (found.rows, found.total_rows) == (0, 1)


def test_a_dataset_without_the_column_is_left_alone() -> None:
    bare = replace(MESSAGES, columns=tuple(each for each in MESSAGES.columns if each.name not in ("cwd", "session_id")))
    for selector in (PurgeSelector("cwd", ("/x",)), PurgeSelector("session", ("/x",))):
        assert unaffected_datasets(selector, [MESSAGES, bare]) == [bare.name]
        assert not selector.matches(bare, {"cwd": "/x", "session_id": "/x"})
    assert unaffected_datasets(PurgeSelector("source", ("claude",)), [bare]) == []


def test_compressed_files_are_searched(tmp_path: Path) -> None:
    text = b"planted words " * 1000
    zstd = pa.Codec("zstd").compress(text, asbytes=True)
    block = pa.Codec("lz4_raw").compress(text, asbytes=True)
    head = b"LZ4Block" + bytes([0x25]) + len(block).to_bytes(4, "little") + len(text).to_bytes(4, "little") + bytes(4)
    end = b"LZ4Block" + bytes([0x15]) + bytes(12)
    for name, body in (
        ("g", gzip.compress(text)),
        ("z", zstd),
        ("l", head + block + end),
        ("torn", gzip.compress(text)[:30]),
    ):
        (tmp_path / name).write_bytes(body)
    found = {name: [text in each for each in verify.file_contents(tmp_path / name)] for name in ("g", "z", "l", "torn")}
    assert found == {"g": [False, True], "z": [False, True], "l": [False, True], "torn": [False]}
