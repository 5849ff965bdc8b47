"""Output of all commands: results go to stdout, everything else to stderr, with terminal escapes neutralised.

With `--json` a command prints exactly one document (`emit_document`). An error after it goes to stderr only. Errors are
reported like this:

| error | stderr | with --json, on stdout | exit code |
|---|---|---|---|
| HypError | `error:` and `try:` lines | `error:{kind, message, repair?}` | that of its class |
| wrong usage | `error:`, `usage:`, `try:` | kind `usage` | 2 |
| disk full | `error:` and `try:` lines | kind `disk_full` | 1 |
| a file that cannot be read or written | `error:` with its name | kind `file_unavailable` | 1 |
| Ctrl-C | `cancelled` | kind `cancelled` | 130 |
| anything else | one line, with the path of the traceback | kind `internal` | 1 |

A destructive command is confirmed on a terminal by a question, otherwise by `--yes`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from itertools import islice
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO

from hypaware import __version__
from hypaware.errors import Cancelled, HypError, Retryable, UsageError
from hypaware.home import Home
from hypaware.text import escape, escape_cell, escape_json

if TYPE_CHECKING:
    import click

# Width of a table that is not printed on a terminal: no value is truncated.
_UNBOUNDED = 1_000_000
_GAP = 3
"""Characters between two columns of a table."""
_LOG_LIMIT = 1 << 20
_PART = 1000
"""Lines that are printed together."""
_LIST_TAIL = b"\n  ]\n}"
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Problems of permissions and file systems: not errors of the program.
_FILE_ERRORS = {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}

_document_printed = False
_as_json = False


class PartialFailure(HypError):
    """A part of the work failed; the report covers the rest. With --json one document holds both."""

    def __init__(
        self,
        message: str,
        report: dict[str, Any],
        *,
        kind: str | None = None,
        repair: str | Sequence[str] | None = None,
    ) -> None:
        super().__init__(message, kind=kind, repair=repair)
        self.report = report


def reset(*, as_json: bool = False) -> None:
    """Forget the previous command. Call it once per command."""
    global _document_printed, _as_json
    _document_printed, _as_json = False, as_json


def use_json(context: click.Context, param: click.Parameter, given: bool) -> None:
    """Note whether the command prints a JSON document: the callback of its option `--json`."""
    global _as_json
    _as_json = given


def wants_json() -> bool:
    return _as_json


def emit_document(document: Any) -> bool:
    """With `--json`, print the document of the command. Return whether that is so."""
    if is_json := wants_json():
        emit_json(document)
    return is_json


def emit_json(document: Any) -> None:
    global _document_printed
    write_bytes(escape_json(_format_json(document)) + b"\n")
    _document_printed = True


def emit_parts(name: str, parts: Iterable[bytes]) -> None:
    """Print the document `{name: [items]}`. Each part is some items, encoded as by `encode_items`: a long list is never
    in memory as a whole, which takes time as well. Making the parts must not fail."""
    global _document_printed
    separator = _list_head(name)
    for part in parts:
        _document_printed = True
        write_bytes(separator + escape_json(part))
        separator = b","
    if separator == b",":
        write_bytes(_LIST_TAIL + b"\n")
    else:
        emit_json({name: []})


def encode_items(name: str, items: Sequence[Any]) -> bytes:
    """Return one or more items as they stand in the document `{name: [items]}`."""
    return _format_json({name: items})[len(_list_head(name)) : -len(_LIST_TAIL)]


def _list_head(name: str) -> bytes:
    return f'{{\n  "{name}": ['.encode()


def emit_lines(lines: Iterable[str]) -> None:
    """Print lines of the result; there can be many."""
    rest = iter(lines)
    while some := list(islice(rest, _PART)):
        emit("\n".join(some))


def emit(text: str = "") -> None:
    """Print a line, or a block of lines, of the result."""
    sys.stdout.write(escape(text) + "\n")


def can_print(characters: str, stream: TextIO | None = None) -> bool:
    """Return whether the encoding of stdout, or of another stream, has these characters."""
    try:
        characters.encode((stream or sys.stdout).encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def write_bytes(chunk: bytes) -> None:
    """Print result bytes unchanged. The caller ensures that they are safe for a terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def emit_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table as wide as the terminal, or as its values. Numbers are right-aligned, None is a dash."""
    import shutil

    sys.stdout.write(format_table(columns, rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))


def format_table(columns: Sequence[str], rows: Iterable[Sequence[object]], width: int | None) -> str:
    """Return a table that breaks lines between words only; if there is no room for the words, one block per row."""
    from rich.cells import cell_len

    values = [list(row) for row in rows]
    cells = [[_cell(value) for value in row] for row in values]
    texts = [[column, *(row[at] for row in cells)] for at, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in texts]
    least = [max((cell_len(word) for text in column for word in text.split()), default=1) for column in texts]
    room = _UNBOUNDED if width is None else width - _GAP * (len(columns) - 1)
    if sum(least) > room:
        return "\n".join("".join(_field_lines(dict(zip(columns, row, strict=True)))) for row in values)
    numeric = [_is_numeric([row[at] for row in values]) for at in range(len(columns))]
    if cells and sum(widths) <= room and "\n" not in "".join(map("".join, texts)):
        lines = [_table_line(row, widths, numeric, cell_len) for row in (columns, *cells)]
        rule = "─" * (sum(widths) + _GAP * (len(columns) - 1))
        return "".join(f"{line}\n" for line in (lines[0], rule, *lines[1:]))
    while sum(widths) > room:
        widest = max(range(len(widths)), key=lambda at: widths[at] - least[at])
        widths[widest] -= 1
    return _wrapped_table(columns, cells, widths, numeric)


def _is_numeric(values: Sequence[object]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)


def _table_line(
    row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], cell_len: Callable[[str], int]
) -> str:
    padded = []
    for text, width, is_number in zip(row, widths, numeric, strict=True):
        blank = " " * (width - cell_len(text))
        padded.append(blank + text if is_number else text + blank)
    return (" " * _GAP).join(padded).rstrip()


def _wrapped_table(
    columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int], numeric: Sequence[bool]
) -> str:
    # Imported here: it takes as long as the rest of a short command, and most tables need no line break.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column, width, is_number in zip(columns, widths, numeric, strict=True):
        table.add_column(column, justify="right" if is_number else "left", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(width=_UNBOUNDED, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def emit_fields(fields: Mapping[str, object]) -> None:
    """Print one line per field: its name and its value."""
    sys.stdout.writelines(_field_lines(fields))


def _field_lines(fields: Mapping[str, object]) -> list[str]:
    widest = max((len(name) for name in fields), default=0)
    return [escape(f"{name:<{widest}}  {_cell(value)}".rstrip()) + "\n" for name, value in fields.items()]


def emit_result(document: Mapping[str, object], text: str | None = None) -> None:
    """Print the result: with `--json` the document, otherwise the text or, without one, the fields of the document."""
    if emit_document(document):
        return
    if text is None:
        emit_fields(document)
    else:
        emit(text)


def note(text: str) -> None:
    """Print a message for the user on stderr."""
    sys.stderr.write(escape(text) + "\n")
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
        return escape_cell(json.dumps(value, ensure_ascii=False, default=_to_json))
    return escape_cell(str(value))


def _time(value: datetime | date) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.isoformat()


def _format_json(document: Any) -> bytes:
    """Return the document with an indent of two. The standard encoder takes a second for 20,000 sessions."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
    try:
        return orjson.dumps(document, default=_to_json, option=options)
    except orjson.JSONEncodeError:
        # Numbers beyond 64 bits, and text that is not valid Unicode.
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2, default=_to_json)
        return text.encode("utf-8", "surrogatepass")


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


