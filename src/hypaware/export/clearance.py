"""What may leave this machine: the one gate that every row passes on its way to a sink.

Rows of folders and sessions that are to stay here are left out, and texts lose their secrets, by what the config, the
folders and the opt-outs say at that moment. A range is delivered without the rows that were left out, as without those
that were purged: they are passed over for good, unless the user has everything sent again. A chunk is known by its
range, so it may be sent once with such a row and once without: it arrives once all the same.

The only module of delivery that knows where folders' classes and the rules of redaction come from.
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
    """What was done to rows before they left; by their sequences, so that it can be told of a part of them."""

    withheld: tuple[int, ...] = ()
    secrets: Mapping[int, Counter[str]] = field(default_factory=dict)
    """How often each rule spoke; never what it saw."""

    def part(self, after: int, last: int) -> Audit:
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
    secrets_in: Callable[[str], Mapping[str, Redact]] = lambda _dataset: {}
    """Dataset → its columns that may hold a secret; nothing, where secrets may leave."""
    check: Callable[[], object] = lambda: None
    """Raises HypError where nobody can say what may leave: rows must neither leave then nor be passed over."""

    def cleared(self, dataset: str, table: pa.Table) -> tuple[pa.Table, Audit]:
        """The rows that may leave now, in the form in which they may. The table has the sequence (`SEQ`)."""
        self.check()
        withheld: tuple[int, ...] = ()
        if (leaves := may_leave(table, self.is_withheld)) is not None:
            withheld = tuple(table.column(SEQ).filter(pc.invert(leaves)).to_pylist())
            table = table.filter(leaves)
        table, spoke = redacted(table, self.secrets_in(dataset), HINT)
        seqs = table.column(SEQ)
        return table, Audit(withheld, {seqs[place].as_py(): counts for place, counts in sorted(spoke.items())})

    def still_holds(self, table: pa.Table) -> bool:
        """Whether all rows that were cleared before may leave now."""
        self.check()
        return not any_withheld(table, self.is_withheld)

    def without_secrets(self, dataset: str, table: pa.Table) -> pa.Table:
        """Rows to be shown as they would leave."""
        return redacted(table, self.secrets_in(dataset), HINT)[0]


def of(home: Home, config: Config) -> Clearance:
    is_withheld = Privacy.of(home, config.privacy, remembers=True).withheld
    check = partial(privacy.check, home)
    if not config.redaction.exported:
        return Clearance(is_withheld, check=check)
    off = frozenset(config.redaction.rules_off)

    @cache
    def secrets_in(dataset: str) -> Mapping[str, Redact]:
        columns = columns_with_text(datasets.get(dataset))
        return {name: partial(redact, rules_off=off) for name, redact in columns.items()}

    return Clearance(is_withheld, secrets_in, check)
