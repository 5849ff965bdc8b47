"""A batch on its way through the server, and what became of it. Values only."""

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
    """The same id was stored before; nothing was stored now."""


@dataclass(frozen=True)
class Overlapping:
    """A new id, for rows that are here already; nothing was stored."""

    covered: Covered


Outcome = Stored | Known | Overlapping | Problem
Answer = Callable[[Outcome], None]
"""Called once, from any thread."""


@dataclass(frozen=True)
class Arrival:
    """A batch as its headers tell, and who sent it."""

    caller: Caller
    dataset: Dataset
    headers: BatchHeaders

    def sender(self, gateway_id: str) -> Sender:
        return Sender(self.caller.tenant, gateway_id, self.headers.incarnation, self.dataset.name)


@dataclass(frozen=True)
class Durable:
    """A batch whose file, if it has rows, is written and synced."""

    arrival: Arrival
    batch: Batch
    path: Path | None
    answer: Answer
