"""What leaves the machine of a page of rows: not those that are withheld, and of the others no secret.

A lake in front of the lake: a delivery reads through it and never sees anything else, neither in a chunk nor in a dead
letter. A withheld row is passed over for good, as a purged one is: the range is acknowledged without it. Whether a row
is withheld is asked when it is about to leave, so that a folder that was closed meanwhile counts.

Which rows those are, and what a secret is, comes in as functions: delivery knows neither folders nor rules.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.export.rows import Page

if TYPE_CHECKING:
    from hypaware.export.rows import Lake

Withheld = Callable[[str | None, str | None], bool]
"""(cwd, session id) → whether their rows stay here."""
Redact = Callable[[str], tuple[str, "Counter[str]"]]
"""Text → the text without its secrets, and how often each rule spoke."""

_FOLDER, _SESSION = "cwd", "session_id"


def withheld(row: Mapping[str, Any], is_withheld: Withheld) -> bool:
    return is_withheld(row.get(_FOLDER), row.get(_SESSION))


def without_withheld(table: pa.Table, is_withheld: Withheld) -> pa.Table:
    """Each pair of folder and session is asked about once."""
    if not {_FOLDER, _SESSION} & set(table.column_names) or not len(table):
        return table
    pairs = pa.table({name: _texts(table, name) for name in (_FOLDER, _SESSION)})
    distinct = pairs.group_by([_FOLDER, _SESSION]).aggregate([]).to_pylist()
    kept_here = [pair for pair in distinct if withheld(pair, is_withheld)]
    if not kept_here:
        return table
    if len(kept_here) == len(distinct):
        return table.slice(0, 0)
    stays = pa.array([False] * len(table))
    for pair in kept_here:
        stays = pc.or_(stays, pc.and_(_equals(pairs[_FOLDER], pair[_FOLDER]), _equals(pairs[_SESSION], pair[_SESSION])))
    return table.filter(pc.invert(stays))


def _texts(table: pa.Table, name: str) -> Any:
    return table[name] if name in table.column_names else pa.nulls(len(table), pa.string())


def _equals(column: Any, value: str | None) -> Any:
    return pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False)


def redacted(table: pa.Table, columns: Mapping[str, Redact]) -> tuple[pa.Table, Counter[str]]:
    """Each text once, however many rows share it; counts are of rows."""
    counts: Counter[str] = Counter()
    for name, redact in columns.items():
        if name not in table.column_names:
            continue
        encoded = table[name].combine_chunks().dictionary_encode()
        texts: list[str | None] = encoded.dictionary.to_pylist()
        found = {at: redact(text) for at, text in enumerate(texts) if text}
        changed = {at: new for at, (new, seen) in found.items() if seen}
        if not changed:
            continue
        uses = Counter(encoded.indices.to_pylist())
        for at in changed:
            counts.update({kind: count * uses[at] for kind, count in found[at][1].items()})
        values = pa.array([changed.get(at, text) for at, text in enumerate(texts)], encoded.dictionary.type)
        table = table.set_column(
            table.schema.get_field_index(name), table.schema.field(name), values.take(encoded.indices)
        )
    return table, counts


class Leaving:
    """A `Lake` that gives out what may leave."""

    def __init__(
        self,
        lake: Lake,
        is_withheld: Withheld,
        secrets_in: Callable[[str], Mapping[str, Redact]] = lambda _dataset: {},
    ) -> None:
        """`secrets_in`: dataset → its columns that may hold a secret; nothing, where secrets may leave."""
        self._lake = lake
        self._is_withheld = is_withheld
        self._secrets_in = secrets_in
        self.counts: Counter[str] = Counter()
        """How often each rule spoke, and `withheld`: rows that stayed here."""

    async def page(self, dataset: str, source: str, after: int, until: int, most: int) -> Page:
        page = await self._lake.page(dataset, source, after, until, most)
        return Page(await asyncio.to_thread(self._cleared, dataset, page.table), page.after, page.reached)

    async def between(self, dataset: str, source: str, after: int, last: int) -> pa.Table:
        table = await self._lake.between(dataset, source, after, last)
        return await asyncio.to_thread(self._cleared, dataset, table)

    def count(self, dataset: str, source: str, after: int, last: int) -> int:
        return self._lake.count(dataset, source, after, last)

    def _cleared(self, dataset: str, table: pa.Table) -> pa.Table:
        leaving = without_withheld(table, self._is_withheld)
        if len(leaving) < len(table):
            self.counts["withheld"] += len(table) - len(leaving)
        leaving, counts = redacted(leaving, self._secrets_in(dataset))
        self.counts.update(counts)
        return leaving
