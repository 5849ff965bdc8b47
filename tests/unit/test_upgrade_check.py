"""`hyp upgrade --check` reads another version from its wheel and says what it brings and changes."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import sys
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hypaware import __version__, upgrade
from hypaware.cli import entry
from hypaware.cli.help_pages import find_pages
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.index.store import open_index
from hypaware.state import schema
from tests.support.index_home import make_home, prompt

ROOT = Path(__file__).parents[2]
Change = Callable[[str], str]
Made = Callable[..., Path]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home of this version, with rows and an index."""
    found = make_home(tmp_path / "home", prompt(1, "hello", at="2026-11-01T10:00:00Z"))
    open_index(found).close()
    monkeypatch.setenv("HYP_HOME", str(found.root))
    return found


@pytest.fixture
def make_wheel(tmp_path: Path) -> Made:
    """Return a function that packs the files of this version that matter, changed as asked."""

    def make(version: str, folder: Path = tmp_path, **changes: Change) -> Path:
        wheel = folder / f"hypaware-{version}-py3-none-any.whl"
        sources = {"changelog": find_pages()["changelog"]}
        with zipfile.ZipFile(wheel, "w") as packed:
            for name, path in upgrade._RELEASE_FILES.items():
                text = sources.get(name, ROOT / "src" / path).read_text(encoding="utf-8")
                packed.writestr(path, changes[name](text) if name in changes else text)
            about = f"Metadata-Version: 2.4\nName: hypaware\nVersion: {version}\n"
            packed.writestr(f"hypaware-{version}.dist-info/METADATA", about)
            packed.writestr(f"hypaware-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            packed.writestr(f"hypaware-{version}.dist-info/RECORD", "")
        return wheel

    return make


def add_migration(source: str) -> str:
    """Put one before the others: the wheel is only read."""
    begin = "MIGRATIONS: tuple[tuple[str, tuple[str, ...]], ...] = ("
    assert source.count(begin) == 1
    return source.replace(begin, f'{begin}\n    ("9001_next", ("SELECT 1",)),')


def check(home: Home, wheel: Path) -> dict[str, Any]:
    changelog = find_pages()["changelog"].read_text(encoding="utf-8")
    return upgrade.compare(home, upgrade.installed_release(changelog), upgrade.read_release(wheel))


def test_the_same_version_changes_nothing(home: Home, make_wheel: Made) -> None:
    found = check(home, make_wheel(__version__))
    assert (found["direction"], found["new"], found["changes"], found["refused"]) == ("same", [], [], [])


def test_a_newer_version_names_what_is_new_and_what_changes(home: Home, make_wheel: Made) -> None:
    wheel = make_wheel(
        "9.0.0",
        changelog=lambda text: text.replace("\n- ", "\n- Something\n  new.\n- ", 1),
        state=add_migration,
        index=lambda text: re.sub(r"^VERSION = \d+", "VERSION = 9001", text, flags=re.MULTILINE),
        jars=lambda text: re.sub(r'version = "42[^"]*"', 'version = "99.0"', text),
    )
    before = {path: path.stat().st_mtime_ns for path in home.root.rglob("*")}
    found = check(home, wheel)
    assert (found["direction"], found["irreversible"]) == ("upgrade", True)
    assert found["new"] == ["Something new."]
    assert found["changes"] == [
        "state.db gets 9001_next",
        "index.db is built again from the lake, in the background",
        "1 jars (1 MB) are downloaded into the cache",
    ]
    assert {path: path.stat().st_mtime_ns for path in home.root.rglob("*")} == before


def test_a_version_that_does_not_know_the_state_is_refused(
    home: Home, make_wheel: Made, capsys: pytest.CaptureFixture[str]
) -> None:
    last = schema.MIGRATIONS[-1][0]
    wheel = make_wheel("0.0.9", state=lambda text: text.replace(last, "0000_other"))
    assert entry.run(["upgrade", "--check", str(wheel)]) == 1
    out = capsys.readouterr().out
    assert "a downgrade is refused" in out
    assert last in out


def test_a_state_of_a_newer_version_is_refused_with_words(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(sqlite3.connect(home.state)) as connection, connection:
        connection.execute("INSERT INTO migrations VALUES ('9001_next', '2030-01-01')")
    assert entry.run(["server", "token", "create"]) == 1
    err = capsys.readouterr().err
    assert "was written by a newer version of hypaware" in err
    assert "pip install --upgrade hypaware" in err


def test_without_a_file_pip_is_asked(
    home: Home, make_wheel: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """pip finds its wheels in a folder here; the same call asks a package index."""
    (tmp_path / "wheels").mkdir()
    make_wheel("9.0.0", tmp_path / "wheels", state=add_migration)
    make_wheel("8.0.0", tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert entry.run(["upgrade", "--check"]) == 0
    out, err = capfd.readouterr()
    assert "newest 9.0.0" in out
    assert "state.db gets 9001_next" in out
    assert "hyp backup" in out
    assert "pip install --upgrade hypaware" in err
    shutil.rmtree(tmp_path / "wheels")
    assert entry.run(["upgrade", "--check"]) == 1
    _, err = capfd.readouterr()
    assert "Whether there is a newer one is unknown: pip found no wheel" in err


def test_in_an_environment_without_pip_uv_runs_it(
    make_wheel: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wheels").mkdir()
    make_wheel("9.0.0", tmp_path / "wheels")
    uv = tmp_path / "bin/uv"
    uv.parent.mkdir()
    uv.write_text(
        '#!/bin/sh\n[ "$1 $2 $3 $5" = "tool run --python pip" ] || exit 9\nshift 5\nexec "$PYTHON" -m pip "$@"\n'
    )
    uv.chmod(0o755)
    monkeypatch.setattr(upgrade, "find_spec", lambda name: None)
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    assert entry.run(["upgrade", "--check"]) == 0
    assert "newest 9.0.0" in capfd.readouterr().out

    monkeypatch.setenv("PATH", str(tmp_path))
    assert entry.run(["upgrade", "--check"]) == 1
    assert "no pip, and there is no uv on PATH" in capfd.readouterr().err


def test_a_file_that_is_no_wheel_of_this_program_is_an_error(make_wheel: Made, tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("text")
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as packed:
        packed.writestr("other/__init__.py", "")
    for wheel in (tmp_path / "text.whl", tmp_path / "other.whl", make_wheel("9.0.0", index=lambda text: "VERSION")):
        with pytest.raises(HypError, match="is not a wheel of HypAware"):
            upgrade.read_release(wheel)


def test_without_check_nothing_happens(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.run(["upgrade"]) == 2
    assert "hyp does not upgrade itself" in capsys.readouterr().err


def test_versions_sort_as_they_are_released() -> None:
    order = ["0.1.0.dev0", "0.1.0.dev20261118010203+gabc", "0.1.0", "0.1.1", "0.2.0.dev1", "0.2.0", "0.10.0", "1.0"]
    mixed = [*order[1::2], *order[::2]]
    assert sorted(mixed, key=upgrade.version_key) == order
