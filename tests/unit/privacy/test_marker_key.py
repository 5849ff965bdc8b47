"""The key of the markers: one per home, durable before it is used."""

from __future__ import annotations

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hypaware.errors import StateError
from hypaware.home import Home
from hypaware.privacy.redact import Redaction, load_marker_key, redact_text

TEXT = "DB_PASSWORD=hunter22"


@pytest.mark.hazard(59)
def test_a_guess_cannot_be_tested_without_the_key_of_the_home(tmp_path: Path) -> None:
    keys = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        keys.append(load_marker_key(Home(tmp_path / name)))
    one, other = (redact_text(TEXT, Redaction(key))[0] for key in keys)
    assert one != other
    assert redact_text(TEXT, Redaction(load_marker_key(Home(tmp_path / "a"))))[0] == one


def test_the_key_belongs_to_its_user_and_is_the_same_for_everyone_who_asks(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: load_marker_key(Home(tmp_path)), range(16)))
    assert len(keys) == 1
    assert stat.S_IMODE((tmp_path / "redaction.key").stat().st_mode) == 0o600


def test_a_dry_run_creates_no_key(tmp_path: Path) -> None:
    assert len(load_marker_key(Home(tmp_path), is_dry_run=True)) == 32
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_key_is_refused_with_the_command_that_fixes_it(tmp_path: Path) -> None:
    (tmp_path / "redaction.key").write_bytes(b"short")
    with pytest.raises(StateError) as refused:
        load_marker_key(Home(tmp_path))
    assert refused.value.repair == (f"rm {tmp_path}/redaction.key",)


@pytest.mark.parametrize("point", ["before-write", "after-write"])
def test_a_kill_while_the_key_is_created_leaves_none_or_a_whole_one(tmp_path: Path, point: str) -> None:
    code = (
        "import sys; from pathlib import Path; from hypaware.home import Home\n"
        "from hypaware.privacy.redact import load_marker_key; load_marker_key(Home(Path(sys.argv[1])))"
    )
    env = {"HYP_CRASH_AT": f"privacy.marker-key.{point}", "PATH": ""}
    killed = subprocess.run([sys.executable, "-c", code, tmp_path], env=env, check=False)
    assert killed.returncode == -9
    path = tmp_path / "redaction.key"
    left = path.read_bytes() if path.exists() else None
    assert (left is None) is (point == "before-write")
    assert load_marker_key(Home(tmp_path)) == (left or path.read_bytes())
