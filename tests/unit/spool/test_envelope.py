"""The validity of segment lines: readers of the spool and flush accept the same lines."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.home import Home
from hypaware.lake.build import BuildSettings, SegmentSlice, SegmentTask
from hypaware.model.datasets import INTERNAL, RowRejected, coerce_row
from hypaware.spool import segments
from hypaware.spool.reader import read_spooled_rows
from tests.support.rows import DATASET, MESSAGES, rows
from tests.support.strategies import json_values

_GOOD = [coerce_row(MESSAGES, raw, "gw-1") for raw in rows(3)]


def _line(ordinal: int = 0, **changes: object) -> bytes:
    return orjson.dumps({"n": ordinal, "v": 1, "row": _GOOD[0], **changes}) + b"\n"


def test_written_lines_are_read_back() -> None:
    lines = segments.encode_lines(_GOOD, 5).splitlines(keepends=True)
    assert [segments.decode_line(MESSAGES, line, ordinal) for ordinal, line in enumerate(lines, 5)] == _GOOD


@pytest.mark.hazard(5)
def test_a_line_with_the_wrong_ordinal_is_rejected() -> None:
    (line,) = segments.encode_lines(_GOOD[:1], 5).splitlines(keepends=True)
    with pytest.raises(RowRejected, match="has ordinal 5, expected 4"):
        segments.decode_line(MESSAGES, line, 4)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "truncated"),
        (_line().removesuffix(b"\n"), "truncated"),
        (b"\n", "not JSON"),
        (b"{}\n", "not an envelope of version 1"),
        (b"[]\n", "not an envelope"),
        (b"\0\0\0\n", "not JSON"),
        (b'{"n":0,"v":1,"row":{"\xff":1}}\n', "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (_line(v=2), "not an envelope of version 1"),
        (_line(n="0"), "has ordinal '0'"),
        (_line(n=None), "has ordinal None"),
        (_line(row=None), "has no row"),
        (_line(row=[]), "has no row"),
        (_line(row={}), "column session_id is required"),
        (_line(row={**_GOOD[0], "role": 1}), "column role: expected text"),
        (_line(row={**_GOOD[0], "_hyp_ingest_seq": 1}), "set by the lake"),
    ],
)
def test_an_invalid_line_is_rejected_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(RowRejected, match=reason):
        segments.decode_line(MESSAGES, line, 0)


def test_rows_keep_their_gateway_id_when_the_home_gets_a_new_one() -> None:
    assert segments.decode_line(MESSAGES, _line(), 0)["gateway_id"] == "gw-1"


def _spoiled(line: bytes, place: int, piece: bytes) -> bytes:
    at = place % len(line)
    return line[:at] + piece + line[at + len(piece) :]


# An empty line stands for a valid one at its position.
_lines = st.one_of(
    st.just(b""),
    st.builds(_spoiled, st.just(_line()), st.integers(0, 10_000), st.binary(min_size=1, max_size=3)),
    st.binary(max_size=20).map(lambda raw: raw + b"\n"),
    json_values.map(lambda value: json.dumps({"n": 0, "v": 1, "row": value}).encode() + b"\n"),
    st.sampled_from([b"{}\n", _line(v=2), _line(row=None), _line(n=7), _line(row={**_GOOD[0], "date": "2026-01-01"})]),
)


@pytest.mark.hazard(2)
@settings(max_examples=60)
@given(st.lists(_lines, min_size=1, max_size=6), st.binary(max_size=10))
def test_reader_and_flush_accept_the_same_lines(drawn: list[bytes], tail: bytes) -> None:
    """Otherwise an import would skip a row that the spool seems to have and that no flush commits."""
    pieces = [line or segments.encode_lines(_GOOD[:1], ordinal) for ordinal, line in enumerate(drawn)]
    held = b"".join(pieces) + tail
    with TemporaryDirectory() as folder:
        home = Home(Path(folder))
        where = segments.spool_folder(home, DATASET)
        where.create()
        (where.sealed / segments.sealed_file_name("1-a", held.count(b"\n"))).write_bytes(held)
        (segment,) = segments.list_sealed_segments(where)
        read = [found["message_id"] for found in read_spooled_rows(home, DATASET)]
        columns = [column.name for column in MESSAGES.columns] + list(INTERNAL)
        field_ids = {name: number for number, name in enumerate(columns, 1)}
        settings = BuildSettings(DATASET, "flush", home.warehouse, field_ids)
        built = SegmentTask(settings, (SegmentSlice(segment.name, segment.path, 1, 0, segment.rows),)).run()
        refused = {reject.ordinal for reject in built.rejects}
        assert len(read) == built.rows == segment.rows - len(refused)
        assert [seq - 1 for seq in built.seqs] == [each for each in range(segment.rows) if each not in refused]
