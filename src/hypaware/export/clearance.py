"""The privacy gate: every row passes it on its way to a sink.

It leaves out the rows of folders and sessions that must stay on this machine and replaces secrets in texts, as config,
folders and opt-outs say at that moment. A range is delivered without the rows left out, as it is without purged rows:
they are skipped for good, unless the user resends everything. A chunk is identified by its range, so it may be sent
once with such a row and once without, and still arrives once.

No other module of delivery knows folder classes or redaction rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from hypaware.capture import privacy
from hypaware.capture.privacy import Privacy
from hypaware.capture.redact import columns_with_text
from hypaware.capture.secrets_hint import HINT
from hypaware.export.withheld import Redact, Withheld, any_withheld, may_leave, redacted
from hypaware.model import datasets
from hypaware.model.datasets import SEQ

if TYPE_CHECKING:
    import pyarrow as pa

    from hypaware.config import Config
    from hypaware.home import Home


@dataclass(frozen=True)
class Audit:
    """The effect of the gate on a set of rows, by sequence, so that it can be cut like the rows."""

    withheld: tuple[int, ...] = ()
    secrets: Mapping[int, Counter[str]] = field(default_factory=dict)
    """Sequence → number of replacements by each rule; never the replaced text."""

    def slice(self, after: int, last: int) -> Audit:
        return Audit(
            tuple(seq for seq in self.withheld if after < seq <= last),
            {seq: counts for seq, counts in self.secrets.items() if after < seq <= last},
        )

    @property
    def rules(self) -> Counter[str]:
        return sum(self.secrets.values(), Counter())


@dataclass(frozen=True)
class Clearance:
    is_withheld: Withheld
    redactors: Callable[[str], Mapping[str, Redact]] = lambda _dataset: {}
    """Dataset → redactors of the columns that may hold secrets; empty if redaction is off for exports."""
    check_policy: Callable[[], object] = lambda: None
    """Raises HypError if the policy is unknown: then rows must be neither delivered nor skipped."""

    def filter_rows(self, dataset: str, table: pa.Table) -> tuple[pa.Table, Audit]:
        """Return the rows that may leave now, without secrets. The table holds the sequence (`SEQ`)."""
        self.check_policy()
        withheld: tuple[int, ...] = ()
        if (mask := may_leave(table, self.is_withheld)) is not None:
            withheld = tuple(table.column(SEQ).filter(pc.invert(mask)).to_pylist())
            table = table.filter(mask)
        table, matches = redacted(table, self.redactors(dataset), HINT)
        seqs = table.column(SEQ)
        return table, Audit(withheld, {seqs[row].as_py(): counts for row, counts in sorted(matches.items())})

    def still_allowed(self, table: pa.Table) -> bool:
        """Return whether all these rows, which passed the gate before, may still leave."""
        self.check_policy()
        return not any_withheld(table, self.is_withheld)

    def redact(self, dataset: str, table: pa.Table) -> pa.Table:
        """Return the rows without secrets, as they would leave this machine."""
        return redacted(table, self.redactors(dataset), HINT)[0]


def of(home: Home, config: Config) -> Clearance:
    is_withheld = Privacy.from_config(home, config.privacy, remember=True).is_withheld
    check = partial(privacy.check, home)
    if not config.redaction.exported:
        return Clearance(is_withheld, check_policy=check)
    rules_off = frozenset(config.redaction.rules_off)

    @cache
    def redactors(dataset: str) -> Mapping[str, Redact]:
        columns = columns_with_text(datasets.get(dataset))
        return {name: partial(redact, rules_off=rules_off) for name, redact in columns.items()}

    return Clearance(is_withheld, redactors, check)
