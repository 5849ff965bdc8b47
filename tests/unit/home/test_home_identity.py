"""The identity of a home: unchanged, moved or copied."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from hypaware.home import identity
from hypaware.home.identity import HomeLocation, Identity
from hypaware.lake.parquet import mask_own_rows


@pytest.fixture
def known(tmp_path: Path) -> Identity:
    return identity.new_identity(tmp_path)


def test_a_new_home_has_a_unique_identity(tmp_path: Path, known: Identity) -> None:
    other = identity.new_identity(tmp_path)
    assert known.gateway_id != other.gateway_id
    assert known.incarnation != other.incarnation


def test_a_new_incarnation_keeps_the_gateway_and_its_earlier_incarnations(known: Identity) -> None:
    twice = known.next_incarnation(7).next_incarnation(9)
    assert twice.gateway_id == known.gateway_id
    assert twice.parents[0] == known.incarnation
    assert len({*twice.parents, twice.incarnation}) == 3
    assert [(epoch.after, epoch.through) for epoch in twice.incarnation_ranges()] == [(0, 7), (7, 9), (9, None)]
    assert [epoch.incarnation for epoch in twice.incarnation_ranges()] == [*twice.parents, twice.incarnation]


def test_a_home_is_recognized_through_a_link(tmp_path: Path, known: Identity) -> None:
    assert known.locate(tmp_path) is HomeLocation.HERE
    link = tmp_path.with_name(f"{tmp_path.name}-link")
    link.symlink_to(tmp_path)
    assert known.locate(link) is HomeLocation.HERE


@pytest.mark.hazard(70)
def test_a_home_with_the_same_inode_at_another_path_was_moved(tmp_path: Path, known: Identity) -> None:
    before = dataclasses.replace(known, home_path="/a place/before")
    assert before.locate(tmp_path) is HomeLocation.MOVED
    assert before.at(tmp_path) == known


@pytest.mark.hazard(69)
@pytest.mark.parametrize("change", [{"home_inode": 1}, {"machine_id": "another"}, {"home_inode": identity.NO_INODE}])
@pytest.mark.parametrize("path", ["/elsewhere", None])
def test_a_home_with_another_inode_or_machine_is_a_copy_at_any_path(
    tmp_path: Path, known: Identity, change: dict[str, object], path: str | None
) -> None:
    original = dataclasses.replace(known, home_path=path or known.home_path, **change)  # type: ignore[arg-type]
    assert original.locate(tmp_path) is HomeLocation.COPIED
    assert original.at(tmp_path) == known
    assert known.at_location_of(original) == original


def test_the_machine_has_one_id() -> None:
    assert identity.machine_id()
    identity.machine_id.cache_clear()
    assert identity.machine_id() == identity.machine_id()


def test_each_home_of_a_shared_lake_has_a_gateway_id_of_its_own_for_rows(
    tmp_path: Path, known: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, (one, two) = known.as_shared(), (tmp_path / "one", tmp_path / "two")
    found = {shared.gateway_of_rows(one), shared.gateway_of_rows(two)}
    monkeypatch.setattr(identity, "machine_id", lambda: "another machine")
    found |= {shared.gateway_of_rows(one), shared.gateway_of_rows(two)}
    assert len(found) == 4, "another path, and another machine, is another member"
    assert all(identity.is_own_gateway(each, known.gateway_id) for each in found)


def test_rows_of_a_home_with_a_lake_of_its_own_carry_its_gateway_id(tmp_path: Path, known: Identity) -> None:
    assert known.gateway_of_rows(tmp_path) == known.gateway_id


def test_a_gateway_whose_id_is_alike_is_another_one() -> None:
    """A server enrols any id that has not the form of a member's; its rows must be nobody else's."""
    member = "gw-1.0123456789ab"
    ids = [None, "", "gw-10", "gw-10.member", "gw", "x.gw-1", "gw-1.laptop", f"{member}c", f"{member}.x"]
    assert [each for each in ids if identity.is_own_gateway(each, "gw-1")] == []
    assert mask_own_rows(pa.array([*ids, member, "gw-1"]), "gw-1").to_pylist() == [False] * 9 + [True] * 2
    assert [each for each in ids[1:] if each and identity.is_member_id(each)] == []
