"""Who a home is: the same path, folder and machine; else it was moved, or is a copy."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hypaware.state import identity
from hypaware.state.identity import Identity, Whereabouts


@pytest.fixture
def known(tmp_path: Path) -> Identity:
    return identity.new_identity(tmp_path)


def test_a_new_home_is_like_no_other(tmp_path: Path, known: Identity) -> None:
    other = identity.new_identity(tmp_path)
    assert known.gateway_id != other.gateway_id
    assert known.incarnation != other.incarnation


def test_a_rebirth_keeps_the_gateway_and_remembers_its_lives(known: Identity) -> None:
    twice = known.reborn(7).reborn(9)
    assert twice.gateway_id == known.gateway_id
    assert twice.parents[0] == known.incarnation
    assert len({*twice.parents, twice.incarnation}) == 3
    assert [(epoch.after, epoch.through) for epoch in twice.epochs()] == [(0, 7), (7, 9), (9, None)]
    assert [epoch.incarnation for epoch in twice.epochs()] == [*twice.parents, twice.incarnation]


def test_the_same_home_is_known_also_through_a_link(tmp_path: Path, known: Identity) -> None:
    assert known.whereabouts(tmp_path) is Whereabouts.HERE
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    assert known.whereabouts(link) is Whereabouts.HERE


@pytest.mark.hazard(70)
def test_a_home_with_the_same_inode_elsewhere_was_moved(tmp_path: Path, known: Identity) -> None:
    before = dataclasses.replace(known, home_path="/a place/before")
    assert before.whereabouts(tmp_path) is Whereabouts.MOVED
    assert before.placed(tmp_path) == known


@pytest.mark.hazard(69)
@pytest.mark.parametrize("change", [{"home_inode": 1}, {"machine_id": "another"}, {"home_inode": identity.NOWHERE}])
@pytest.mark.parametrize("path", ["/elsewhere", None])
def test_a_home_with_another_inode_or_machine_is_a_copy_wherever_it_lies(
    tmp_path: Path, known: Identity, change: dict[str, object], path: str | None
) -> None:
    original = dataclasses.replace(known, home_path=path or known.home_path, **change)  # type: ignore[arg-type]
    assert original.whereabouts(tmp_path) is Whereabouts.COPIED
    assert original.placed(tmp_path) == known
    assert known.where(original) == original


def test_the_machine_has_one_id() -> None:
    assert identity.machine_id()
    identity.machine_id.cache_clear()
    assert identity.machine_id() == identity.machine_id()
