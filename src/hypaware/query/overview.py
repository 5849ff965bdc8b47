"""The engine job `overview`: sessions, messages, tokens and tools by day, project, client and model.

Arguments: `since` (a day, `YYYY-MM-DD`, or None for everything); `refresh` (as for a query). Result:

    {since, first_day, last_day,
     totals:   {sessions, messages, parts, tool_calls, input_tokens, … reasoning_tokens},
     days:     [{day, …the same}], in order,
     projects: [{cwd, …}], clients: [{client, …}], models: [{model, …}], most messages first,
     tools:    [{tool, calls, errors}], most calls first}

A few statements over the public view read each row once; their groups are added up here. All parts of a message have
the same session, day, folder, model and client, so the message counts add up. Rows that are not part of the
conversation (`provider_type` is gateway) are not counted, but their tokens are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any

from hypaware import telemetry
from hypaware.engine.jobs import JobContext
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.model.schemas import GATEWAY_TYPE

if TYPE_CHECKING:
    from hypaware.query.views import Views

_DATASET = "ai_gateway_messages"
TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
_COUNTS = ("messages", "parts", "tool_calls", *TOKENS)
_KEYS = ("date", "client_name", "session_id", "cwd", "model")
_PARTS = """
SELECT {keys}, tool_name, count(*) AS parts, count_if(part_index = 0) AS first_parts,
       count_if(part_type = 'tool_call') AS tool_calls, count_if(part_type = 'tool_result' AND is_error) AS errors
FROM {dataset} WHERE {window} AND {counted} GROUP BY {keys}, tool_name
"""
_MESSAGES = """
SELECT {keys}, count(DISTINCT message_id) AS messages FROM {dataset} WHERE {window} AND {counted} GROUP BY {keys}
"""
# Most rows carry no token counts, and searching for the key is much cheaper than parsing every row.
_USAGE = """
WITH carriers AS (
    SELECT {keys}, from_json(get_json_object(attributes, '$.usage'), '{counts}') AS usage
    FROM {dataset} WHERE {window} AND contains(attributes, '"usage":')
)
SELECT {keys}, {sums} FROM carriers GROUP BY {keys}
"""
Row = dict[str, Any]
RunStatement = Callable[[str], list[Row]]


def has_no_rows(home: Home) -> bool:
    """Return True if the home has no rows at all, as far as that is known without Spark."""
    from hypaware.lake import health
    from hypaware.state.home_opener import open_home

    if home.catalog.exists():
        return False
    with closing(open_home(home).store) as store:
        return not health.has_committed_rows(store) and not health.has_pending_rows(home)


def run_overview(context: JobContext, args: dict[str, Any]) -> dict[str, Any]:
    from hypaware.query import errors, run, views

    since = args.get("since")
    if since is not None:
        since = date.fromisoformat(since).isoformat()
    with telemetry.span("query.execute_sql", component="query", format="overview") as span:
        spark = context.spark
        run.refresh_view(context, args.get("refresh", "auto"))
        shown = views.get_views(spark)
        with errors.translate_errors(), run.cancel_with(context, spark.sparkContext), shown.active():
            document = build_overview(lambda sql: _run_statement(context, shown, sql), since)
        span.set(row_count=document["totals"]["parts"])
    return document


def build_overview(ask: RunStatement, since: str | None) -> dict[str, Any]:
    """Build the document from the answers of `ask`, which runs one statement."""
    parts = ask(_sql(_PARTS, since))
    rows = [*parts, *ask(_sql(_USAGE, since))]
    if all(row["parts"] == row["first_parts"] for row in parts):
        # Every message has one part, so the parts already give the number of messages.
        for row in parts:
            row["messages"] = row["parts"]
    else:
        rows += ask(_sql(_MESSAGES, since))
    totals = _Counts()
    for row in rows:
        totals.add(row)
    tools: defaultdict[str, Row] = defaultdict(lambda: {"calls": 0, "errors": 0})
    for row in parts:
        if (name := row["tool_name"]) is not None:
            tools[name]["calls"] += row["tool_calls"]
            tools[name]["errors"] += row["errors"]
    days = sorted(_group_by("date", "day", rows), key=lambda row: row["day"])
    return {
        "since": since,
        "first_day": days[0]["day"] if days else None,
        "last_day": days[-1]["day"] if days else None,
        "totals": totals.counts(),
        "days": days,
        "projects": _sort_by("messages", _group_by("cwd", "cwd", rows)),
        "clients": _sort_by("messages", _group_by("client_name", "client", rows)),
        "models": _sort_by("messages", [row for row in _group_by("model", "model", rows) if row["model"] is not None]),
        "tools": _sort_by("calls", [{"tool": name, **counts} for name, counts in tools.items()]),
    }


def empty_overview(since: str | None = None) -> dict[str, Any]:
    """Return the document of a lake without rows."""
    return build_overview(lambda _: [], since)


def _sql(template: str, since: str | None) -> str:
    return template.format(
        dataset=_DATASET,
        keys=", ".join(_KEYS),
        # Filter by the timestamp, not by the column `date`: the table is partitioned by it.
        window="true" if since is None else f"message_created_at >= TIMESTAMP '{since} 00:00:00'",
        counted=f"provider_type IS DISTINCT FROM '{GATEWAY_TYPE}'",
        counts=", ".join(f"{name} BIGINT" for name in TOKENS),
        sums=", ".join(f"try_sum(usage.{name}) AS {name}" for name in TOKENS),
    )


def _run_statement(context: JobContext, shown: Views, sql: str) -> list[Row]:
    """Run one statement with the same checks as a user's query."""
    from hypaware.query import guard, results

    context.check_cancelled()
    known = datasets.list_names()
    statement = guard.parse_statement(shown.session, sql, known)
    shown.show(statement.relations)
    with closing(results.read_result(shown, statement, None, known).batches) as batches:
        return [row for batch in batches for row in batch.to_pylist()]


@dataclass
class _Counts:
    sessions: set[str] = field(default_factory=set)
    numbers: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))

    def add(self, row: Row) -> None:
        self.sessions.add(row["session_id"])
        for name in _COUNTS:
            self.numbers[name] += row.get(name) or 0

    def counts(self) -> dict[str, int]:
        return {"sessions": len(self.sessions), **{name: self.numbers[name] for name in _COUNTS}}


def _group_by(column: str, name: str, rows: Iterable[Row]) -> list[Row]:
    tallies: defaultdict[str | None, _Counts] = defaultdict(_Counts)
    for row in rows:
        tallies[row[column]].add(row)
    return [{name: value, **tally.counts()} for value, tally in tallies.items()]


def _sort_by(count: str, rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (-row[count], *map(str, row.values())))
