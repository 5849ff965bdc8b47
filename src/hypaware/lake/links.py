"""Links of live rows that lead to an id which a settlement replaced.

A live row names the previous message by the id under which the gateway recorded it. That message may get its native id
later, or its native row was kept instead of it. The key index still has the recorded id, as another key of the row that
exists now, so a compaction can correct the link. Nothing is stored in between: which links are stale follows from the
rows and the index.

The row keeps its sequence and its row id, and `attributes.gateway.previous_link` has the replaced id.

@ref keys#settlements
"""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.errors import LakeError
from hypaware.home import Home
from hypaware.home.sqlite_readonly import open_readonly
from hypaware.iceberg import metadata
from hypaware.iceberg.metadata import GATEWAY_ID_PROPERTY, DataFile
from hypaware.lake import key_index
from hypaware.lake.parquet import mask_own_rows
from hypaware.lake.rewrite import RowPatch, read_columns
from hypaware.model import canonical, datasets
from hypaware.model.datasets import GATEWAY, SEQ, Dataset, hash_key

_MESSAGE = "message_id"
# The ids that the gateway assigns have 16 hex digits; those of clients are longer.
_RECORDED_LINK = r'^\["[0-9a-f]{16}"\]$'


@dataclass(frozen=True)
class StaleLinks:
    renames: Mapping[str, str] = field(default_factory=dict)
    """Replaced id → the id of the message now."""
    unknown: frozenset[str] = frozenset()
    """Ids of no row in the lake that the key index does not know either."""
    files: Mapping[Path, frozenset[str]] = field(default_factory=dict)
    """The replaced ids that the rows of a file link to, for files that have some."""

    def affects(self, file: DataFile) -> bool:
        return file.path in self.files

    def amendment(self, files: Iterable[DataFile], dataset: Dataset, first: RowPatch | None) -> RowPatch | None:
        """Return the patch for the rows of some files, to be applied after the patch `first`."""
        replaced = frozenset().union(*(self.files.get(file.path, frozenset()) for file in files))
        return LinkPatch(dataset.name, {each: self.renames[each] for each in replaced}, first) if replaced else first


def find_stale_links(home: Home, dataset: Dataset, files: Collection[DataFile]) -> StaleLinks:
    """Find the links of live rows that lead to no row. Unreadable files are left out; other checks report them."""
    entry = metadata.find_table(home, dataset.name)
    if dataset.match_rules is None or entry is None or not home.keys.is_file():
        return StaleLinks()
    own_gateway = metadata.read_metadata(entry.metadata).properties.get(GATEWAY_ID_PROPERTY)
    links = {file.path: _read_links(file.path, dataset.match_rules.link_column, own_gateway) for file in files}
    linked = frozenset().union(*links.values())
    if not linked:
        return StaleLinks()
    keys = {hash_key(dataset.name, f"{each}#0"): each for each in linked}
    try:
        with open_readonly(home.keys) as index:
            known = {keys[key]: seq for key, seq in key_index.lookup_keys(index, sorted(keys))}
    except sqlite3.Error:
        # Flushes and `hyp verify` report an index that cannot be read.
        return StaleLinks()
    names = _read_names(files, sorted(set(known.values())))
    renames = {each: name for each, seq in known.items() if (name := names.get(seq)) is not None and name != each}
    stale = {path: found for path, each in links.items() if (found := each & renames.keys())}
    return StaleLinks(renames, linked - known.keys(), stale)


@lru_cache(maxsize=4096)
def _read_links(path: Path, column: str, own_gateway: str | None) -> frozenset[str]:
    """Return the ids in the file's links that our gateway assigned, unless the file has the message.

    A file never changes, so the answer is kept. Rows of other gateways are settled there.
    """
    try:
        rows = read_columns(path, [column, _MESSAGE, GATEWAY])
    except LakeError:
        return frozenset()
    if column not in rows.column_names:
        return frozenset()
    if own_gateway is not None and GATEWAY in rows.column_names:
        rows = rows.filter(mask_own_rows(rows.column(GATEWAY), own_gateway))
    found = pc.unique(rows.column(column))
    recorded = found.filter(pc.fill_null(pc.match_substring_regex(found, _RECORDED_LINK), False))
    linked = pc.utf8_slice_codeunits(recorded, 2, -2)
    is_here = pc.is_in(linked, value_set=rows.column(_MESSAGE).combine_chunks())
    return frozenset(linked.filter(pc.invert(is_here)).to_pylist())


def _read_names(files: Iterable[DataFile], wanted: Sequence[int]) -> dict[int, str]:
    """Return the message ids of rows by sequence. `wanted` is sorted."""
    names: dict[int, str] = {}
    for file in files:
        next_wanted = bisect_left(wanted, file.min_seq or 0)
        if next_wanted == len(wanted) or (file.max_seq is not None and wanted[next_wanted] > file.max_seq):
            continue
        try:
            rows = read_columns(file.path, [SEQ, _MESSAGE])
        except LakeError:
            continue
        rows = rows.filter(pc.fill_null(pc.is_in(rows.column(SEQ), value_set=pa.array(wanted, pa.int64())), False))
        names.update(zip(rows.column(SEQ).to_pylist(), rows.column(_MESSAGE).to_pylist(), strict=True))
    return names


@dataclass(frozen=True)
class LinkPatch:
    """Corrects links of rows that are rewritten. A plain value that is sent to tasks."""

    dataset: str
    renames: Mapping[str, str]
    first: RowPatch | None

    def apply(self, rows: pa.Table) -> pa.Table:
        if self.first is not None:
            rows = self.first.apply(rows)
        rules = datasets.get(self.dataset).match_rules
        assert rules is not None
        renames = {canonical.dumps([old]): new for old, new in self.renames.items()}
        links = rows.column(rules.link_column)
        stale = pc.fill_null(pc.is_in(links, value_set=pa.array(renames, pa.string())), False)
        if not pc.any(stale).as_py():
            return rows
        patched = [rules.relink(row, renames[row[rules.link_column]]) for row in rows.filter(stale).to_pylist()]
        both = pa.concat_tables([rows.filter(pc.invert(stale)), pa.Table.from_pylist(patched, schema=rows.schema)])
        return both.take(pc.sort_indices(both.column(SEQ)))
