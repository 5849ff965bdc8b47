"""Sessions as rows of a list: what their cells show.

Every text of a session is hostile: control characters and changes of direction are written as escapes, and long texts
are cut. The templates escape markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

from hypaware.index.sessions import sum_tokens
from hypaware.page.address import session_path
from hypaware.page.numbers import format_amount, format_document_cost, format_lapse, format_local
from hypaware.text import escape_cell, parse_time

RUNNING = timedelta(minutes=5)
"""A session is running if it recorded something in this time."""
_MAX_TITLE = 200
_MAX_NAME = 80
_DATE_SUFFIX = re.compile(r"-20\d{6}$")
NO_TITLE = "(no prompt)"


@dataclass(frozen=True)
class SessionRow:
    number: int
    encoded_id: str
    """The session's id, encoded as in an address."""
    path: str
    title: str
    project: str
    cwd: str
    branch: str
    client: str
    model: str
    models: str
    machine: str
    turns: int
    tools: int
    errors: int
    tokens: str
    cost: str
    lasted: str
    ended_at: str
    when: str
    is_running: bool
    """Whether something was recorded just now."""


def make_row(number: int, session: Mapping[str, Any], zone: ZoneInfo, now: datetime) -> SessionRow:
    """Return the row of a session in the shape of `list_sessions`."""
    started, ended = (parse_time(session[name]) for name in ("started_at", "ended_at"))
    return SessionRow(
        number=number,
        encoded_id=quote(session["session_id"], safe=""),
        path=session_path(session["session_id"]),
        title=cut_text(session["title"], _MAX_TITLE) or NO_TITLE,
        project=cut_text(session["project"]),
        cwd=cut_text(session["cwd"], _MAX_TITLE),
        branch=cut_text(session["branch"]),
        client=cut_text(session["client"]),
        model=_format_models(session["models"]),
        models=cut_text(", ".join(session["models"][:10]), _MAX_TITLE),
        machine=session["machine"],
        turns=session["turns"],
        tools=session["tool_calls"],
        errors=session["errors"],
        tokens=format_amount(sum_tokens(session["tokens"])),
        cost=format_document_cost(session),
        lasted=format_lapse(None if started is None or ended is None else (ended - started).total_seconds()),
        ended_at=session["ended_at"] or "",
        when=format_local(session["ended_at"], zone),
        is_running=ended is not None and abs(now - ended) <= RUNNING,
    )


def cut_text(text: str | None, most: int = _MAX_NAME) -> str:
    """Return text for one line of a list: at most so many characters, none of which affects the text around it."""
    if not text:
        return ""
    return escape_cell(text if len(text) <= most else f"{text[: most - 1]}…")


def _format_models(models: Sequence[str]) -> str:
    if not models:
        return ""
    name = cut_text(_DATE_SUFFIX.sub("", models[0].removeprefix("claude-")))
    return f"{name} +{len(models) - 1}" if len(models) > 1 else name
