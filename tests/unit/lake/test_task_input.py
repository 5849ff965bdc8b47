"""The input of tasks on a cluster: packed by the driver, unpacked by an executor."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypaware.home.storage import BucketSettings, ObjectPath, register_bucket
from hypaware.lake import task_input
from hypaware.lake.build import (
    BuildFailure,
    BuildResult,
    BuildSettings,
    SegmentSlice,
    SegmentTask,
    SliceUnreadable,
    run_catching,
)
from hypaware.lake.task_input import PackedInput, copied_inputs, pack_inputs, run_copied
from hypaware.model.datasets import INTERNAL
from hypaware.model.schemas import AI_GATEWAY_MESSAGES
from tests.support.ports import held_port


def settings(folder: Path) -> BuildSettings:
    columns = [column.name for column in AI_GATEWAY_MESSAGES.columns] + list(INTERNAL)
    return BuildSettings(AI_GATEWAY_MESSAGES.name, "flush", folder, {name: at for at, name in enumerate(columns, 1)})


class Bytes:
    def __init__(self, *blocks: bytes, error: Exception | None = None) -> None:
        self._blocks, self._error = blocks, error

    def read_bytes(self) -> Iterator[bytes]:
        yield from self._blocks
        if self._error is not None:
            raise self._error


class Piece:
    """A broadcast, as an executor has it."""

    def __init__(self, value: bytes) -> None:
        self.value = value


@pytest.mark.parametrize("size", [1, 3, 4, 100])
def test_inputs_of_any_size_arrive_as_they_were_in_pieces_of_limited_size(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(task_input, "PIECE_BYTES", size)
    inputs = [Bytes(b"abcdef", b"ghij"), Bytes(), Bytes(b"k"), Bytes(b"lmnopqrstuvwxyz" * 5)]
    packed: list[PackedInput] = []
    pieces = list(pack_inputs(inputs, packed))
    assert max(map(len, pieces)) <= size
    with copied_inputs(packed, pieces) as copies:
        found = [copy.read_bytes() for copy in copies if isinstance(copy, Path)]
        folder = copies[0].parent if isinstance(copies[0], Path) else None
        assert found == [b"abcdefghij", b"", b"k", b"lmnopqrstuvwxyz" * 5]
    assert folder is not None
    assert not folder.exists()


def test_an_input_that_the_driver_cannot_read_does_not_shift_the_others() -> None:
    inputs = [Bytes(b"half", error=FileNotFoundError(2, "No such file", "/source")), Bytes(b"whole")]
    packed: list[PackedInput] = []
    pieces = list(pack_inputs(inputs, packed))
    with copied_inputs(pickle.loads(pickle.dumps(packed)), pieces) as (first, second):
        assert isinstance(first, FileNotFoundError)
        assert isinstance(second, Path)
        assert second.read_bytes() == b"whole"


def test_a_copied_slice_has_the_lines_and_ordinals_of_the_segment(tmp_path: Path) -> None:
    segment = tmp_path / "segment.jsonl"
    segment.write_bytes(b"".join(b'{"line": %d}\n' % number for number in range(10)))
    piece = SegmentSlice("segment", segment, 1, 3, 7)
    task = SegmentTask(settings(tmp_path), (piece,))
    expected = list(piece.lines())
    packed: list[PackedInput] = []
    pieces = list(pack_inputs(task.inputs, packed))
    segment.unlink()
    with copied_inputs(packed, pieces) as copies:
        (copied,) = task.with_copies(copies).slices
        assert list(copied.lines()) == expected


@pytest.mark.hazard(116)
def test_a_segment_that_the_driver_cannot_read_is_an_error_and_not_an_empty_segment(tmp_path: Path) -> None:
    missing = SegmentSlice("segment", tmp_path / "missing", 1, 0, 3)
    task = SegmentTask(settings(tmp_path), (missing,))
    packed: list[PackedInput] = []
    pieces = [Piece(each) for each in pack_inputs(task.inputs, packed)]
    found = run_copied((task, {}), packed, pieces)
    assert isinstance(found, BuildFailure)
    assert (found.segment, found.is_environmental) == ("segment", True)
    with pytest.raises(SliceUnreadable):
        list(task.with_copies([FileNotFoundError(2, "gone")]).slices[0].lines())


def test_a_task_without_questions_returns_its_result(tmp_path: Path) -> None:
    segment = tmp_path / "segment.jsonl"
    segment.write_bytes(b"not json\n")
    task = SegmentTask(settings(tmp_path), (SegmentSlice("segment", segment, 1, 0, 1),))
    packed: list[PackedInput] = []
    pieces = [Piece(each) for each in pack_inputs(task.inputs, packed)]
    found = run_copied((task, {}), packed, pieces)
    assert isinstance(found, BuildResult)
    assert [each.line for each in found.rejects] == [b"not json\n"]


@pytest.mark.parametrize("has_keys", [True, False], ids=["no answer", "no keys"])
def test_a_store_that_does_not_give_an_object_is_not_the_fault_of_its_rows(tmp_path: Path, has_keys: bool) -> None:
    """Otherwise a flush would look for poison rows in the object, and reject each of them."""
    keys = tmp_path / "keys"
    keys.write_text("[default]\naws_access_key_id = someone\naws_secret_access_key = else\n" if has_keys else "")
    with held_port() as port:
        address = f"http://127.0.0.1:{port}"
        register_bucket("nowhere", BucketSettings(address, "us-east-1", path_style=True, credentials=str(keys)))
        piece = SegmentSlice("segment", ObjectPath("s3://nowhere/segment.1.jsonl"), 1, 0, 1)
        found = run_catching(SegmentTask(settings(tmp_path), (piece,)))
    assert isinstance(found, BuildFailure)
    assert (found.segment, found.is_environmental) == (None, True)
