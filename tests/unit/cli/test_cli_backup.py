"""`hyp backup` and `hyp restore`: output, destination and exit code. The lake is empty, so no engine is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypaware.home import Home
from hypaware.iceberg import metadata
from hypaware.spool import reader
from tests.support.light_home import DATASET, append
from tests.support.rows import rows

Ran = tuple[int, str, str]
Hyp = Callable[..., Ran]


def _json(ran: Ran) -> Any:
    return json.loads(ran[1])


@pytest.fixture
def to(home: Home, tmp_path: Path) -> Path:
    """Return the folder of a backup. The home has rows in the spool."""
    append(home, rows(4))
    return tmp_path / "backups" / "monday"


def test_backup_and_restore_report_what_they_did(
    hyp: Hyp, home: Home, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = hyp("backup", str(to))
    assert code == 0
    assert out.splitlines()[-1].endswith(f"copied to {to}")
    assert "copying" in err
    monkeypatch.setenv("HYP_HOME", str(home.root.with_name("restored")))
    code, out, _ = hyp("restore", str(to))
    assert code == 0
    assert str(home.root.with_name("restored")) in out
    assert reader.summarize_spool(Home(home.root.with_name("restored")), DATASET).rows == 4


def test_backup_and_restore_print_one_json_document(
    hyp: Hyp, home: Home, to: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _json(hyp("backup", str(to), "--json"))
    assert set(made) == {
        "backup", "made_at", "home", "gateway_id", "incarnation", "next_seq", "files", "bytes", "datasets", "damaged",
    }  # fmt: skip
    assert (made["backup"], made["home"], made["next_seq"]) == (str(to), str(home.root), 1)
    shutil.rmtree(home.root)
    back = _json(hyp("restore", str(to), "--yes", "--json"))
    assert (back["home"], back["gateway_id"], back["files"]) == (str(home.root), made["gateway_id"], made["files"])
    assert back["incarnation"] != made["incarnation"]
    assert back["next_seq"] > made["next_seq"]


def test_backup_and_restore_never_overwrite_an_existing_folder(hyp: Hyp, home: Home, to: Path) -> None:
    assert hyp("backup", str(to))[0] == 0
    before = sorted(path.name for path in to.iterdir())
    for command in (("backup", str(to)), ("restore", str(to))):
        code, out, err = hyp(*command)
        assert (code, out) == (1, "")
        assert "nothing was overwritten" in err
        refused = hyp(*command, "--json")
        assert (refused[0], _json(refused)["error"]["kind"]) == (1, "not_empty")
    assert sorted(path.name for path in to.iterdir()) == before
    assert reader.summarize_spool(home, DATASET).rows == 4


def test_a_missing_backup_or_home_is_reported(hyp: Hyp, home: Home, tmp_path: Path) -> None:
    code, _, err = hyp("backup", str(tmp_path / "there"))
    assert code == 3
    assert f"no home at {home.root}" in err
    assert not home.root.exists()
    (tmp_path / "empty").mkdir()
    code, _, err = hyp("restore", str(tmp_path / "empty"))
    assert code == 1
    assert "is not a backup" in err
    assert hyp("restore")[0] == 2
    assert hyp("backup", str(tmp_path / "there"), "--yes")[0] == 2
    assert not home.root.exists()


def test_a_relative_folder_is_resolved_from_the_current_directory(
    hyp: Hyp, to: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _json(hyp("backup", "here", "--json"))["backup"] == str(tmp_path / "here")
    assert (tmp_path / "here" / "backup.json").is_file()


def test_a_home_without_a_table_needs_no_engine(hyp: Hyp, home: Home, to: Path) -> None:
    """It starts none, and releases the lock of the lake."""
    assert hyp("backup", str(to))[0] == 0
    assert hyp("backup", str(to.with_name("tuesday")))[0] == 0
    assert metadata.list_tables(home) == []
    assert not home.engine_socket.exists()
