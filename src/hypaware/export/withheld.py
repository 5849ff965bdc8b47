"""Of a table of rows: those that may leave this machine, and their texts without secrets.

Which rows stay here, and what a secret is, comes in as functions: nothing here knows folders or rules. Arrow looks at
all texts for a hint of a secret; only those that have one are seen by Python.

@ref delivery#withheld
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Withheld = Callable[[str | None, str | None], bool]
"""(cwd, session id) → whether their rows stay here."""
Redact = Callable[[str], tuple[str, "Counter[str]"]]
"""Text → the text without its secrets, and how often each rule spoke."""

_FOLDER, _SESSION = "cwd", "session_id"


def any_withheld(table: pa.Table, is_withheld: Withheld) -> bool:
    """Each pair of folder and session is asked about once."""
    return any(is_withheld(*pair) for pair in _distinct(table))


def may_leave(table: pa.Table, is_withheld: Withheld) -> Any:
    """For each row whether it may: an Arrow array, or None where all may."""
    verdicts = {pair: is_withheld(*pair) for pair in _distinct(table)}
    if not any(verdicts.values()):
        return None
    pairs = zip(*(_texts(table, name).to_pylist() for name in (_FOLDER, _SESSION)), strict=True)
    return pa.array([not verdicts[pair] for pair in pairs])


def _distinct(table: pa.Table) -> list[tuple[str | None, str | None]]:
    if not {_FOLDER, _SESSION} & set(table.column_names):
        return []
    pairs = pa.table({name: _texts(table, name) for name in (_FOLDER, _SESSION)})
    distinct = pairs.group_by([_FOLDER, _SESSION]).aggregate([]).to_pylist()
    return [(pair[_FOLDER], pair[_SESSION]) for pair in distinct]


def _texts(table: pa.Table, name: str) -> Any:
    return table[name] if name in table.column_names else pa.nulls(len(table), pa.string())


def redacted(table: pa.Table, columns: Mapping[str, Redact], hint: str) -> tuple[pa.Table, dict[int, Counter[str]]]:
    """The table with the texts of these columns redacted, and of each row that had a secret how often each rule spoke.

    `hint`: an expression that every text with a secret matches.
    """
    spoke: dict[int, Counter[str]] = {}
    for name, redact in columns.items():
        place = table.schema.get_field_index(name)
        if place < 0:
            continue
        column = table.column(place)
        chunks, start = [], 0
        for chunk in column.chunks:
            chunks.append(_redacted(chunk, redact, hint, start, spoke))
            start += len(chunk)
        if any(new is not old for new, old in zip(chunks, column.chunks, strict=True)):
            table = table.set_column(place, table.schema.field(place), pa.chunked_array(chunks, column.type))
    return table, spoke


def _redacted(texts: Any, redact: Redact, hint: str, start: int, spoke: dict[int, Counter[str]]) -> Any:
    # As bytes: an ASCII expression goes through them faster than through characters.
    as_bytes = texts.cast(pa.large_binary() if pa.types.is_large_string(texts.type) else pa.binary())
    suspects = pc.fill_null(pc.match_substring_regex(as_bytes, hint), False)
    if not suspects.true_count:
        return texts
    places = pc.indices_nonzero(suspects).to_pylist()
    found = texts.take(pa.array(places, pa.int64())).to_pylist()
    # Many rows share a text: each is looked at once.
    seen = {text: redact(text) for text in dict.fromkeys(found)}
    changed = [False] * len(texts)
    values: list[str] = []
    for place, text in zip(places, found, strict=True):
        new, counts = seen[text]
        if counts:
            changed[place] = True
            values.append(new)
            spoke.setdefault(start + place, Counter()).update(counts)
    return pc.replace_with_mask(texts, pa.array(changed), pa.array(values, texts.type)) if values else texts
