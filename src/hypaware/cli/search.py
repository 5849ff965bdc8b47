"""`hyp search`: find parts of recorded sessions by their words."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from hypaware.cli import output
from hypaware.cli.index_reader import note_no_match, open_for_reading
from hypaware.text import escape_cell, format_count

if TYPE_CHECKING:
    from hypaware.index.filters import Filters
    from hypaware.index.store import Index

_INDENT = "    "
_BOLD, _DIM, _MARK, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[1;33m", "\x1b[0m"


def show_matches(
    filters: Filters, words: tuple[str, ...], role: str | None, tool: str | None, part_type: str | None, limit: int
) -> None:
    from hypaware.index.search import search as run_search

    with open_for_reading() as index:
        found = run_search(
            index, " ".join(words), filters, role=role, tool=tool, part_type=part_type, limit=limit or None
        )
        for word in found["ignored"]:
            output.note(f"{escape_cell(word)} was ignored: it has no letter and no digit")
        if not output.emit_document(found):
            _print_hits(index, found, filters)
        if not found["total"]:
            _explain_nothing(
                index, filters, {"role": role, "tool": tool, "type": part_type}, is_complete=found["is_complete"]
            )


def _print_hits(index: Index, found: dict[str, Any], filters: Filters) -> None:
    from hypaware.cli.columns import terminal_width
    from hypaware.index.sessions import shorten_ids

    hits = found["hits"]
    in_color = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    width = terminal_width()
    shown_ids = shorten_ids(index, [hit["session_id"] for hit in hits])
    for at, hit in enumerate(hits):
        if at:
            sys.stdout.write("\n")
        shown_id = escape_cell(shown_ids[hit["session_id"]])
        facts = [_local_time(hit["at"], filters), hit["project"], hit["client"], hit["role"], _kind(hit)]
        line = "  ".join(escape_cell(fact) for fact in facts if fact)
        sys.stdout.write(f"{_BOLD}{shown_id}{_PLAIN}  {_DIM}{line}{_PLAIN}\n" if in_color else f"{shown_id}  {line}\n")
        for text in _wrap(hit["snippet"], width, in_color):
            sys.stdout.write(f"{_INDENT}{text}\n")
    if hits:
        sys.stdout.flush()
        total = f"{'' if found['total_is_exact'] else 'at least '}{format_count(found['total'], 'match', 'matches')}"
        order = "best first" if found["order"] == "relevance" else "newest first"
        rest = f"; {len(hits):,} shown (use --limit to see more)" if found["total"] > len(hits) else ""
        if not found["is_complete"]:
            rest += "; it takes longer to find all of them: --limit 0"
        output.note(f"\n{total}, {order}{rest}. Read a session: hyp show {shown_ids[hits[0]['session_id']]}")


def _kind(hit: dict[str, Any]) -> str:
    return f"{hit['part_type']} {hit['tool_name']}" if hit["tool_name"] else str(hit["part_type"])


def _local_time(text: str, filters: Filters) -> str:
    from datetime import datetime

    return f"{datetime.fromisoformat(text).astimezone(filters.timezone):%Y-%m-%d %H:%M}"


def _wrap(snippet: str, width: int | None, in_color: bool) -> list[str]:
    """Break a snippet into lines of the terminal, with its matches in colour."""
    from hypaware.index.snippets import split_marks

    pieces = [(escape_cell(piece), is_marked) for piece, is_marked in split_marks(snippet)]
    if width is None:
        return ["".join(piece for piece, _ in pieces)]
    from rich.console import Console
    from rich.text import Text

    text = Text()
    for piece, is_marked in pieces:
        text.append(piece, "bold yellow" if is_marked and in_color else None)
    room = max(20, width - len(_INDENT))
    console = Console(width=room, highlight=False, color_system="standard" if in_color else None, force_terminal=True)
    with console.capture() as captured:
        console.print(text)
    return captured.get().rstrip("\n").split("\n")


def _explain_nothing(index: Index, filters: Filters, names: dict[str, str | None], *, is_complete: bool) -> None:
    from hypaware.index.search import explain_unknown_name

    for kind, name in names.items():
        if name is not None and (reason := explain_unknown_name(index, kind, name)):
            output.note(reason)
            return
    if not is_complete:
        output.note("nothing was found in time; to search to the end: --limit 0")
        return
    note_no_match(index, filters)
    if not output.wants_json():
        so_far = "" if index.progress is None else " so far"
        output.note(f"nothing matches{so_far}. Words match as a whole; for their beginning write word*")
