"""A home with rows in its spool, and its index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypaware.home import Home
from hypaware.index.store import Index, open_index
from hypaware.state.home_opener import open_home
from tests.support.light_home import append
from tests.support.rows import row

OPUS, SONNET, HAIKU = "claude-opus-5-5", "claude-sonnet-4-5-20250929", "claude-haiku-5-5"


def make_home(root: Path, *rows: dict[str, Any]) -> Home:
    home = Home(root)
    open_home(home).store.close()
    if rows:
        append(home, list(rows))
    return home


def index_of(root: Path, *rows: dict[str, Any]) -> Index:
    return open_index(make_home(root, *rows))


def response(number: int, *, at: str, usage: dict[str, int] | None = None, **columns: Any) -> dict[str, Any]:
    """Return a row of the assistant, with token counts (such as `output_tokens`) if given."""
    attributes = {"client": {}, **({"usage": usage} if usage else {})}
    return row(
        number, message_created_at=at, attributes=attributes, **{"model": OPUS, "cwd": "/home/dev/web", **columns}
    )


def prompt(number: int, text: str, *, at: str, **columns: Any) -> dict[str, Any]:
    """Return a row that the user typed."""
    plain = {"role": "user", "model": None, "provider_type": "user", "content_text": text, "cwd": "/home/dev/web"}
    return row(number, message_created_at=at, attributes={"client": {}}, **{**plain, **columns})
