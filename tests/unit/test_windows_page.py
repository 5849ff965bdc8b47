"""The page about Windows says where the code relies on what Windows lacks, so that a port can begin there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hypaware

SOURCE = Path(hypaware.__file__).parent
PAGE = SOURCE.parents[1] / "docs" / "windows.md"
IS_FILE = re.compile(r"\.py$")
CODE = re.compile(r"`([^`]+)`")
ROWS = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| ") and ".py`" in line]


@pytest.mark.parametrize(("what", "where"), ROWS, ids=[what.strip()[:40] for what, _ in ROWS])
def test_each_file_of_the_list_uses_what_its_row_names(what: str, where: str) -> None:
    names = {name.rpartition(".")[2].strip("/") for name in CODE.findall(what)}
    for path in filter(IS_FILE.search, CODE.findall(where)):
        text = (SOURCE / path).read_text()
        assert not names or any(name in text for name in names), f"{path} uses none of {sorted(names)}"


def test_without_fcntl_the_first_command_fails_as_the_page_says() -> None:
    code = (
        "import sys; sys.modules['fcntl'] = None; from hypaware.cli.entry import run; "
        "sys.argv[1:] = ['version']; sys.exit(run())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "fcntl" in done.stderr
