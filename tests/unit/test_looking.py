"""A look into somebody's database leaves it as it was, to the last of its files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hypaware.looking import look_into

LEFT = (
    "import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode=WAL');"
    "db.execute('CREATE TABLE told (word TEXT)'); db.execute(\"INSERT INTO told VALUES ('a')\"); db.commit();"
)


@pytest.mark.hazard(54)
@pytest.mark.parametrize("end", ["os._exit(0)", "db.close()"])
def test_a_look_changes_no_file_and_no_time(tmp_path: Path, end: str) -> None:
    """With the side files of somebody who was killed, and without any."""
    path = tmp_path / "told.db"
    subprocess.run([sys.executable, "-c", LEFT + end, str(path)], check=True)
    for each in tmp_path.iterdir():
        os.utime(each, ns=(1_000_000_000, 1_000_000_000))
    assert len(list(tmp_path.iterdir())) == (3 if "exit" in end else 1)
    for _ in range(2):
        before = {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()}
        with look_into(path) as found:
            assert found.execute("SELECT word FROM told").fetchall() == [("a",)]
        assert {each.name: each.stat().st_mtime_ns for each in tmp_path.iterdir()} == before
