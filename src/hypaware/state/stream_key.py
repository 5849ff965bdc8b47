"""The key of a stream. Importing this module does not import the database."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class StreamKey:
    sink: str
    dataset: str
    source: str

    def __str__(self) -> str:
        return f"{self.sink}: {self.dataset} of {self.source}"
