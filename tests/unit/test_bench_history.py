"""The generated history of the benchmark, and the baseline program that it compares the import with."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import floor, transcripts
from bench.transcripts import History
from hypaware.clients.claude.history import ClaudeHistory
from hypaware.clients.client import ImportItem
from hypaware.clients.exchange_rows import PROJECTED_EXCHANGE
from hypaware.clients.reader import SourceReader, SourceSnapshot
from hypaware.model import canonical
from hypaware.model.datasets import INTERNAL, ROW_ID, Row, coerce_row
from tests.support.rows import MESSAGES

SIZE = {"bytes": 800_000, "lines": 600, "sessions": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("claude")


@pytest.fixture(scope="module")
def history(folder: Path) -> History:
    return transcripts.generate(folder, **SIZE)


@pytest.fixture(scope="module")
def table(folder: Path, history: History, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    out = tmp_path_factory.mktemp("floor")
    assert floor.write(folder, out) == history.rows
    return pa.concat_tables(pq.read_table(path) for path in sorted(out.iterdir()))


def lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in transcripts.files(folder):
        yield from map(json.loads, path.read_bytes().splitlines())


def test_a_history_has_the_requested_lines_sessions_and_about_the_bytes(folder: Path, history: History) -> None:
    files = transcripts.files(folder)

    assert len(files) == history.sessions == SIZE["sessions"]
    assert len(list(lines(folder))) == history.lines == SIZE["lines"]
    assert sum(path.stat().st_size for path in files) == history.bytes == pytest.approx(SIZE["bytes"], rel=0.1)
    assert history.rows == SIZE["lines"] - SIZE["sessions"]
    assert transcripts.load(folder) == history


def test_the_same_seed_gives_the_same_bytes(folder: Path, history: History, tmp_path: Path) -> None:
    again, other = tmp_path / "again", tmp_path / "other"

    assert transcripts.generate(again, **SIZE) == history
    transcripts.generate(other, **SIZE, seed=2)

    assert [path.read_bytes() for path in transcripts.files(again)] == [
        path.read_bytes() for path in transcripts.files(folder)
    ]
    uuids = [{line["uuid"] for line in lines(each) if "uuid" in line} for each in (folder, other)]
    assert len(uuids[0]) == history.rows
    assert not uuids[0] & uuids[1]


def test_every_line_after_the_first_has_one_block_and_a_parent(folder: Path) -> None:
    for path in transcripts.files(folder):
        first, *rest = map(json.loads, path.read_bytes().splitlines())
        assert "uuid" not in first
        assert [line["parentUuid"] for line in rest] == [None, *(line["uuid"] for line in rest[:-1])]
        assert [line["timestamp"] for line in rest] == sorted(line["timestamp"] for line in rest)
        contents = [line["message"]["content"] for line in rest]
        assert all(isinstance(content, str) or len(content) == 1 for content in contents)


def test_only_the_last_line_of_a_message_has_its_final_token_counts(folder: Path, history: History) -> None:
    usage: dict[str, list[dict[str, Any]]] = {}
    for line in lines(folder):
        if "usage" in line.get("message", ()):
            usage.setdefault(line["message"]["id"], []).append(line["message"]["usage"])

    assert len(usage) == history.responses
    assert any(len(counts) > 1 for counts in usage.values())
    assert sum(counts[-1]["output_tokens"] for counts in usage.values()) == history.tokens["output_tokens"]
    assert sum(counts[0]["output_tokens"] for counts in usage.values()) < history.tokens["output_tokens"]


def test_the_baseline_finds_the_generated_rows(table: pa.Table, history: History) -> None:
    attributes = [json.loads(each) for each in table["attributes"].to_pylist()]
    tokens: Counter[str] = Counter()
    for each in attributes:
        tokens.update(each.get("usage", {}))

    assert dict(tokens) == history.tokens
    assert Counter(table["part_type"].to_pylist()) == history.parts
    assert len(set(table["session_id"].to_pylist())) == history.sessions
    assert sum("usage" in each for each in attributes) == history.responses


def test_the_baseline_builds_every_column(table: pa.Table) -> None:
    assert table.column_names[4:] == [column.name for column in MESSAGES.columns]
    assert len(set(table["_hyp_ingest_seq"].to_pylist())) == len(set(table["_hyp_cache_row_id"].to_pylist()))
    assert len(set(table["_hyp_cache_row_id"].to_pylist())) == table.num_rows
    assert [name for name in MESSAGES.required if table[name].null_count] == []


def test_the_baseline_builds_the_same_rows_as_an_import(folder: Path, history: History) -> None:
    """Otherwise the ratio of the two would be meaningless. Sequences and flush ids differ."""
    for path in transcripts.files(folder):
        imported = list(rows_of_the_import(path))
        plain = [row for row, _ in floor.rows_of(path, 1)]

        assert [{name: value for name, value in row.items() if name not in INTERNAL} for row in plain] == imported
        assert [row[ROW_ID] for row in plain] == [canonical.compute_row_id(row) for row in imported]


def rows_of_the_import(path: Path) -> Iterator[Row]:
    found = path.stat()
    skipped: Counter[str] = Counter()
    with SourceReader(SourceSnapshot(path, found.st_ino, found.st_size, found.st_mtime_ns)) as reading:
        for item in ClaudeHistory().read(reading, {"HOME": str(path.parent)}):
            assert isinstance(item, ImportItem)
            for row in PROJECTED_EXCHANGE.materialize(item.value, item.provenance, skipped):
                yield coerce_row(MESSAGES, row, floor.GATEWAY_ID)
    assert not skipped
