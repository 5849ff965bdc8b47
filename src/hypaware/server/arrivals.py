"""Values: a batch on its way through the server, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypaware.model.datasets import Dataset
from hypaware.server.callers import Caller
from hypaware.server.headers import BatchHeaders
from hypaware.server.problem import Problem
from hypaware.state.ledger import Batch, Covered, Sender


@dataclass(frozen=True)
class Stored:
    rows: int


@dataclass(frozen=True)
class Known:
    """A batch with the same id was stored before; nothing was stored now."""


@dataclass(frozen=True)
class Overlapping:
    """The batch has a new id but covers rows that are already stored; nothing was stored now."""

    covered: Covered


Outcome = Stored | Known | Overlapping | Problem
Answer = Callable[[Outcome], None]
"""Reports the outcome of a batch; called once, from any thread."""


@dataclass(frozen=True)
class Arrival:
    """A batch described by its headers, and its sender."""

    caller: Caller
    dataset: Dataset
    headers: BatchHeaders

    def sender(self, gateway_id: str) -> Sender:
        return Sender(self.caller.tenant, gateway_id, self.headers.incarnation, self.dataset.name)


@dataclass(frozen=True)
class Durable:
    """A validated batch; its file, if it has rows, is written and synced."""

    incoming: Arrival
    batch: Batch
    path: Path | None
    answer: Answer
