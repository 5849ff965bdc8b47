"""The inputs of a setup, its steps, and the listener that follows them."""

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
    """The folder of the engine's jars."""
    choices: Choices
    found: Sequence[FoundClient]
    variables: Mapping[str, str]
    """The user's environment, including HOME."""
    now: datetime
    """The start time. The import ends here; later messages are recorded live."""

    def settings(self, clients: Sequence[str]) -> list[Settings]:
        """Return the settings of those clients that can be attached."""
        return [
            each.client.settings for each in self.found if each.name in clients and each.client.settings is not None
        ]


@dataclass(frozen=True)
class Step:
    name: str
    status: Status
    message: str
    """One line: the result, or the reason why the step was skipped."""
    commands: tuple[str, ...] = ()
    """Commands that do the step later."""
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    error: HypError | None = None

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "step": self.name,
            "status": self.status,
            "said": self.message,
            "notes": list(self.notes),
            **self.facts,
        }
        if self.commands:
            document["later"] = list(self.commands)
        if self.error:
            document["error"] = self.error.as_json()
        return document


Progress = Callable[..., None]
"""Takes a message, the amount done, the total, and more facts by name."""


@dataclass(frozen=True)
class Listener:
    step: Callable[[Step], None] = lambda _: None
    progress: Progress = lambda *_, **__: None
    event: OnEvent = unheard
