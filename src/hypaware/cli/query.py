"""`hyp query`: run SQL over the lake, show an overview and the columns."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hypaware.cli import output
from hypaware.cli.command import Command, Group, json_option
from hypaware.cli.jobs import run_job
from hypaware.cli.overview import show_overview
from hypaware.cli.reader_commands import days_option, reading_options, rows_option
from hypaware.errors import UsageError
from hypaware.home import Home
from hypaware.query.formats import FORMATS, TEXT_TABLES, format_of_file, open_output

if TYPE_CHECKING:
    from hypaware.index.filters import Filters

_MAX_TERMINAL_ROWS = 1000
_MAX_MEMORY_BYTES = 8 << 20
_COMMENT_STARTS = tuple(f"--{space}" for space in " \t\r\n")


@click.group(
    "query",
    cls=Group,
    examples=[
        'hyp query sql "SELECT count(DISTINCT session_id) FROM ai_gateway_messages"',
        "hyp query overview",
        "hyp query schema",
    ],
)
def query() -> None:
    """Run SQL over the lake, show an overview, or list the columns."""


_refresh_option = click.option(
    "--refresh",
    type=click.Choice(["never", "auto", "always"]),
    default="auto",
    show_default=True,
    help="Commit spooled rows first; auto does so if the last commit is older than flush.interval.",
)


class _SqlCommand(Command):
    """Treats an argument that starts with an SQL comment as SQL, not as an option.

    Example: `hyp query sql "$(cat question.sql)"`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f" {word}" if word.startswith(_COMMENT_STARTS) else word for word in args])


@query.command(
    "sql",
    cls=_SqlCommand,
    examples=[
        'hyp query sql "SELECT model, count(DISTINCT session_id) FROM ai_gateway_messages GROUP BY model"',
        'hyp query sql "SELECT * FROM ai_gateway_messages" --output rows.csv',
        "hyp query sql - --format jsonl < question.sql",
    ],
)
@click.argument("statement", metavar="SQL")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    help="Write the result in this format.  [default: the one that the name of --output implies, else table]",
)
@click.option(
    "--output",
    "target",
    type=click.Path(path_type=Path),
    help="Write the result to this file, replacing it only on success.",
)
@_refresh_option
@click.option(
    "--max-rows",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Stop after this many rows; 0 means no limit.  [default: {_MAX_TERMINAL_ROWS} on a terminal, else 0]",
)
@json_option
def sql(statement: str, format_: str | None, target: Path | None, refresh: str, max_rows: int | None) -> None:
    """Run one read-only SELECT over the datasets.

    Pass "-" to read the SQL from standard input. `hyp query schema` lists the datasets and their columns.
    """
    from hypaware.state.home_opener import read_identity

    if output.wants_json() and format_ not in (None, "json"):
        raise UsageError(f"--json means --format json and cannot be combined with --format {format_}")
    read_identity(Home.from_environment(), make=False)
    implied = "table" if target is None else format_of_file(target)
    chosen = "json" if output.wants_json() else format_ or implied
    on_terminal = (target is None or str(target) == "-") and sys.stdout.isatty()
    if on_terminal and chosen == "arrow":
        raise UsageError("--format arrow is binary: redirect it to a pipe or a file (--output)")
    if statement == "-":
        try:
            statement = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UsageError("the SQL on standard input is not valid UTF-8") from None
    args: dict[str, Any] = {"sql": statement, "format": chosen, "refresh": refresh}
    if on_terminal:
        if max_rows is None and chosen in TEXT_TABLES:
            max_rows = _MAX_TERMINAL_ROWS
        args["width"] = shutil.get_terminal_size().columns
        args["color"] = "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    args["max_rows"] = max_rows or None
    if target is not None and str(target) != "-":
        with open_output(target) as write:
            report = run_job("query", args, on_chunk=write)
        if not output.emit_document({"output": str(target), **report}):
            output.note(f"{report['rows']} rows written to {target}")
    elif output.wants_json():
        _print_document(args)
    else:
        run_job("query", args)


@query.command("overview", examples=["hyp query overview", "hyp query overview --days 7", "hyp query overview --json"])
@days_option
@_refresh_option
@reading_options
@rows_option
@json_option
def overview(days: int | None, refresh: str, filters: Filters, limit: int | None) -> None:
    """Show sessions, messages, tokens, cost and tools: the same as `hyp overview`.

    Rows in the spool are always included. With "--refresh always" they are committed first.
    """
    from hypaware.lake import health
    from hypaware.state.home_opener import read_identity

    home = Home.from_environment()
    read_identity(home, make=False)
    if refresh == "always" and health.has_pending_rows(home):
        run_job("flush", {"dataset": None})
    show_overview(filters, days, limit)


@query.command("schema", examples=["hyp query schema", "hyp query schema ai_gateway_messages --json"])
@click.argument("dataset", required=False)
@json_option
def schema(dataset: str | None) -> None:
    """Show the columns of DATASET, or of all datasets, with their meaning."""
    found = describe_datasets(dataset)
    if output.emit_document(found):
        return
    for each in found["datasets"]:
        output.emit(f"{each['name']}: {each['about']}\n")
        columns = [(column["name"], column["type"], column["nullable"], column["about"]) for column in each["columns"]]
        output.emit_table(["column", "type", "nullable", "meaning"], columns)


def describe_datasets(dataset: str | None = None) -> dict[str, Any]:
    """Return `{datasets: [{name, about, columns: [{name, type, nullable, about}]}]}` for one or all datasets.

    As in a query, the name is case-insensitive and may include the namespace.
    """
    from hypaware.iceberg.metadata import NAMESPACE
    from hypaware.model import datasets

    found = datasets.list_all() if dataset is None else (datasets.get(dataset.lower().removeprefix(f"{NAMESPACE}.")),)
    documents = []
    for each in found:
        columns = [
            {"name": column.name, "type": str(column.type), "nullable": not column.required, "about": column.about}
            for column in each.columns
        ]
        documents.append({"name": each.name, "about": each.about, "columns": columns})
    return {"datasets": documents}


def _print_document(args: dict[str, Any]) -> None:
    """Buffer the result until the query is done: with --json, stdout must hold either the result or the error."""
    from tempfile import SpooledTemporaryFile

    with SpooledTemporaryFile(_MAX_MEMORY_BYTES) as document:

        def buffer(chunk: bytes) -> None:
            document.write(chunk)

        run_job("query", args, on_chunk=buffer)
        document.seek(0)
        shutil.copyfileobj(document, sys.stdout.buffer)
    sys.stdout.buffer.flush()
