"""`--output`: the complete result, or the previous file."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hypaware.errors import HypError, UsageError
from hypaware.query.formats import format_of_file, open_output


def test_the_file_appears_complete_and_only_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"

    with open_output(target) as write:
        write(b"one,")
        assert not target.exists()
        write(b"two")

    assert target.read_bytes() == b"one,two"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_failure_leaves_the_previous_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "rows.csv"
    target.write_text("before")

    def interrupted() -> None:
        with open_output(target) as write:
            write(b"half a result")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert target.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_a_replaced_file_keeps_its_mode_and_a_link_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "rows.csv", tmp_path / "link"
    target.touch()
    target.chmod(0o640)
    link.symlink_to(target)

    with open_output(link) as write:
        write(b"x")

    assert link.is_symlink()
    assert target.read_bytes() == b"x"
    assert target.stat().st_mode & 0o777 == 0o640


def test_a_new_file_gets_the_mode_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with open_output(tmp_path / "rows.csv") as write:
            write(b"x")
    finally:
        os.umask(before)

    assert (tmp_path / "rows.csv").stat().st_mode & 0o777 == 0o640


def test_a_named_pipe_is_written_directly(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()

    with open_output(pipe) as write:
        write(b"through")
    reader.join()

    assert read == [b"through"]
    assert pipe.is_fifo()


@pytest.mark.parametrize("where", ["", "not/there.csv"])
def test_a_folder_and_a_missing_folder_are_wrong_usage(tmp_path: Path, where: str) -> None:
    with pytest.raises(UsageError, match="folder"), open_output(tmp_path / where):
        raise AssertionError("it must not begin")


def test_a_disk_error_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    with (
        pytest.raises(HypError, match=r"cannot write .*rows\.csv: No space left"),
        open_output(tmp_path / "rows.csv"),
    ):
        raise OSError(28, "No space left on device")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("x.csv", "csv"), ("a/X.JSON", "json"), ("x.jsonl", "jsonl"), ("x.md", "markdown"), ("x", "table")],
)
def test_the_name_of_a_file_implies_its_format(name: str, expected: str) -> None:
    assert format_of_file(Path(name)) == expected
