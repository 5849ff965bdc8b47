"""Output of all commands: results go to stdout, everything else to stderr, with terminal escapes neutralised.

With `--json` a command prints exactly one document. `emit_json` records that it was printed, so that a later error goes
to stderr only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import PurePath
from typing import Any

from hypaware.terminal import harmless, harmless_cell, harmless_json

# Width of a table that is not printed on a terminal: no value is truncated.
_UNBOUNDED = 1_000_000

_emitted = False


def begin() -> None:
    """Reset the record of printed documents. Call it once per command."""
    global _emitted
    _emitted = False


def emitted() -> bool:
    return _emitted


def emit_json(document: Any) -> None:
    global _emitted
    import json

    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2, default=_to_json)
    write_bytes(harmless_json(text).encode() + b"\n")
    _emitted = True


def emit(text: str = "") -> None:
    """Print a line, or a block of lines, of the result."""
    sys.stdout.write(harmless(text) + "\n")


def write_bytes(chunk: bytes) -> None:
    """Print result bytes unchanged. The caller ensures that they are safe for a terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def emit_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as wide as the terminal, or as its values. Numbers are right-aligned, None is a dash."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index, column in enumerate(columns):
        values = [row[index] for row in cells if row[index] is not None]
        numeric = bool(values) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(_cell(value)) for value in row))
    width = None if sys.stdout.isatty() else _UNBOUNDED
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as captured:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def emit_fields(fields: Mapping[str, object]) -> None:
    """Print one line per field: its name and its value."""
    widest = max((len(name) for name in fields), default=0)
    for name, value in fields.items():
        emit(f"{name:<{widest}}  {_cell(value)}")


def note(text: str) -> None:
    """Print a message for the user on stderr."""
    sys.stderr.write(harmless(text) + "\n")
    sys.stderr.flush()


def warn(text: str) -> None:
    note(f"warning: {text}")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime | date):
        return _time(value)
    if isinstance(value, Mapping | list | tuple):
        import json

        return harmless_cell(json.dumps(value, ensure_ascii=False, default=_to_json))
    return harmless_cell(str(value))


def _time(value: datetime | date) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat()


def _to_json(value: object) -> object:
    if isinstance(value, datetime | date):
        return _time(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot write a {type(value).__name__} as JSON")
