"""Dedupe keys: the part for rows of the own gateway, gateway and part for rows of another."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from hypaware.home import Home
from hypaware.lake import key_index
from hypaware.lake.dedupe import KeyScanTask
from hypaware.lake.row_keys import unpack_keys
from hypaware.model.datasets import KEY_BYTES, SEQ, coerce_row, hash_key, hash_row_key
from hypaware.spool import segments
from hypaware.state.home_opener import open_home
from tests.support.light_home import flush
from tests.support.light_lake import read_lake
from tests.support.rows import DATASET, MESSAGES
from tests.support.rows import row as message

OWN = "gw-own"


def key(part: str, gateway: str | None, own: str | None = OWN) -> bytes | None:
    return hash_row_key(MESSAGES, {"part_id": part, "gateway_id": gateway}, own)


def test_a_row_of_the_own_gateway_has_a_key_without_gateway() -> None:
    assert key("m#0", OWN) == hash_key(DATASET, "m#0")
    assert key("m#0", None) == hash_key(DATASET, "m#0"), "rows without a gateway are the own ones"
    assert key("m#0", "gw-other", None) == hash_key(DATASET, "m#0")


def test_no_gateway_can_claim_rows_of_another() -> None:
    assert len({key("m#0", gateway) for gateway in (OWN, "gw-1", "gw-2")}) == 3
    assert key("m#0", "gw-1") == key("m#0", "gw-1")


def test_a_row_without_a_key_has_no_hash_from_any_gateway() -> None:
    assert hash_row_key(MESSAGES, {"gateway_id": "gw-1"}, OWN) is None


@given(
    st.tuples(st.text(max_size=8), st.text(min_size=1, max_size=8)),
    st.tuples(st.text(max_size=8), st.text(min_size=1, max_size=8)),
)
def test_different_rows_have_different_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    """No combination of gateway id and part id gives the key of another."""
    assert (key(one[1], one[0]) == key(other[1], other[0])) == (one == other)


def test_a_scan_of_data_files_gives_the_same_keys(tmp_path: Path) -> None:
    """A rebuilt index must have the same keys as one that flushes have filled."""
    rows = [
        {SEQ: 1, "part_id": "m#0", "gateway_id": OWN},
        {SEQ: 2, "part_id": "m#0", "gateway_id": "gw-1"},
        {SEQ: 3, "part_id": "m#1", "gateway_id": "gw-1"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "file.parquet")

    found = KeyScanTask(DATASET, tmp_path / "file.parquet", own_gateway=OWN).run()
    expected = [(hash_row_key(MESSAGES, row, OWN), row[SEQ]) for row in rows]
    assert list(unpack_keys(found.keys, found.seqs)) == expected
    assert len(found.keys) == 3 * KEY_BYTES


def test_rows_of_two_gateways_with_the_same_part_stay_two_rows_after_the_index_is_rebuilt(home: Home) -> None:
    """On a server, rows of different gateways are distinct, and repeated rows of a gateway are duplicates."""
    own = open_home(home)
    own.store.close()

    def arrive(gateway_id: str) -> int:
        spool = segments.spool_folder(home, DATASET)
        spool.create()
        row = coerce_row(MESSAGES, message(1), gateway_id)
        path = spool.sealed / segments.sealed_file_name(segments.new_segment_name(), 1)
        path.write_bytes(segments.encode_lines([row], 0))
        return flush(home).rows.written

    gateways = [own.gateway_id, "gw-1", "gw-2"]
    assert [arrive(gateway) for gateway in gateways] == [1, 1, 1]
    assert [arrive(gateway) for gateway in gateways] == [0, 0, 0]
    key_index.remove_index(home.keys)
    assert [arrive(gateway) for gateway in gateways] == [0, 0, 0]
    assert sorted(row["gateway_id"] for row in read_lake(home, DATASET)) == sorted(gateways)
