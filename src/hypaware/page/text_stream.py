"""Answers that are sent while they are made: a long conversation is readable before its end is rendered.

A worker thread makes the pieces, and the server sends them. The thread is at most `_AHEAD` chunks ahead of the browser;
if the browser takes none for `_PATIENCE_SECONDS`, or is gone, the thread stops and closes the index.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from aiohttp import web

from hypaware.index.store import Index
from hypaware.page.context import PageContext

_WORKERS = 4
_FIRST_CHUNK, _CHUNK = 8 << 10, 64 << 10
_AHEAD = 64
_PATIENCE_SECONDS = 30.0
Pieces = Callable[[Index], Iterator[str]]


class _ViewerGone(Exception):
    pass


class TextStream:
    """Sends answers that are made in worker threads."""

    def __init__(self, context: PageContext) -> None:
        self._context = context
        self._workers = ThreadPoolExecutor(_WORKERS, "page-text")

    async def send(self, request: web.Request, pieces: Pieces, headers: Mapping[str, str]) -> web.StreamResponse:
        """Send what `pieces` yields. An error before the first piece is raised before the answer begins."""
        chunks: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(_AHEAD)
        gone = threading.Event()
        has_begun = False
        loop = asyncio.get_running_loop()

        def put(chunk: bytes | BaseException | None) -> None:
            nonlocal has_begun
            if gone.is_set():
                raise _ViewerGone
            has_begun = True
            asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result(_PATIENCE_SECONDS)

        def read(index: Index) -> None:
            if has_begun:
                raise ConnectionAbortedError("the index was damaged while it was read")
            _put_chunks(pieces(index), put)

        def work() -> None:
            try:
                self._context.read_here(read)
                put(None)
            except (_ViewerGone, TimeoutError):
                gone.set()
            except BaseException as error:
                with suppress(_ViewerGone, TimeoutError):
                    put(error)

        work_done = loop.run_in_executor(self._workers, work)
        try:
            return await self._answer(request, chunks, headers)
        finally:
            gone.set()
            while not work_done.done():
                # A thread that waits for room in the queue continues, and finds that the reader is gone.
                while not chunks.empty():
                    chunks.get_nowait()
                await asyncio.wait([work_done], timeout=0.01)

    @staticmethod
    async def _answer(
        request: web.Request, chunks: asyncio.Queue[bytes | BaseException | None], headers: Mapping[str, str]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        while (chunk := await chunks.get()) is not None:
            if isinstance(chunk, BaseException):
                raise chunk
            if not response.prepared:
                await response.prepare(request)
            try:
                await response.write(chunk)
            except ConnectionError:
                return response  # the browser is gone
        if not response.prepared:
            await response.prepare(request)
        return response


def _put_chunks(pieces: Iterator[str], put: Callable[[bytes], None]) -> None:
    joined: list[str] = []
    size, limit = 0, _FIRST_CHUNK
    for piece in pieces:
        joined.append(piece)
        size += len(piece)
        if size >= limit:
            put("".join(joined).encode("utf-8", "backslashreplace"))
            joined, size, limit = [], 0, _CHUNK
    if joined:
        put("".join(joined).encode("utf-8", "backslashreplace"))
