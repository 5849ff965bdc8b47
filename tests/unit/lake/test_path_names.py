"""External names become folder names. The files of any source stay below their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.lake.build import BuildSettings, SegmentSlice, SegmentTask, encode_path_name
from hypaware.model.datasets import INTERNAL, SOURCE, coerce_row
from hypaware.spool import segments
from tests.support.rows import DATASET, MESSAGES, rows

pytestmark = pytest.mark.hazard(61)

_HOSTILE = [
    "../../../etc/passwd", "/absolute", "..", ".", "a/b", "a\\b", "a\0b", "a\nb", "~", "-rf", "*", "a=b", "a b", "a_b",
    "%2F", "%252F", "ünïcödé", "🐍" * 200, "x" * 5_000, "x" * 4_999 + "y", "CON", " ", "a.", "a%2E",
]  # fmt: skip
_sources = st.text(min_size=1, max_size=300) | st.sampled_from(_HOSTILE)


@given(_sources)
def test_any_source_becomes_one_safe_folder_name(source: str) -> None:
    name = encode_path_name(source)
    assert name
    assert not set(name) & set("/\\\0\n*. ")
    assert name.isascii()
    assert len(f"{SOURCE}={name}") < 255


@given(st.lists(_sources, unique=True, min_size=2, max_size=10))
def test_different_sources_get_different_folder_names(sources: list[str]) -> None:
    assert len({encode_path_name(source) for source in sources}) == len(sources)


def test_a_build_writes_below_its_root_and_stores_the_exact_source(tmp_path: Path) -> None:
    sources = _HOSTILE
    named = zip(rows(len(sources)), sources, strict=True)
    coerced = [coerce_row(MESSAGES, {**row, "client_name": name}, "gw-1") for row, name in named]
    segment, root = tmp_path / "segment", tmp_path / "a" / "b" / "data"
    segment.write_bytes(segments.encode_lines(coerced, 0))
    columns = [column.name for column in MESSAGES.columns] + list(INTERNAL)
    settings = BuildSettings(DATASET, "flush", root, {name: number for number, name in enumerate(columns, 1)})
    built = SegmentTask(settings, (SegmentSlice("segment", segment, 1, 0, len(sources)),)).run()
    assert built.rejects == []
    assert {file.source for file in built.files} == set(sources)
    written = {Path(folder) / name for folder, _, names in os.walk(tmp_path) for name in names} - {segment}
    assert written == {file.path for file in built.files}
    assert all(path.parent.parent.parent == root for path in written)
