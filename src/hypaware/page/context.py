"""What all views of the page share: the index, the templates, and what the viewer may see and do."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import jinja2
from aiohttp import web

from hypaware import __version__
from hypaware.config import CurrentConfig
from hypaware.errors import Retryable
from hypaware.home import Home
from hypaware.index.prices import PriceTable, load_prices
from hypaware.index.store import FindHidden, Index
from hypaware.page import address, numbers
from hypaware.page.index_updater import IndexNotice, IndexUpdater
from hypaware.privacy.withheld_sessions import WithheldSessionFinder
from hypaware.state.machines import MachineNames, read_machines
from hypaware.text import escape

FOLDER = Path(__file__).parent
_READERS = 4
# Each reader may fill its cache: together with the program they have to stay below 150 MB.
_CACHE_KIB = 8 << 10
# How long a request waits for another index if there is none.
_REPLACE_SECONDS = 3.0
_VANISHED = ("index_damaged", "index_unavailable")
_MACHINES_SECONDS = 5.0
VIEWER = web.RequestKey("viewer", str)
"""The name of the person who looks, on the page of a server."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class PageAccess:
    """What the viewers of this page may do."""

    is_team: bool = False
    """Whether the page is served by `hyp server run` for many people: read-only, without this machine's health."""
    may_change: bool = True
    """Whether sessions can be marked private or purged."""


class PageContext:
    def __init__(self, home: Home, access: PageAccess | None = None, *, find_hidden: FindHidden | None = None) -> None:
        """`find_hidden` returns the sessions that no viewer may see."""
        self.home = home
        self.access = access or PageAccess()
        self.on_shutdown: list[Callable[[], None]] = []
        """Called when the server stops: they end answers that would continue."""
        if find_hidden is None and self.access.is_team:
            # Sessions that the server's policy withholds do not exist for a team, whatever a view asks for.
            find_hidden = WithheldSessionFinder(home)
        self._find_hidden = find_hidden
        self._machines = MachineNames()
        self._machines_until = 0.0
        self._updater = IndexUpdater(home)
        self._readers = ThreadPoolExecutor(_READERS, "page")
        self._connections: set[sqlite3.Connection] = set()
        self._connections_lock = threading.Lock()
        self._config = CurrentConfig(home)
        self._prices: tuple[object, PriceTable] | None = None
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_show_controls,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= numbers.FILTERS
        self._templates.globals |= {
            "version": __version__,
            "access": self.access,
            "machine_name": lambda machine: self.machines().name_of(machine),
        }

    def prices(self) -> PriceTable:
        """Return the prices, read again if their file or the config has changed."""
        path = self._config().usage.prices
        version = None
        if path:
            with suppress(OSError):  # load_prices reports the problem
                version = (path, (self.home.root / Path(path).expanduser()).stat().st_mtime_ns)
        if self._prices is None or self._prices[0] != version or (path and version is None):
            self._prices = (version, load_prices(self.home))
        return self._prices[1]

    def machines(self) -> MachineNames:
        """Return the names of the machines, and whose they are."""
        if time.monotonic() >= self._machines_until:
            self._machines = read_machines(self.home)
            self._machines_until = time.monotonic() + _MACHINES_SECONDS
        return self._machines

    async def read(self, function: Callable[Concatenate[Index, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Return `function(index, …)`, called in a worker thread.

        The index holds what was recorded until now, unless adding it takes longer than a viewer should wait; `notice`
        then says so. The index must not be used after the function has returned.
        """

        call = partial(self.read_here, function, *args, **named)
        return await asyncio.get_running_loop().run_in_executor(self._readers, call)

    def read_here(self, function: Callable[Concatenate[Index, P], T], *args: P.args, **named: P.kwargs) -> T:
        """Do the same in the calling thread, which must not be that of the server."""
        try:
            return self._read_once(function, *args, **named)
        except Retryable as error:
            if error.kind not in _VANISHED:
                raise
        # The damaged index is removed. The next one may still be empty, but answers.
        self._updater.update(_REPLACE_SECONDS)
        try:
            return self._read_once(function, *args, **named)
        except Retryable as error:
            if error.kind not in _VANISHED or (notice := self.notice()) is None:
                raise
            raise Retryable(notice.message, kind=error.kind, repair=error.repair) from error

    def _read_once(self, function: Callable[Concatenate[Index, P], T], *args: P.args, **named: P.kwargs) -> T:
        self._updater.update()
        with self._open_index() as index:
            return function(index, *args, **named)

    @contextmanager
    def _open_index(self) -> Iterator[Index]:
        with Index(self.home, find_hidden=self._find_hidden, update=lambda *_: self._updater.update()) as index:
            connection = index.connection
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            with self._connections_lock:
                self._connections.add(connection)
            try:
                yield index
            finally:
                with self._connections_lock:
                    self._connections.discard(connection)

    def notice(self) -> IndexNotice | None:
        """Return what a viewer should know about the index: that it is being built, or cannot be."""
        return self._updater.notice()

    def render(
        self, request: web.Request, template: str, values: Mapping[str, Any] | None = None, *, status: int = 200
    ) -> web.Response:
        """Return a whole page. Its templates know the request's path and filters."""
        text = self.render_text(request, template, values)
        return web.Response(text=text, status=status, content_type="text/html", charset="utf-8")

    def render_text(self, request: web.Request, template: str, values: Mapping[str, Any] | None = None) -> str:
        return self._templates.get_template(template).render(
            path=request.path,
            query=request.query,
            link=address.Linker(request.path, request.query),
            notice=self.notice(),
            viewer=request.get(VIEWER),
            **(values or {}),
        )

    def add_global(self, name: str, value: object) -> None:
        """Make a value or a function known to all templates."""
        self._templates.globals[name] = value

    def close(self) -> None:
        """End the queries that are running. The context cannot be used afterwards."""
        self._updater.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        with self._connections_lock:
            for connection in self._connections:
                with suppress(sqlite3.ProgrammingError):  # `Index.refresh` has replaced it
                    connection.interrupt()


def _show_controls(value: object) -> object:
    """Return what a template prints: control characters and direction marks of a text are shown, and have no effect."""
    return escape(value) if type(value) is str else value
