"""The mirror, from which a lost state is rebuilt. It is never ahead of the state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hypaware.home import Home
from hypaware.state import flushes, mirror
from hypaware.state.home_opener import open_home
from tests.support.processes import run, was_killed


def test_the_mirror_contains_identity_sequence_and_high_water(home: Home) -> None:
    opened = open_home(home)
    with opened.store.transaction() as connection:
        flushes.raise_next_sequence(connection, 42)
        flushes.raise_high_water(connection, "ai_gateway_messages", {"a/b ü": 41})
    mirror.write_mirror(home.mirror, opened.store)
    opened.store.close()
    held = mirror.read_mirror(home.mirror)
    assert held is not None
    assert (held.identity, held.next_seq) == (opened.identity, 42)
    assert (held.high_water, held.step) == ({"ai_gateway_messages": {"a/b ü": 41}}, 0)
    assert home.mirror.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "held",
    [
        None,
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        b'{"version": 2}',
        b'{"version": 1, "identity": null, "next_seq": 1, "high_water": {}}',
        b'{"version": 1, "identity": {}, "next_seq": 1, "high_water": {}}',
    ],
)
def test_a_damaged_mirror_is_ignored(tmp_path: Path, held: bytes | None) -> None:
    if held is not None:
        (tmp_path / "mirror").write_bytes(held)
    assert mirror.read_mirror(tmp_path / "mirror") is None


@pytest.mark.parametrize(
    ("name", "value"), [("next_seq", "x"), ("high_water", []), ("high_water", {"a": 5}), ("identity", 7)]
)
def test_a_mirror_with_an_invalid_part_is_ignored(home: Home, name: str, value: object) -> None:
    open_home(home).store.close()
    held = json.loads(home.mirror.read_bytes())
    home.mirror.write_text(json.dumps({**held, name: value}))
    assert mirror.read_mirror(home.mirror) is None


@pytest.mark.hazard(10)
@pytest.mark.parametrize("point", ["state.mirror.before-write", "state.mirror.after-write"])
def test_a_process_killed_during_the_write_leaves_the_old_or_the_new_mirror(home: Home, point: str) -> None:
    opened = open_home(home)
    with opened.store.transaction() as connection:
        flushes.raise_next_sequence(connection, 42)
    opened.store.close()
    write = """
import pathlib, sys
from hypaware.state import mirror
from hypaware.state.store import StateStore

mirror.write_mirror(pathlib.Path(sys.argv[2]), StateStore(pathlib.Path(sys.argv[1])))
"""
    assert was_killed(run(write, home, home.state, home.mirror, crash_at=point))
    held = mirror.read_mirror(home.mirror)
    assert held
    assert held.next_seq == (1 if "before" in point else 42)
