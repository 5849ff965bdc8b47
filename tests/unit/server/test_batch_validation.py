"""Large batches are validated in worker processes with the same result; a killed worker loses no batch."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hypaware.home import Home
from hypaware.model import canonical
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.server import validation
from hypaware.server.http import HttpProblem
from hypaware.server.limits import ServerLimits
from hypaware.server.validation import BatchClaims, ValidatorPool, validate_batch
from hypaware.spool import segments
from tests.support import processes
from tests.support.rows import MESSAGES, row, rows
from tests.support.strategies import json_values

LIMITS = ServerLimits()
_SERVER = """
import os, signal
import psutil
from hypothesis import example, given
from hypothesis import strategies as st

from hypaware.home import Home
from hypaware.model import canonical
from hypaware.model.datasets import Row, RowRejected, coerce_row
from hypaware.server import validation

from tests.unit.server.test_batch_validation import LIMITS, _body, _claims

validation._LARGE_BATCH = 1
validation.ValidatorPool(LIMITS, processes=2).validate(_claims(), _body(5), Home.from_environment().root.parent)
print(*(child.pid for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ValidatorPool]:
    monkeypatch.setattr(validation, "_LARGE_BATCH", 1)
    found = ValidatorPool(LIMITS, processes=2)
    yield found
    found.close()


def _body(count: int, **columns: Any) -> bytes:
    return b"\n".join(orjson.dumps(row) for row in rows(count, **columns))


def _claims() -> BatchClaims:
    return BatchClaims(MESSAGES, "gw-1", None, None)


def _processes() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "spawn_main" in " ".join(_command(child))]


