"""Decoding VARIANT into JSON values, compared with Spark's own decoder."""

from __future__ import annotations

import json
import struct
from datetime import date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantUtils

from hypaware.takeover.variant import decode_variant

NAMES = b"\x01\x00\x00"
_scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=80)
_values = st.recursive(
    _scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=9), inner, max_size=5),
    max_leaves=30,
)


@given(_values)
def test_every_json_value_round_trips(value: Any) -> None:
    encoded, names = VariantUtils.parse_json(json.dumps(value))
    found = decode_variant(names, encoded)
    assert found == json.loads(VariantUtils.to_json(encoded, names))
    assert found == value


def test_a_large_object_has_wide_offsets_and_ids() -> None:
    value = {f"name {number}": ["x" * 300, number] for number in range(400)}
    encoded, names = VariantUtils.parse_json(json.dumps(value))
    assert decode_variant(names, encoded) == value


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        (3, struct.pack("<b", -5), -5),
        (4, struct.pack("<h", -500), -500),
        (5, struct.pack("<i", 70_000), 70_000),
        (8, b"\x02" + struct.pack("<i", 1234), 12.34),
        (8, b"\x01" + struct.pack("<i", 120), 12),
        (10, b"\x00" + (10**20).to_bytes(16, "little", signed=True), 10**20),
        (11, struct.pack("<i", (date(2026, 11, 15) - date(1970, 1, 1)).days), "2026-11-15"),
        (12, struct.pack("<q", 1_500_001), "1970-01-01T00:00:01.500001Z"),
        (13, struct.pack("<q", -1), "1969-12-31T23:59:59.999999"),
        (14, struct.pack("<f", 0.5), 0.5),
        (15, struct.pack("<I", 2) + b"\x00\xff", "AP8="),
        (17, struct.pack("<q", 3_600_000_001), "01:00:00.000001"),
        (18, struct.pack("<q", 1_000_000_001), "1970-01-01T00:00:01.000000001Z"),
        (20, bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ],
)
def test_a_type_that_json_lacks_becomes_the_nearest_json_value(kind: int, body: bytes, expected: object) -> None:
    assert decode_variant(NAMES, bytes([kind << 2]) + body) == expected


def test_a_timestamp_equals_the_one_that_spark_reads() -> None:
    micros = 1_794_728_775_867_123
    body = bytes([12 << 2]) + struct.pack("<q", micros)
    spark = VariantUtils.to_python(body, NAMES)
    assert datetime.fromisoformat(decode_variant(NAMES, body)) == spark


@pytest.mark.parametrize(
    ("names", "encoded", "message"),
    [
        (NAMES, b"", "malformed"),
        (NAMES, bytes([5 << 2]), "malformed"),
        (NAMES, bytes([63 << 2]), "malformed"),
        (NAMES, b"\x19ab", "malformed"),
        (NAMES, bytes([16 << 2]) + struct.pack("<I", 2**31) + b"x", "malformed"),
        (NAMES, b"\x02\x01\x07\x00\x01\x00", "malformed"),
        (b"\x02\x00\x00", b"\x00", "version 2"),
        (b"\x01\x05", b"\x02\x00\x00", "malformed"),
        (NAMES, b"\x03\x01\x00\x05" * 300 + b"\x00", "nested too deeply"),
        (NAMES, bytes([10 << 2]) + b"\x1e" + (3**80).to_bytes(16, "little"), "more digits"),
    ],
)
def test_a_malformed_value_is_refused_with_a_reason(names: bytes, encoded: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_variant(names, encoded)
