"""Materializers: what makes rows of a provider's items. One per kind; registered in the group `hypaware.materializers`.

`materialize` runs in Spark's tasks and must be a function of its arguments: a task that is tried again gives the same
rows. It makes rows as a producer would send them; they are coerced afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hypaware.backfill.provider import Provenance
from hypaware.model.datasets import Row

Materialize = Callable[[Any, Provenance, Counter[str]], Iterator[Row]]
"""(an item's value, where it is from, reason → parts that make no row) → rows of the dataset."""

Tally = Callable[[Row], Mapping[str, int]]
"""What one row adds to the summary, for example tokens by kind."""


class InvalidItem(ValueError):
    """The value of an item is not what its materializer takes: the provider's fault, not the data's."""


@dataclass(frozen=True)
class Materializer:
    name: str
    """The kind of items that it takes, for example `ai_gateway.projected_exchange`."""
    dataset: str
    """Where its rows belong."""
    materialize: Materialize
    tally: Tally | None = None
    judged: bool = False
    """Its rows are as they are stored, JSON columns as canonical text. They are not judged again, which takes a fifth
    off an import; leave it out unless a test holds `complete_row` against `coerce_row`."""
