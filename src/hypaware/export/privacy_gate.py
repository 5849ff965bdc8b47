"""The privacy gate: every row passes it on its way to a sink.

It leaves out the rows of folders and sessions that must stay on this machine and replaces secrets in texts, as config,
folders and opt-outs say at that moment. A range is delivered without the rows left out, as it is without purged rows:
they are skipped for good, unless the user resends everything. A chunk is identified by its range, so it may be sent
once with such a row and once without, and still arrives once.

No other module of delivery knows folder classes or redaction rules. Arrow searches all texts for a hint of a secret;
Python sees only those that have one.

@ref delivery#withheld
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from hypaware.model import datasets
from hypaware.model.datasets import SEQ
from hypaware.privacy import policy
from hypaware.privacy.policy import PrivacyPolicy
from hypaware.privacy.redact import text_redactors
from hypaware.privacy.secret_scanner import SECRET_HINT

if TYPE_CHECKING:
    from hypaware.config import Config
    from hypaware.home import Home

IsWithheld = Callable[[str | None, str | None], bool]
"""(cwd, session id) → whether their rows must stay on this machine."""
Redactor = Callable[[str], tuple[str, "Counter[str]"]]
"""Text → the text without secrets, and the number of replacements by each rule."""
_FOLDER, _SESSION = "cwd", "session_id"


@dataclass(frozen=True)
class GateReport:
    """The effect of the gate on a set of rows, by sequence, so that it can be cut like the rows."""

    withheld: tuple[int, ...] = ()
    secrets: Mapping[int, Counter[str]] = field(default_factory=dict)
    """Sequence → number of replacements by each rule; never the replaced text."""

    def slice(self, after: int, last: int) -> GateReport:
        return GateReport(
            tuple(seq for seq in self.withheld if after < seq <= last),
            {seq: counts for seq, counts in self.secrets.items() if after < seq <= last},
        )

    @property
    def rules(self) -> Counter[str]:
        return sum(self.secrets.values(), Counter())


@dataclass(frozen=True)
class PrivacyGate:
    is_withheld: IsWithheld
    redactors: Callable[[str], Mapping[str, Redactor]] = lambda _dataset: {}
    """Dataset → redactors of the columns that may hold secrets; empty if redaction is off for exports."""
    check_policy: Callable[[], object] = lambda: None
    """Raises HypError if the policy is unknown: then rows must be neither delivered nor skipped."""

    def filter_rows(self, dataset: str, table: pa.Table) -> tuple[pa.Table, GateReport]:
        """Return the rows that may leave now, without secrets. The table holds the sequence (`SEQ`)."""
        self.check_policy()
        withheld: tuple[int, ...] = ()
        if (mask := exportable_mask(table, self.is_withheld)) is not None:
            withheld = tuple(table.column(SEQ).filter(pc.invert(mask)).to_pylist())
            table = table.filter(mask)
        table, matches = redact_table(table, self.redactors(dataset), SECRET_HINT)
        seqs = table.column(SEQ)
        return table, GateReport(withheld, {seqs[row].as_py(): counts for row, counts in sorted(matches.items())})

    def still_allowed(self, table: pa.Table) -> bool:
        """Return whether all these rows, which passed the gate before, may still leave."""
        self.check_policy()
        return not any(self.is_withheld(*pair) for pair in _distinct_pairs(table))

    def redact(self, dataset: str, table: pa.Table) -> pa.Table:
        """Return the rows without secrets, as they would leave this machine."""
        return redact_table(table, self.redactors(dataset), SECRET_HINT)[0]


def make_gate(home: Home, config: Config) -> PrivacyGate:
    is_withheld = PrivacyPolicy.from_config(home, config.privacy, remember=True).is_withheld
    check = partial(policy.check_privacy_files, home)
    if not config.redaction.exported:
        return PrivacyGate(is_withheld, check_policy=check)
    rules_off = frozenset(config.redaction.rules_off)

    @cache
    def redactors(dataset: str) -> Mapping[str, Redactor]:
        columns = text_redactors(datasets.get(dataset))
        return {name: partial(redact, rules_off=rules_off) for name, redact in columns.items()}

    return PrivacyGate(is_withheld, redactors, check)


def exportable_mask(table: pa.Table, is_withheld: IsWithheld) -> Any:
    """Return an Arrow mask of the rows that may leave, or None if all may."""
    verdicts = {pair: is_withheld(*pair) for pair in _distinct_pairs(table)}
    if not any(verdicts.values()):
        return None
    pairs = zip(*(_text_column(table, name).to_pylist() for name in (_FOLDER, _SESSION)), strict=True)
    return pa.array([not verdicts[pair] for pair in pairs])


def _distinct_pairs(table: pa.Table) -> list[tuple[str | None, str | None]]:
    if not {_FOLDER, _SESSION} & set(table.column_names):
        return []
    pairs = pa.table({name: _text_column(table, name) for name in (_FOLDER, _SESSION)})
    distinct = pairs.group_by([_FOLDER, _SESSION]).aggregate([]).to_pylist()
    return [(pair[_FOLDER], pair[_SESSION]) for pair in distinct]


def _text_column(table: pa.Table, name: str) -> Any:
    return table[name] if name in table.column_names else pa.nulls(len(table), pa.string())


def redact_table(
    table: pa.Table, columns: Mapping[str, Redactor], hint: str
) -> tuple[pa.Table, dict[int, Counter[str]]]:
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
            chunks.append(_redact_chunk(chunk, redact, hint, start, matches))
            start += len(chunk)
        if any(new is not old for new, old in zip(chunks, column.chunks, strict=True)):
            table = table.set_column(index, table.schema.field(index), pa.chunked_array(chunks, column.type))
    return table, matches


def _redact_chunk(texts: Any, redact: Redactor, hint: str, start: int, matches: dict[int, Counter[str]]) -> Any:
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
