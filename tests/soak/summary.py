"""What the episodes of a soak did and found, and their summary, whose JSON is `.soak.json`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


class Impossible(Exception):
    """This machine does not allow a kind of disturbance."""


@dataclass
class Outcome:
    """One episode. `impossible` says why this machine does not allow it."""

    kind: str
    seed: int
    counts: dict[str, int] = field(default_factory=dict)
    error: str = ""
    impossible: str = ""


@dataclass
class Summary:
    commit: str
    began_at: str
    hours: float
    seed: int
    episodes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)
    impossible: dict[str, str] = field(default_factory=dict)
    """Kinds that this machine does not allow, with the reason."""

    def add(self, outcome: Outcome) -> None:
        if outcome.impossible:
            self.impossible[outcome.kind] = outcome.impossible
            return
        self.episodes[outcome.kind] = self.episodes.get(outcome.kind, 0) + 1
        self.counts = dict(Counter(self.counts) + Counter(outcome.counts))
        if outcome.error:
            replay = f"python -m tests.soak --only '{outcome.kind}' --seed {outcome.seed}"
            self.failures.append(
                {"kind": outcome.kind, "seed": str(outcome.seed), "replay": replay, "error": outcome.error}
            )
