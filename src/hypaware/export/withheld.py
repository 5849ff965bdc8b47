"""Table operations of the privacy gate: select the rows that may leave, and redact their texts.

Which rows stay and which texts are secrets is passed in as functions; this module knows neither folders nor rules.
Arrow searches all texts for a hint of a secret; Python sees only those that have one.

@ref delivery#withheld
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

Withheld = Callable[[str | None, str | None], bool]
"""(cwd, session id) → whether their rows must stay on this machine."""
Redact = Callable[[str], tuple[str, "Counter[str]"]]
"""Text → the text without secrets, and the number of replacements by each rule."""

_FOLDER, _SESSION = "cwd", "session_id"


def any_withheld(table: pa.Table, is_withheld: Withheld) -> bool:
    """Return whether any row must stay. Each pair of folder and session is checked once."""
    return any(is_withheld(*pair) for pair in _distinct(table))


def may_leave(table: pa.Table, is_withheld: Withheld) -> Any:
    """Return an Arrow mask of the rows that may leave, or None if all may."""
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
    """Redact the texts of these columns.

    `hint` is a regular expression that every text with a secret matches. Returns the table, and for each row that had
    a secret the number of replacements by each rule.
    """
    matches: dict[int, Counter[str]] = {}
    for name, redact in columns.items():
        index = table.schema.get_field_index(name)
        if index < 0:
            continue
        column = table.column(index)
        chunks, start = [], 0
        for chunk in column.chunks:
            chunks.append(_redacted(chunk, redact, hint, start, matches))
            start += len(chunk)
        if any(new is not old for new, old in zip(chunks, column.chunks, strict=True)):
            table = table.set_column(index, table.schema.field(index), pa.chunked_array(chunks, column.type))
    return table, matches


def _redacted(texts: Any, redact: Redact, hint: str, start: int, matches: dict[int, Counter[str]]) -> Any:
    # As bytes: an ASCII expression searches bytes faster than characters.
    as_bytes = texts.cast(pa.large_binary() if pa.types.is_large_string(texts.type) else pa.binary())
    suspects = pc.fill_null(pc.match_substring_regex(as_bytes, hint), False)
    if not suspects.true_count:
        return texts
    rows = pc.indices_nonzero(suspects).to_pylist()
    found = texts.take(pa.array(rows, pa.int64())).to_pylist()
    # Many rows share a text: redact each text once.
    results = {text: redact(text) for text in dict.fromkeys(found)}
    changed = [False] * len(texts)
    values: list[str] = []
    for row, text in zip(rows, found, strict=True):
        new, counts = results[text]
        if counts:
            changed[row] = True
            values.append(new)
            matches.setdefault(start + row, Counter()).update(counts)
    return pc.replace_with_mask(texts, pa.array(changed), pa.array(values, texts.type)) if values else texts
