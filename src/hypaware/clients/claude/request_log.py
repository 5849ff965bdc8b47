"""The request log of newer transcripts: the system prompt and tools of each response.

`api-request-shape` lines hold them once per shape (`shapeHash`, `shape: {system, tools}`), `api-request` lines name
the shape of each request (`id`, `shapeHash`), and assistant lines name their request (`requestRef`). A shape has
about ten thousand characters, so only the first response of a session that used it carries it, not every row.
"""

from __future__ import annotations

from typing import Any

from hypaware.backfill.reading import Line


class RequestLog:
    def __init__(self) -> None:
        self._shapes: dict[str, Line] = {}
        self._shape_of: dict[str, str] = {}
        self._used: set[tuple[str, str]] = set()

    def add(self, line: Line, value: dict[str, Any]) -> None:
        shape = value.get("shapeHash")
        if not isinstance(shape, str):
            return
        if value["type"] == "api-request-shape":
            self._shapes.setdefault(shape, line)
        elif isinstance(request := value.get("id"), str):
            self._shape_of[request] = shape

    def first_use(self, session: str, request: Any) -> Line | None:
        """Return the line with the request's shape, if no earlier response of the session used it."""
        shape = self._shape_of.get(request) if isinstance(request, str) else None
        if shape is None or shape not in self._shapes or (session, shape) in self._used:
            return None
        self._used.add((session, shape))
        return self._shapes[shape]


def shape_columns(line: Line) -> dict[str, Any]:
    shape = line.value.get("shape")
    if not isinstance(shape, dict):
        return {}
    return {"system_text": _text(shape.get("system")), "tools": shape.get("tools") or None}


def _text(system: Any) -> Any:
    if isinstance(system, list):
        texts = [block.get("text") if isinstance(block, dict) else block for block in system]
        return "\n".join(text for text in texts if isinstance(text, str)) or None
    return system or None
