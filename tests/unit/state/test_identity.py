"""Who a home is: the same path, folder and machine, or it is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hypaware.errors import NotReady
from hypaware.state import identity
from hypaware.state.identity import Identity


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


def test_the_same_home_passes_also_through_a_link(tmp_path: Path, known: Identity) -> None:
    identity.check(known, tmp_path)
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    identity.check(known, link)


@pytest.mark.hazard(70)
def test_a_moved_home_is_refused_with_the_way_back(tmp_path: Path, known: Identity) -> None:
    moved = dataclasses.replace(known, home_path="/a place/before")
    with pytest.raises(NotReady, match="was moved: it belongs at /a place/before") as refused:
        identity.check(moved, tmp_path)
    assert (refused.value.exit_code, refused.value.kind) == (3, "home_moved")
    assert refused.value.repair == (f"mv {tmp_path.resolve()} '/a place/before'",)


@pytest.mark.hazard(69)
@pytest.mark.parametrize("change", [{"home_inode": 1}, {"machine_id": "another"}])
def test_a_copied_home_is_refused(tmp_path: Path, known: Identity, change: dict[str, object]) -> None:
    original = dataclasses.replace(known, home_path="/elsewhere", **change)  # type: ignore[arg-type]
    with pytest.raises(NotReady, match="is a copy of the home that belongs at /elsewhere") as refused:
        identity.check(original, tmp_path)
    assert (refused.value.exit_code, refused.value.kind) == (3, "home_copied")


def test_the_machine_has_one_id() -> None:
    assert identity.machine_id()
    identity.machine_id.cache_clear()
    assert identity.machine_id() == identity.machine_id()