def confirm(what: str, yes: bool) -> None:
    """Ask the user to confirm. Raise Cancelled if they decline, UsageError if there is no terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{what} No terminal to confirm on; pass --yes to proceed.", kind="not_confirmed")
    import click

    note(what)
    if not click.confirm("Continue?", default=False, err=True):
        raise Cancelled


def show_error(error: BaseException, as_json: bool) -> int:
    """Print the error and return the exit code of the process."""
    click = _imported_click()
    if click and isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        error.show()
        return int(error.exit_code)
    failure = _to_hyp_error(error)
    if as_json and not _document_printed:
        report = failure.report if isinstance(failure, PartialFailure) else {}
        emit_json({**report, "error": failure.as_json()})
    else:
        if isinstance(failure, Cancelled):
            note(failure.message if failure.message.startswith("cancelled") else "cancelled")
        else:
            note(f"error: {failure.message}")
        if click and isinstance(error, click.UsageError) and error.ctx:
            note(" ".join(error.ctx.get_usage().split()).replace("Usage:", "usage:", 1))
        for command in failure.repair:
            note(f"try: {command}")
    return failure.exit_code


def _to_hyp_error(error: BaseException) -> HypError:
    if isinstance(error, HypError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Cancelled()
    if (failure := _from_click(error)) is not None:
        return failure
    if isinstance(error, OSError) and error.errno in _DISK_FULL:
        where = f": cannot write {error.filename}" if error.filename else ""
        return Retryable(f"the disk is full{where}", kind="disk_full", repair="hyp status")
    if isinstance(error, OSError) and error.errno in _FILE_ERRORS:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        return HypError(what, kind="file_unavailable", repair="hyp doctor")
    import traceback

    traceback_text = "".join(traceback.format_exception(error))
    what = f"{type(error).__name__}: {error}".strip(": ")
    summary = f"unexpected {what.splitlines()[0][:300]}"
    if os.environ.get("HYP_DEBUG") == "1":
        sys.stderr.write(traceback_text)
        return HypError(summary, kind="internal")
    log = _log_traceback(traceback_text)
    details = f"details in {log}" if log else "set HYP_DEBUG=1 to see the details"
    return HypError(f"{summary} ({details})", kind="internal")


def _imported_click() -> ModuleType | None:
    """Return click if it is imported; otherwise no error can be one of its own."""
    return sys.modules.get("click")


def _from_click(error: BaseException) -> HypError | None:
    click = _imported_click()
    if click is None:
        return None
    if isinstance(error, click.Abort):
        return Cancelled()
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return UsageError("Missing subcommand.", repair=f"{error.ctx.command_path} --help")
    if isinstance(error, click.UsageError):
        return UsageError(
            error.format_message(), repair=f"{error.ctx.command_path} --help" if error.ctx else "hyp --help"
        )
    return UsageError(error.format_message()) if isinstance(error, click.ClickException) else None


def _log_traceback(detail: str) -> Path | None:
    """Append the traceback to the log of an existing home and return the path; never create a home."""
    home = Home.from_environment()
    if not home.root.is_dir():
        return None
    path = home.logs / "cli.log"
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if path.exists() and path.stat().st_size > _LOG_LIMIT:
            path.replace(path.with_name("cli.log.1"))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{stamp} pid={os.getpid()} hypaware={__version__}\n{detail}\n")
        return path
    return None
