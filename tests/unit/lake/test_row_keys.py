"""The dedupe key of a row: its own gateway's by its part, another gateway's by that gateway and its part."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from hypaware.home import Home
from hypaware.lake import keys
from hypaware.lake.build import KEY_BYTES, key_hash, row_key
from hypaware.lake.keys import pairs
from hypaware.lake.scan import FileScan, keys_of_file
from hypaware.model.coerce import coerce_row
from hypaware.model.datasets import SEQ
from hypaware.opening import open_home
from hypaware.spool import envelope, segments
from tests.light_lake import read_lake
from tests.light_life import flush
from tests.rows import DATASET, MESSAGES
from tests.rows import row as message

OWN = "gw-own"


def key(part: str, gateway: str | None, own: str | None = OWN) -> bytes | None:
    return row_key(MESSAGES, {"part_id": part, "gateway_id": gateway}, own)


def test_a_row_of_the_homes_own_has_the_key_it_always_had() -> None:
    assert key("m#0", OWN) == key_hash(DATASET, "m#0")
    assert key("m#0", None) == key_hash(DATASET, "m#0"), "rows that do not say whose they are are its own"
    assert key("m#0", "gw-other", None) == key_hash(DATASET, "m#0")


def test_no_gateway_can_claim_anothers_rows() -> None:
    assert len({key("m#0", gateway) for gateway in (OWN, "gw-1", "gw-2")}) == 3
    assert key("m#0", "gw-1") == key("m#0", "gw-1")


def test_a_row_without_a_key_has_none_whoever_it_comes_from() -> None:
    assert row_key(MESSAGES, {"gateway_id": "gw-1"}, OWN) is None


@given(
    st.tuples(st.text(max_size=8), st.text(min_size=1, max_size=8)),
    st.tuples(st.text(max_size=8), st.text(min_size=1, max_size=8)),
)
def test_different_rows_have_different_keys(one: tuple[str, str], other: tuple[str, str]) -> None:
    """Whatever is in a gateway's id or in a part's: none runs over into the other."""
    assert (key(one[1], one[0]) == key(other[1], other[0])) == (one == other)


def test_the_lakes_own_files_give_the_same_keys(tmp_path: Path) -> None:
    """What the index is filled anew from must agree with what a flush put in."""
    rows = [
        {SEQ: 1, "part_id": "m#0", "gateway_id": OWN},
        {SEQ: 2, "part_id": "m#0", "gateway_id": "gw-1"},
        {SEQ: 3, "part_id": "m#1", "gateway_id": "gw-1"},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "file.parquet")

    found = keys_of_file(FileScan(DATASET, tmp_path / "file.parquet", own_gateway=OWN))
    expected = [(row_key(MESSAGES, row, OWN), row[SEQ]) for row in rows]
    assert list(pairs(found.hashes, found.seqs)) == expected
    assert len(found.hashes) == 3 * KEY_BYTES


def test_rows_of_two_gateways_with_one_part_are_two_rows_also_after_the_index_was_made_anew(home: Home) -> None:
    """At a server each gateway's rows are its own; and its own rows that come again are still known."""
    own = open_home(home)
    own.store.close()

    def arrive(gateway_id: str) -> int:
        spool = segments.folder(home, DATASET)
        spool.create()
        row = coerce_row(MESSAGES, message(1), gateway_id)
        path = spool.sealed / segments.sealed_name(segments.new_name(), 1)
        path.write_bytes(envelope.write_lines([row], 0))
        return flush(home).rows_written

    gateways = [own.gateway_id, "gw-1", "gw-2"]
    assert [arrive(gateway) for gateway in gateways] == [1, 1, 1]
    assert [arrive(gateway) for gateway in gateways] == [0, 0, 0]
    keys.remove(home.keys)
    assert [arrive(gateway) for gateway in gateways] == [0, 0, 0]
    assert sorted(row["gateway_id"] for row in read_lake(home, DATASET)) == sorted(gateways)