def _command(process: psutil.Process) -> list[str]:
    """Return the command line, or an empty list if the process has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_worker_and_server_process_validate_alike(pool: ValidatorPool, tmp_path: Path) -> None:
    found = pool.validate(_claims(), _body(50), tmp_path)
    assert isinstance(found.lines, Path)
    assert replace(found, lines=found.lines.read_bytes()) == validate_batch(_claims(), _body(50), LIMITS)
    assert list(tmp_path.iterdir()) == [found.lines]
    assert _processes()
    for body in (_body(3, role=1), b'{"role":', _body(1, gateway_id="gw-2")):
        with pytest.raises(HttpProblem) as here:
            validate_batch(_claims(), body, LIMITS)
        with pytest.raises(HttpProblem) as there:
            pool.validate(_claims(), body, tmp_path)
        assert (there.value.status, there.value.kind, there.value.detail) == (
            here.value.status,
            here.value.kind,
            here.value.detail,
        )
    assert list(tmp_path.iterdir()) == [found.lines]


def test_a_worker_that_cannot_write_leaves_no_file_and_reports_the_error(pool: ValidatorPool, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        pool.validate(_claims(), _body(5), tmp_path / "missing")
    assert pool.validate(_claims(), _body(5), tmp_path).rows == 5


def test_a_long_number_in_any_line_is_stored_with_every_digit() -> None:
    numbers = [1, 2**53 + 1, 2**63 - 1, 10**30]
    lines = [json.dumps(row) for number in numbers for row in rows(1, raw_frame={"number": number})]
    body = "\n".join(lines).encode()
    found = validate_batch(_claims(), body, LIMITS)
    assert isinstance(found.lines, bytes)
    assert [each["raw_frame"] for each in _stored(found.lines)] == [f'{{"number":{number}}}' for number in numbers]


def _stored(lines: bytes) -> list[Row]:
    """Return the rows as a flush reads them."""
    return [segments.decode_line(MESSAGES, line, at) for at, line in enumerate(io.BytesIO(lines))]


def _delivered(number: int) -> dict[str, str]:
    """Return a row as our own senders write it: column → its JSON text."""
    columns = {"is_error": True, "raw_frame": {"a": [1, {}]}, "previous_message_id": [], "status": "12"}
    coerced = coerce_row(MESSAGES, row(number, **columns), "gw-1")
    return {
        name: value if name in ("attributes", "raw_frame", "previous_message_id") else json.dumps(value)
        for name, value in coerced.items()
    }


def _line(columns: list[tuple[str, str]]) -> bytes:
    return ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in columns) + "}").encode()


def _coerced(line: bytes, gateway_id: str, is_stamped: bool) -> Row:
    """Coerce a line without any shortcut."""
    raw = canonical.loads(line)
    if is_stamped and isinstance(raw, dict):
        raw["gateway_id"] = gateway_id
    return coerce_row(MESSAGES, raw, gateway_id)


def _outcome(line: bytes, is_stamped: bool = False) -> Row | str:
    try:
        found = validate_batch(replace(_claims(), is_stamped=is_stamped), line, LIMITS)
    except HttpProblem as problem:
        return f"{problem.status} {problem.kind} in line {problem.detail['line']}: {problem.detail['reason']}"
    assert isinstance(found.lines, bytes)
    (stored,) = _stored(found.lines)
    return stored


def _expected(line: bytes, is_stamped: bool = False) -> Row | str:
    try:
        return _coerced(line, "gw-1", is_stamped)
    except RowRejected as reason:
        return f"422 invalid_row in line 1: {reason}"
    except (ValueError, RecursionError) as error:
        return f"422 invalid_row in line 1: not JSON: {error}"


_ODD_VALUES = (
    "null", "true", "0", "-0", "1", "1.0", "1e2", "1e999", "[1e999]", "-1", "7", "01", "2147483647", "2147483648",
    "-2147483649", "9223372036854775808", "18446744073709551616", "[18446744073709551616]", "1" * 400, "NaN",
    '""', '"12"', '"null"', '"{"', '"{\\"a\\":1}"', '"\\ud800"', '"\\ud83d\\ude00"', '["\\ud800"]', '"\\u0000"', "{}",
    '{"a":1,"a":2}', '"gw-1"', '"gw-2"', '"2026-11-15"', '"2026-11-15T07:00:01.000000Z"', '"2026-11-15T07:00:01.000Z"',
    '"2026-11-15T07:00:01Z"', '"2026-11-15T09:00:01+02:00"', '"2026-11-15T07:00:01"', '"2026-13-15T07:00:01.000000Z"',
    '"message-1#0"', "[" * 253 + "]" * 253, "[" * 254 + "]" * 254, "[" * 255 + "]" * 255, f"[{'1' * 400}]", "[]",
    "[" * 1100 + "]" * 1100, '"' + "[" * 300 + '"', '{"a":' * 260 + "1" + "}" * 260,
)  # fmt: skip
_NAMES = st.sampled_from([*MESSAGES.coercers, "extra", "_hyp_ingest_seq", ""])
_LITERALS = st.sampled_from(_ODD_VALUES) | json_values.map(lambda value: json.dumps(value, ensure_ascii=False))
_CHANGES = st.lists(st.tuples(_NAMES, st.none() | _LITERALS, st.booleans()), max_size=3)


@given(_CHANGES, st.booleans())
@example([("attributes", "1e999", False)], False)
@example([("attributes", "[" * 255 + "]" * 255, False)], False)
@example([("gateway_id", '"gw-2"', True)], True)
def test_a_row_that_is_stored_as_it_was_sent_is_the_row_that_coercion_gives(
    changes: list[tuple[str, str | None, bool]], is_stamped: bool
) -> None:
    columns = list(_delivered(1).items())
    for name, value, is_repeated in changes:
        if not is_repeated:
            columns = [each for each in columns if each[0] != name]
        if value is not None:
            columns.append((name, value))
    line = _line(columns)
    assert _outcome(line, is_stamped) == _expected(line, is_stamped)


@given(st.lists(st.tuples(st.integers(0), st.binary(max_size=2), st.integers(0, 3)), min_size=1, max_size=2))
def test_a_line_with_any_changed_bytes_is_judged_as_by_coercion(edits: list[tuple[int, bytes, int]]) -> None:
    line = _line(list(_delivered(1).items()))
    for at, inserted, removed in edits:
        start = at % len(line)
        line = line[:start] + inserted.replace(b"\n", b" ") + line[start + removed :]
    assert _outcome(line) == _expected(line)


def test_a_row_of_our_own_senders_is_stored_byte_for_byte() -> None:
    line = _line(list(_delivered(1).items()))
    found = validate_batch(_claims(), line + b"\n", LIMITS)
    assert found.lines == b'{"n":0,"v":1,"row":%b}\n' % line
    (stored,) = validate_batch(_claims(), line + b"\r\n", LIMITS).lines.splitlines()  # type: ignore[union-attr]
    assert b"\r" not in stored


def test_small_batches_are_validated_in_the_server_process(tmp_path: Path) -> None:
    pool = ValidatorPool(LIMITS, processes=2)
    before = _processes()
    assert pool.validate(_claims(), _body(1), tmp_path).rows == 1
    assert not list(tmp_path.iterdir())
    assert not set(_processes()) - set(before)
    pool.close()


def test_killed_worker_loses_no_batch(pool: ValidatorPool, tmp_path: Path) -> None:
    pool.validate(_claims(), _body(5), tmp_path)
    for process in _processes():
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert pool.validate(_claims(), _body(7), tmp_path).rows == 7
    assert pool.validate(_claims(), _body(8), tmp_path).rows == 8


def test_workers_end_with_a_killed_server(home: Home) -> None:
    done = processes.run(_SERVER, home)
    assert processes.was_killed(done), done.stderr
    left = [int(number) for number in done.stdout.split()]
    assert left
    for pid in left:
        processes.wait_until_gone(pid)


def test_rows_of_all_machines_that_share_the_lake_of_the_sender_are_accepted() -> None:
    members = ["gw-1", "gw-1.0123456789ab", "gw-1.ba9876543210"]
    body = b"\n".join(orjson.dumps({**row(number), "gateway_id": name}) for number, name in enumerate(members))
    found = validate_batch(_claims(), body, LIMITS)
    assert isinstance(found.lines, bytes)
    stored = [json.loads(line)["row"] for line in found.lines.splitlines()]
    assert [each["gateway_id"] for each in stored] == members


@pytest.mark.parametrize("other", ["gw-10", "gw-10.0123456789ab", "gw-2", "gw-1.laptop"])
def test_rows_of_another_gateway_are_rejected(other: str) -> None:
    with pytest.raises(HttpProblem) as refused:
        validate_batch(_claims(), orjson.dumps({**row(1), "gateway_id": other}), LIMITS)
    assert refused.value.status == 422
