"""Names of objects and manifests follow the format for any dataset, gateway and source."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.export.sinks.blob import blob_sink
from tests.support.blob_destination import GATEWAY, chunk
from tests.support.rows import DATASET

HOSTILE = [
    "../../../etc/passwd", "/absolute", "..", ".", "...", "a/b", "a\\b", "a\0b", "a\nb", "~", "-rf", "*", "a=b",
    "a b", "a_b", "a+b", "a%20b", "%2F", "%252F", "ünïcödé", "u\u0308", "ü", "🐍" * 200, "x" * 5_000, "x" * 4_999 + "y",
    "CON", " ", "a.", "A", "a", "_manifests", ".hidden", "a?b#c", "a&b;c", "${HOME}", "gateway=x",
]  # fmt: skip
names = st.text(min_size=1, max_size=300) | st.sampled_from(HOSTILE)


def test_the_object_key_has_the_documented_form() -> None:
    found = blob_sink.object_key(chunk(41, 1024), "parquet")

    assert found == (
        f"{DATASET}/gateway={GATEWAY}/source=claude/"
        f"{DATASET}.00c0ffee.00000000000000000041-00000000000000001024.parquet"
    )


def test_the_manifest_key_is_in_the_folder_of_its_object() -> None:
    assert blob_sink.manifest_key(chunk(41, 1024)) == (
        f"{DATASET}/gateway={GATEWAY}/source=claude/_manifests/00c0ffee.00000000000000000041-00000000000000001024.json"
    )


def test_letters_digits_and_four_symbols_are_not_escaped() -> None:
    assert blob_sink.encode_name("Az09-._~ /+%ü") == "Az09-._~%20%2F%2B%25%C3%BC"


@pytest.mark.hazard(25)
@pytest.mark.hazard(61)
@given(st.lists(names, unique=True, min_size=2, max_size=10))
def test_different_names_have_different_keys(found: list[str]) -> None:
    assert len({blob_sink.encode_name(name) for name in found}) == len(found)


@pytest.mark.hazard(61)
@given(names)
def test_any_name_becomes_one_safe_path_component(name: str) -> None:
    found = blob_sink.encode_name(name)

    assert re.fullmatch(r"[A-Za-z0-9._~%-]+", found)
    assert found.strip(".")
    assert len(f".source={found}.12345678.tmp") < 255
    if len(quote(name)) <= 160:
        assert unquote(found) == name


@pytest.mark.hazard(61)
@given(names, names)
def test_no_name_escapes_its_folder(gateway: str, source: str) -> None:
    found = blob_sink.object_key(chunk(0, 1, source=source, gateway_id=gateway), "parquet")

    dataset, of_gateway, of_source, name = found.split("/")
    assert dataset == DATASET
    assert of_gateway.startswith("gateway=")
    assert of_source.startswith("source=")
    assert name.startswith(f"{DATASET}.00c0ffee.")


def test_a_long_name_is_not_cut_within_an_escape() -> None:
    for extra in range(4):
        cut = blob_sink.encode_name("x" * extra + "ü" * 500)
        assert re.fullmatch(r"x*(%C3%BC)*(%C3)?~[0-9a-f]{32}", cut)


@given(st.integers(0, 2**63 - 2), st.integers(1, 2**63 - 1))
def test_the_name_of_a_manifest_is_parsed_back(after: int, last: int) -> None:
    name = blob_sink.manifest_key(chunk(after, last)).rpartition("/")[2]

    assert blob_sink.parse_manifest_name(name) == ("00c0ffee", after, last)


@pytest.mark.parametrize(
    "name",
    [
        "00c0ffee.00000000000000000041-00000000000000001024.json.tmp",
        "00c0ffee.41-1024.json",
        "00C0FFEE.00000000000000000041-00000000000000001024.json",
        "00c0ffee.00000000000000000041-00000000000000001024.json\n",
        "00c0ffee.٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٤١-00000000000000001024.json",
        ".DS_Store",
        "",
    ],
)
def test_other_names_are_not_manifests(name: str) -> None:
    assert blob_sink.parse_manifest_name(name) is None


@given(st.integers(0, 2**63 - 2), st.integers(0, 2**63 - 2))
def test_names_sort_like_ranges(one: int, other: int) -> None:
    name = blob_sink.manifest_key(chunk(one, one + 1)).rpartition("/")[2]

    assert (name > blob_sink.name_before(chunk(0, 1).incarnation, other)) == (one >= other)


def test_an_incarnation_that_is_not_hex_also_has_eight_digits() -> None:
    assert re.fullmatch("[0-9a-f]{8}", blob_sink.incarnation_digits("Not hex at all"))
    assert blob_sink.incarnation_digits("Not hex at all") != blob_sink.incarnation_digits("Not hex at last")
