"""What names a stream. Apart from the tables, so that sinks need no database for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class StreamKey:
    sink: str
    dataset: str
    source: str

    def __str__(self) -> str:
        return f"{self.sink}: {self.dataset} of {self.source}"
