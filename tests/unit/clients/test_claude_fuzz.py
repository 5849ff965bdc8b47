"""Any bytes, and real transcripts with any JSON in any place, can be imported."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypaware.model.datasets import Row
from tests.support.claude_transcripts import PROVIDER, as_bytes, sample, sample_names, says, user
from tests.support.history import GrowingFile, rows_of, usage
from tests.support.strategies import json_values

# A soak of 25 is more than 100,000 files.
SCALE = 5 * int(os.environ["HYP_SOAK"]) if "HYP_SOAK" in os.environ else 1

_LONGEST = 3_000
LINES = [
    raw for name in sample_names() for raw in sample(name).splitlines(keepends=True) if len(raw) <= _LONGEST
]  # fmt: skip
_ODD: list[Any] = [None, True, 0, -1, 2**70, 1.5, "", "x", "\0", "2026-11-15T07:15:00Z", "0000-01-01T00:00:00Z", [], {}]


def _places(value: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Return (container, key) of every nested value."""
    if depth > 5:
        return []
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [(value, key) for key, _ in inside] + [each for _, item in inside for each in _places(item, depth + 1)]


def _as_it_is(raw: bytes, _rng: random.Random) -> bytes:
    return raw


def _with_odd_values(raw: bytes, rng: random.Random) -> bytes:
    value = json.loads(raw)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(_places(value) or [(value, "type")])
        if rng.random() < 0.2 and isinstance(holder, dict):
            holder.pop(key, None)
        else:
            holder[key] = rng.choice([*_ODD, value.get("uuid"), {"deep": [rng.choice(_ODD)] * 3}, holder])
            if holder[key] is holder:
                holder[key] = str(holder)[:50]
    return json.dumps(value).encode() + b"\n"


def _with_odd_bytes(raw: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data))
        end = min(len(data), start + rng.randint(0, 20))
        data[start:end] = rng.choice([b"", rng.randbytes(3), b"\n", b'"', b"{", b"\\ud800", bytes(data[start:end]) * 2])
        data = data or bytearray(b"x")
    return bytes(data)


def _mutated(rng: random.Random) -> bytes:
    """Generate lines of the samples, some mutated or repeated, in any order, perhaps truncated."""
    lines = [rng.choice(LINES) for _ in range(rng.randint(1, 6))]
    made = [rng.choice([_as_it_is, _with_odd_values, _with_odd_values, _with_odd_bytes])(raw, rng) for raw in lines]
    data = b"".join(made + rng.choices(made, k=rng.randint(0, 2)))
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.2 else data


def _assert_sound(rows: list[Row], skipped: Counter[str]) -> None:
    assert all(count > 0 for count in skipped.values())
    assert all(reason.isascii() and reason.isprintable() and len(reason) < 80 for reason in skipped)
    for row in rows:
        assert row["part_id"] == f"{row['message_id']}#{row['part_index']}"
        assert row["previous_message_id"] != [row["message_id"]]


@pytest.mark.hazard(60)
@pytest.mark.parametrize("batch", range(4))
def test_mutated_real_transcripts_can_be_read(batch: int, tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    for number in range(250 * SCALE):
        seed = f"{batch}:{number}" if SCALE == 1 else f"{random.random()}"
        data = _mutated(random.Random(seed))
        path.write_bytes(data)
        try:
            rows, reading = rows_of(PROVIDER, path, quiet=number % 2 == 0)
            _assert_sound(rows, reading.skipped)
            PROVIDER.first_time(data)
        except Exception as error:
            raise AssertionError(f"seed {seed!r}: {data!r}") from error


@pytest.mark.hazard(60)
@settings(max_examples=100 * SCALE)
@given(st.lists(json_values.map(lambda value: json.dumps(value).encode() + b"\n") | st.binary(max_size=30), max_size=6))
def test_any_json_and_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("any") / "session.jsonl"
    path.write_bytes(b"".join(lines))
    rows, reading = rows_of(PROVIDER, path)
    _assert_sound(rows, reading.skipped)


_uuids = st.sampled_from([f"u{number}" for number in range(8)])
_outputs = st.integers(0, 50)


@st.composite
def _responses(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Generate a conversation whose responses overlap, repeat and belong to several threads."""
    lines: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 14))):
        uuid = draw(st.just(f"line-{number}") | st.just(f"line-{number}") | _uuids | st.none())
        parent = draw(st.none() | st.sampled_from([f"line-{each}" for each in range(number + 1)]) | _uuids)
        side = draw(st.booleans())
        if draw(st.integers(0, 3)) == 0:
            lines.append(user(uuid, draw(st.sampled_from(["go on", "stop", ""])), parent, number, isSidechain=side))
        else:
            api = draw(st.sampled_from(["msg_1", "msg_2", "msg_3"]) | st.none())
            lines.append(says(uuid, "x", parent, number, api=api, output=draw(_outputs), isSidechain=side))
    return lines


@pytest.mark.hazard(52)
@pytest.mark.hazard(96)
@settings(max_examples=150 * SCALE)
@given(_responses(), st.lists(st.tuples(st.integers(0, 14), st.booleans()), max_size=4))
def test_every_part_and_token_is_imported_once_however_the_file_grows(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]], stops: list[tuple[int, bool]]
) -> None:
    path = tmp_path_factory.mktemp("grow") / "session.jsonl"
    path.write_bytes(as_bytes(lines))
    whole, _ = rows_of(PROVIDER, path)
    path.unlink()
    file = GrowingFile(PROVIDER, path)
    for count, quiet in sorted(stops):
        file.grow_to(as_bytes(lines[:count]), quiet=quiet)
    file.grow_to(as_bytes(lines), quiet=True)

    assert all("@" in key for key in file.held), "in a quiet file only counts wait, for a line that can carry them"
    assert Counter(row["part_id"] for row in file.rows) == Counter(row["part_id"] for row in whole)
    if not file.held:
        assert usage(file.rows) == usage(whole)
