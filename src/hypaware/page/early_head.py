"""Views whose content takes a while: their head is sent first, so that the browser draws it and loads its files.

If the content is there within a moment, the whole page is one answer. Otherwise the page is sent up to the place of its
content, then the content when it is known. The template has a place for it:

    {% if content is defined %}{{ content }}{% else %}{% include "x_body.html" %}{% endif %}

An answer that has begun keeps its status, so a problem that is found later is shown in place of the content.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from hypaware.errors import HypError
from hypaware.page.context import PageContext

log = logging.getLogger("hypaware.page")

_MOMENT = 0.04
"""Seconds in which the content of a small home is there. One answer is then drawn sooner than two parts."""
_HTML = {"Content-Type": "text/html; charset=utf-8"}
Values = Mapping[str, Any]


async def send_early(
    context: PageContext,
    request: web.Request,
    template: str,
    known: Values,
    content: asyncio.Task[dict[str, Any]],
    moment: float = _MOMENT,
) -> web.StreamResponse:
    """Send a page. `known` are the values that its head needs, `content` reads the others.

    The body of `x.html` is `x_body.html`. An error of `content` is raised if the answer has not begun. The caller has
    to `discard` it.
    """
    await asyncio.wait([content], timeout=moment)
    if content.done():
        return context.render(request, template, {**known, **content.result()})
    mark = secrets.token_hex(16)
    before, _, after = context.render_text(request, template, {**known, "content": mark}).partition(mark)
    response = web.StreamResponse(headers=_HTML)
    await response.prepare(request)
    await response.write(before.encode())
    body = await _render_body(context, request, template, known, content)
    await response.write((body + after).encode())
    return response


def discard(content: asyncio.Task[Any]) -> None:
    """Give up what is read for a page: the browser is gone, or the page cannot be shown. An error of it is ignored."""
    content.add_done_callback(lambda done: done.cancelled() or done.exception())
    content.cancel()


async def _render_body(
    context: PageContext, request: web.Request, template: str, known: Values, content: asyncio.Task[dict[str, Any]]
) -> str:
    body = f"{template.removesuffix('.html')}_body.html"
    try:
        return context.render_text(request, body, {**known, **await content})
    except HypError as error:
        values = {"status": 503, "message": error.message, "repair": error.repair}
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        values = {"status": 500, "message": "the page failed; its log says why", "repair": ()}
    return context.render_text(request, "error_body.html", values)
