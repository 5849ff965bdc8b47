"""One set-up: where, for whom, since when; and who hears how it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from hypaware.clients.attach import Settings
from hypaware.engine.jobs import OnEvent, unheard
from hypaware.errors import HypError
from hypaware.home import Home
from hypaware.setup.choices import Choices
from hypaware.setup.finding import FoundClient

Status = Literal["done", "would", "unchanged", "skipped", "failed"]


@dataclass(frozen=True)
class Plan:
    home: Home
    cache: Path
    """Of the engine's jars."""
    choices: Choices
    found: Sequence[FoundClient]
    variables: Mapping[str, str]
    """The user's environment, with HOME."""
    now: datetime
    """When it began: what is newer belongs to live capture."""

    def settings(self, clients: Sequence[str]) -> list[Settings]:
        """Of those clients that can be attached."""
        return [
            each.client.settings for each in self.found if each.name in clients and each.client.settings is not None
        ]


@dataclass(frozen=True)
class Step:
    name: str
    status: Status
    said: str
    """One line: what was done, or why not."""
    later: tuple[str, ...] = ()
    """Commands that do it later."""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: HypError | None = None

    def as_json(self) -> dict[str, Any]:
        told = {"step": self.name, "status": self.status, "said": self.said, "notes": list(self.notes), **self.facts}
        if self.later:
            told["later"] = list(self.later)
        if self.error:
            told["error"] = self.error.as_json()
        return told


Progress = Callable[..., None]
"""What is going on, how much of it is done, how much there is; more facts by name."""


@dataclass(frozen=True)
class Listener:
    step: Callable[[Step], None] = lambda _: None
    progress: Progress = lambda *_, **__: None
    event: OnEvent = unheard
