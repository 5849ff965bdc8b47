"""The Python API: `hypaware.open_lake(home)` returns a `Lake`, which sends its jobs to the home's engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypaware import config
from hypaware.engine import client
from hypaware.errors import Cancelled, UsageError
from hypaware.home import Home
from hypaware.model import datasets
from hypaware.state.home_opener import read_identity

if TYPE_CHECKING:
    import pyarrow as pa


class Lake:
    """What is recorded in a home, to read.

    `query`, `read_rows` and `read_rows_since` start the home's engine if it does not run. `sessions`, `show`, `usage`
    and `search` answer from the index, without Spark, and return what the commands print with `--json`.
    """

    def __init__(self, home: Home) -> None:
        self.home = home

    def datasets(self) -> tuple[str, ...]:
        return datasets.list_names()

    def query(self, sql: str, refresh: str = "auto") -> pa.Table:
        """Run one read-only SELECT over the public columns of the datasets and return the result as an Arrow table.

        `.to_pandas()` makes it a DataFrame, `polars.from_arrow(table)` one of polars, and DuckDB reads it by the name
        of its variable. `refresh` says whether rows in the spool are committed first: auto, always or never.
        """
        import pyarrow as pa

        _, body = self._run("query", {"sql": sql, "format": "arrow", "max_rows": None, "refresh": refresh})
        return pa.ipc.open_stream(body).read_all()

    def sessions(
        self,
        *,
        errors: bool = False,
        grep: str | None = None,
        sort: str = "time",
        limit: int | None = None,
        **filters: Any,
    ) -> dict[str, Any]:
        """Return `{sessions: [{session_id, client, project, title, turns, tokens, cost_usd, …}]}`, newest first.

        `filters` are project, client, model, since, until, machine and timezone, as in `hyp sessions`. `sort` is time,
        cost, tokens or length; `grep` keeps the sessions with a part that contains the words.
        """
        from hypaware.index.filters import make_filters
        from hypaware.index.prices import load_prices
        from hypaware.index.search import find_sessions
        from hypaware.index.session_order import SORTS
        from hypaware.index.sessions import list_sessions
        from hypaware.index.store import open_index

        if sort not in SORTS:
            raise UsageError(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
        chosen = make_filters(**filters)
        with open_index(self.home) as index:
            among = None if grep is None else find_sessions(index, grep)
            prices = load_prices(self.home)
            return {
                "sessions": list_sessions(index, chosen, prices, errors=errors, among=among, sort=sort, limit=limit)
            }

    def show(self, session: str) -> dict[str, Any]:
        """Return `{session: {…}, threads: […], messages: [{message_id, at, role, parts: […], tokens, …}, …]}`.

        `session` is the id of the session, or its beginning. Raise HypError if there is none, or more than one.
        """
        from hypaware.index.conversation import read_conversation
        from hypaware.index.sessions import find_session
        from hypaware.index.store import open_index

        with open_index(self.home) as index:
            return read_conversation(index, find_session(index, session)).as_document()

    def usage(self, *, by: str = "day", limit: int | None = None, **filters: Any) -> dict[str, Any]:
        """Return `{by, timezone, prices_as_of, rows: [{key, sessions, tokens, cost_usd, …}], total: {…}}`.

        `by` is day, week, month, project, model, client, session or machine; `filters` are as for `sessions`.
        """
        from hypaware.index.filters import make_filters
        from hypaware.index.prices import load_prices
        from hypaware.index.store import open_index
        from hypaware.index.usage import GROUPINGS, summarize_usage

        if by not in GROUPINGS:
            raise UsageError(f"by must be one of {', '.join(GROUPINGS)}, not {by!r}")
        chosen = make_filters(**filters)
        with open_index(self.home) as index:
            return summarize_usage(index, chosen, load_prices(self.home), by=by, limit=limit)

    def search(
        self,
        words: str,
        *,
        role: str | None = None,
        tool: str | None = None,
        part_type: str | None = None,
        limit: int | None = 20,
        offset: int = 0,
        **filters: Any,
    ) -> dict[str, Any]:
        """Return the parts whose text contains all words: `{total, hits: [{part_id, session_id, snippet, …}], …}`.

        `filters` are project, client, model, since, until, machine and timezone, as in `hyp search`. In a snippet, the
        words are marked by `⟦` and `⟧`. Without a limit, all hits are returned. Raise UsageError if the words cannot
        be parsed.
        """
        from hypaware.index.filters import make_filters
        from hypaware.index.search import search
        from hypaware.index.store import open_index

        chosen = make_filters(**filters)
        with open_index(self.home) as index:
            return search(index, words, chosen, role=role, tool=tool, part_type=part_type, limit=limit, offset=offset)

    def read_rows(self, dataset: str) -> Iterator[dict[str, Any]]:
        """Yield every committed row in sequence order. Rows without a sequence come first."""
        for row, _ in self._pages(dataset, None, 0, None, include_legacy=True):
            yield row

    def read_rows_since(
        self, dataset: str, source: str | None, since: int, until: int | None = None, include_legacy: bool = False
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the rows with since < sequence <= until, in order, each with the `since` that continues after it.

        `since` is 0 for all rows, or the number that came with the last row that you have. With `include_legacy`, rows
        without a sequence come first: they exist only in tables that `hyp import-cache` took over, until they are
        numbered. They carry the given `since` unchanged. Raise UsageError if a number is not an integer from 0.
        """
        _check_sequence("since", since)
        if until is not None:
            _check_sequence("until", until)
        pages = self._pages(dataset, source, since, until, include_legacy)
        return ((row, since if seq is None else seq) for row, seq in pages)

    def _pages(
        self, dataset: str, source: str | None, since: int, until: int | None, include_legacy: bool
    ) -> Iterator[tuple[dict[str, Any], int | None]]:
        from concurrent.futures import ThreadPoolExecutor

        from hypaware.lake.read import decode_page

        datasets.get(dataset)

        def read(after: int, include_legacy: bool = False) -> tuple[dict[str, Any], bytes]:
            request = {"dataset": dataset, "source": source, "since": after, "until": until}
            return self._run("read", {**request, "include_legacy": include_legacy})

        result, body = read(since, include_legacy)
        # The engine reads the next page while this one is decoded.
        with ThreadPoolExecutor(1, "hyp-read-ahead") as ahead:
            while (after := result["next"]) is not None:
                following = ahead.submit(read, after)
                yield from decode_page(body)
                try:
                    result, body = following.result()
                except KeyboardInterrupt:
                    raise Cancelled("read was cancelled") from None
        yield from decode_page(body)

    def _run(self, job: str, args: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        chunks: list[bytes] = []

        def collect(event: object) -> None:
            if isinstance(event, bytes):
                chunks.append(event)

        engine = client.choose_engine(self.home, config.load(self.home))
        result = client.run_job(engine, job, args, collect)
        return result, b"".join(chunks)


def _check_sequence(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UsageError(f"{name} must be an integer from 0, such as the number that came with a row, not {value!r}")


def open_lake(home: str | os.PathLike[str] | Home | None = None) -> Lake:
    """Return the lake of a home. The default is `HYP_HOME`, or `~/.hyp` if that is not set.

    Raise NotReady if there is no home: reading never creates one.
    """
    if home is None:
        opened = Home.from_environment()
    else:
        opened = home if isinstance(home, Home) else Home(Path(home).expanduser().absolute())
    read_identity(opened, make=False)
    return Lake(opened)
