"""The result of a check: `ok`, `warning` (it works, but not as it should) or `failed`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Check:
    name: str
    status: Status
    detail: str
    repair: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "status": self.status, "detail": self.detail, "repair": list(self.repair)}


def ok(name: str, detail: str) -> Check:
    return Check(name, "ok", detail)


def warning(name: str, detail: str, *repair: str) -> Check:
    return Check(name, "warning", detail, repair)


def failed(name: str, detail: str, *repair: str) -> Check:
    return Check(name, "failed", detail, repair)
