"""Canonical JSON is deterministic, because row ids are computed from it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypaware.model import canonical
from tests.support.strategies import json_values


def _nested(depth: int, innermost: Any = 0) -> Any:
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal and of the same types: True is not 1, and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@given(json_values)
def test_text_parses_back_to_the_same_value(value: Any) -> None:
    assert _same(canonical.loads(canonical.dumps(value)), value)


@given(json_values)
def test_canonical_text_round_trips(value: Any) -> None:
    written = canonical.dumps(value)
    assert canonical.dumps(canonical.loads(written)) == written


@given(st.dictionaries(st.text(), json_values, min_size=2, max_size=6))
def test_the_order_of_keys_does_not_matter(value: dict[str, Any]) -> None:
    backwards = dict(reversed(value.items()))
    assert canonical.dumps(backwards) == canonical.dumps(value)
    assert canonical.dumps([backwards, 2**70]) == canonical.dumps([value, 2**70])


@pytest.mark.hazard(60)
@given(st.integers(min_value=2**63) | st.integers(max_value=-(2**63) - 1))
def test_integers_beyond_64_bits_keep_every_digit(number: int) -> None:
    assert canonical.loads(str(number)) == number
    assert canonical.dumps({"n": number}) == f'{{"n":{number}}}'


@pytest.mark.hazard(60)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "around", [lambda n: n, lambda n: [1, n], lambda n: {"a": {"b": n}}, lambda n: [n, 2**70, None]]
)
def test_numbers_that_json_lacks_are_rejected(number: float, around: Callable[[float], Any]) -> None:
    with pytest.raises(ValueError, match=r"not a JSON number|not JSON compliant"):
        canonical.dumps(around(number))


def test_null_is_not_mistaken_for_nan() -> None:
    assert canonical.dumps({"b": None, "a": [None, 1.5]}) == '{"a":[null,1.5],"b":null}'


@pytest.mark.hazard(60)
@pytest.mark.parametrize("value", ["\ud800", ["\udfff"], {"\ud800": 1}, ["\ud800", 2**70]])
def test_lone_surrogates_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match=r"surrogate|not a JSON value"):
        canonical.dumps(value)


@pytest.mark.parametrize("value", [{1: 2}, {None: 1}, {1, 2}, b"bytes", object(), [{2**70: 1}, 2**70]])
def test_values_that_json_cannot_represent_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match="not a JSON value"):
        canonical.dumps(value)


@pytest.mark.hazard(60)
@pytest.mark.parametrize("innermost", [0, 2**70], ids=["fast way", "exact way"])
def test_both_serializers_have_the_same_nesting_limit(innermost: int) -> None:
    deepest = canonical.dumps(_nested(canonical.MAX_DEPTH, innermost))
    assert canonical.dumps(canonical.loads(deepest)) == deepest
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical.dumps(_nested(canonical.MAX_DEPTH + 1, innermost))


@pytest.mark.hazard(60)
def test_the_nesting_limit_does_not_depend_on_the_call_depth() -> None:
    """Otherwise a flush deeper in the call stack could reject a row that `ingest` accepted."""
    value = _nested(canonical.MAX_DEPTH, 2**70)

    def deeper(frames: int) -> str:
        return deeper(frames - 1) if frames else canonical.dumps(value)

    assert deeper(600) == canonical.dumps(value)


def test_a_value_that_contains_itself_is_rejected() -> None:
    circle: list[Any] = []
    circle += [circle, circle]
    with pytest.raises(ValueError, match="nested too deeply"):
        canonical.dumps(circle)


@pytest.mark.hazard(60)
@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"nul", b"NaN", b"Infinity", b"[1,]", b"{'a':1}", b"1 2", b"1e400", b'"\xff"', b'"\xed\xa0\x80"',
        b'"\\ud800"', b'"a\x00b"', b"\xef\xbb\xbf1", b"[" * 5_000, b"9" * 5_000, b"[NaN, 1234567890123456789012]",
    ],
)  # fmt: skip
def test_text_that_is_not_strict_json_is_not_parsed(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical.loads(data)


def test_text_with_a_lone_surrogate_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="surrogates"):
        canonical.loads('"\ud800"')


def test_the_row_id_does_not_depend_on_the_order_of_columns() -> None:
    assert canonical.compute_row_id({"a": "x", "b": 1}) == canonical.compute_row_id({"b": 1, "a": "x"})
    assert canonical.compute_row_id({"a": "x", "b": 1}) != canonical.compute_row_id({"a": "x", "b": 2})


def test_row_ids_never_change_between_versions() -> None:
    hashed = '{"content_text":"Grüße","is_error":true,"part_id":"m#0","part_index":0}'
    row = {"part_id": "m#0", "part_index": 0, "is_error": True, "content_text": "Grüße"}
    assert canonical.compute_row_id(row) == hashlib.sha256(hashed.encode()).hexdigest()


def test_datetimes_are_not_converted_to_text() -> None:
    with pytest.raises(ValueError, match="not a JSON value"):
        canonical.dumps({"at": datetime(2026, 1, 1, tzinfo=UTC)})


_WHOLE = st.integers() | st.integers(-(2**80), 2**80)


@given(st.recursive(_WHOLE | st.text("0123456789,:[]- \n", max_size=40), st.lists))
def test_digits_in_text_and_in_numbers_are_distinguished(value: object) -> None:
    """Long digits are mostly ids; only real numbers need the slow path, and all of them must take it."""
    for written in (json.dumps(value), json.dumps({"a": value, "b": [value]}, indent=1)):
        assert canonical.loads(written) == json.loads(written)
