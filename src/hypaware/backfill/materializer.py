"""Materializers turn a provider's items into rows, one materializer per kind of item.

They register in the group `hypaware.materializers`. `materialize` runs in Spark's tasks and must depend only on its
arguments, so that a retried task gives the same rows. It makes rows as a producer would send them; they are coerced
afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypaware.backfill.provider import Provenance
from hypaware.model.datasets import Row

Materialize = Callable[[Any, Provenance, Counter[str]], Iterator[Row]]
"""(an item's value, its provenance, a counter of parts that make no row, by reason) → rows of the dataset."""

Tally = Callable[[Row], Mapping[str, int]]
"""Returns what one row adds to the summary, for example tokens by kind."""


class InvalidItem(ValueError):
    """The materializer does not accept the value of an item: a bug of the provider, not a problem of the data."""


@dataclass(frozen=True)
class Materializer:
    name: str
    """The kind of items that it accepts, for example `ai_gateway.projected_exchange`."""
    dataset: str
    """The dataset of its rows."""
    materialize: Materialize
    tally: Tally | None = None
    rows_are_coerced: bool = False
    """Its rows are already coerced, JSON columns as canonical text, and are not coerced again, which saves a fifth of
    the time of an import. Set it only if a test compares `complete_row` with `coerce_row`."""
