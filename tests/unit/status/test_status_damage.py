"""Whatever file is damaged, `hyp status` works, reports the damage, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

from hypaware.privacy import folder_memory, ignored_sessions
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.status import doctor
from tests.support.delivery_home import DeliveryHome, key
from tests.support.light_home import append
from tests.support.rows import rows
from tests.support.status_home import StatusHome, everything_under
from tests.unit.status.test_status_snapshot import KEYS


def _delete(path: Path, _at: int) -> None:
    path.unlink()


def _empty(path: Path, _at: int) -> None:
    path.write_bytes(b"")


def _cut(path: Path, at: int) -> None:
    held = path.read_bytes()
    path.write_bytes(held[: at % max(len(held), 1)])


def _scribble(path: Path, at: int) -> None:
    held = path.read_bytes()
    place = at % max(len(held), 1)
    path.write_bytes(held[:place] + b"\xff\x00{\x80" * 8 + held[place + 32 :])


def _replace(path: Path, _at: int) -> None:
    size = path.stat().st_size
    path.write_bytes(b"\x80no such thing\n" * (size // 14 + 1))


def _folder(path: Path, _at: int) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: tuple[Callable[[Path, int], None], ...] = (_delete, _empty, _cut, _scribble, _replace, _folder)
# Missing files, or folders in their place, must be reported.
PLAIN = (_empty, _replace, _folder)


def _home(at: StatusHome) -> StatusHome:
    """Fill the home with every kind of file."""
    at.attached(1)
    at.with_rows(6).with_rows(4, 10, client_name="codex")
    append(at.home, rows(2, start=50))
    append(at.home, rows(2, start=60), seal=False)
    deliveries = DeliveryHome(at.home)
    deliveries.declare(archive="/nowhere/a")
    deliveries.delivered(key("archive"), 5)
    deliveries.buried(key("archive"), "letter", 3)
    ignored_sessions.ignore_session(at.home, "session-1")
    (at.user / ".hypignore").touch()
    PrivacyPolicy(at.home, remember=True).class_of(str(at.user), None)
    at.home.run.joinpath("gateway.json").write_text('{"clients": {"claude": {"last_seen_at": "2026-01-01T00:00:00Z"}}}')
    return at


def _that_matter(at: StatusHome) -> set[Path]:
    """Return the files whose damage must be reported."""
    home = at.home
    found = {
        home.state,
        home.mirror,
        home.catalog,
        home.keys,
        home.config,
        ignored_sessions.ignored_sessions_path(home),
    }
    found.add(folder_memory.folder_memory_path(home))
    return found | set(home.warehouse.rglob("*.parquet")) | set(home.warehouse.rglob("*-m0.avro"))


def test_status_works_whatever_file_is_damaged(at: StatusHome) -> None:
    _home(at)
    files = sorted(path for path in at.home.root.rglob("*") if path.is_file())
    matter = _that_matter(at)
    before = {each.kind for each in at.snapshot().diagnostics}

    @hypothesis.settings(max_examples=60)
    @hypothesis.given(st.sampled_from(files), st.sampled_from(DAMAGES), st.integers(0, 1 << 20))
    def damaged(path: Path, damage: Callable[[Path, int], None], place: int) -> None:
        held = path.read_bytes()
        damage(path, place)
        try:
            there = everything_under(at.home.root)
            found = at.snapshot()
            assert list(json.loads(json.dumps(found.as_json()))) == KEYS
            assert everything_under(at.home.root) == there
            if path in matter and damage in PLAIN and not (path == at.home.config and damage is _empty):
                assert {each.kind for each in found.diagnostics} - before, f"{path} {damage.__name__}"
        finally:
            if path.is_dir():
                path.rmdir()
            path.write_bytes(held)

    damaged()


def test_doctor_reports_a_check_that_raises(at: StatusHome) -> None:
    """No check stops the others, even if every file of the home is damaged."""
    _home(at)
    for path in [path for path in at.home.root.rglob("*") if path.is_file()]:
        path.write_bytes(b"\x80no such thing\n" * 50)
    shutil.rmtree(at.user)
    found = list(doctor.run_checks(doctor.read_input(at.home, at.environment, at.now, at.cache), lambda *_: None))
    names = {check.name for check in found}
    assert {"python", "java", "jars", "config", "state", "catalog", "key_index", "clock", "gateway"} <= names
    assert {check.name for check in found if check.status == "failed"} >= {"config", "state", "catalog", "key_index"}
