"""Purge a session from the page: a preview, a confirmation, the purge, its progress and its result.

The page runs `hyp purge --session`, first with `--dry-run`, then with `--yes`, as a process of its own. So both do the
same as the command, this process loads neither Spark nor Arrow, and a purge continues if the page's process ends. Its
progress is not kept in memory. In `run/page/purges` (mode 0700), named by the hash of the session's id:

    <hash>.preview.lock, <hash>.purge.lock   held (flock) by the process while it runs
    <hash>.preview.json, <hash>.purge.json   what it prints: the report, or the error
    <hash>.preview.log,  <hash>.purge.log    its progress and notes

A purge needs a preview, and removes it: of several requests that confirm the same preview, only one starts a purge. If
the process is killed, its output is incomplete, and the page says how to finish the purge. Files older than a day are
removed, because they name the session.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from aiohttp import hdrs, web

from hypaware.engine.background import run_in_thread
from hypaware.errors import UsageError
from hypaware.home import Home, durable_files, locks
from hypaware.page.address import session_path
from hypaware.page.context import PageContext
from hypaware.page.health import clean
from hypaware.page.privacy import require_change
from hypaware.page.resources import start_process
from hypaware.privacy.ignored_sessions import check_session_id
from hypaware.text import format_count

CONFIRMED = 8
"""How many characters of the id are typed to confirm."""
_PREVIEW_SECONDS = 300.0
"""After this time the rows are counted again."""
_KEEP_SECONDS = 86_400.0
_LOG_BYTES = 4_096
# A process that only checks whether the lock is held holds it for a moment itself.
_LOCK_ATTEMPTS, _LOCK_PAUSE = 50, 0.01
Document = dict[str, Any]


@dataclass(frozen=True)
class RunState:
    """The progress of a preview or a purge."""

    name: str
    """none, running, done, failed (there is an error) or interrupted (there is no result)."""
    report: Document = field(default_factory=dict)
    progress: str = ""
    """The last line that it printed."""
    stamp: str = ""
    """Identifies this result."""
    age: float = 0.0


class PurgeRun:
    """A preview or a purge of one session."""

    def __init__(self, home: Home, session_id: str, *, is_preview: bool) -> None:
        self._home = home
        self._session_id = session_id
        self._is_preview = is_preview
        name = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self._base = _folder(home) / f"{name}.{'preview' if is_preview else 'purge'}"

    def read_state(self) -> RunState:
        """Return its progress. The lock is checked first: a process that has ended has written everything."""
        is_running = locks.is_locked(self._file("lock"))
        progress = self._last_line()
        try:
            status = self._file("json").stat()
            content = self._file("json").read_bytes()
        except FileNotFoundError:
            return RunState("running" if is_running else "none", progress=progress)
        if is_running:
            return RunState("running", progress=progress)
        stamp, age = f"{status.st_ino}.{status.st_mtime_ns}", time.time() - status.st_mtime
        if age > _KEEP_SECONDS:
            return RunState("none")
        try:
            report = self._check(json.loads(content))
        except (ValueError, LookupError, TypeError):
            return RunState("interrupted", progress=progress, stamp=stamp, age=age)
        return RunState("failed" if "error" in report else "done", clean(report), progress, stamp, age)

    def _check(self, report: Document) -> Document:
        """Return the report. It must be about this session: the command accepts the beginning of an id, too."""
        if "error" in report or report["selector"]["values"] == [self._session_id]:
            return report
        (other,) = report["selector"]["values"]
        return {"error": {"kind": "usage", "message": f"no session has this id, but that of {other} begins like it"}}

    def start(self, after: tuple[PurgeRun, str] | None = None) -> bool:
        """Start it. Return False if it is running.

        `after` is the preview that a purge needs, with the stamp of its result: the preview is used up. Return False if
        it is not there any more.
        """
        durable_files.make_dir(self._base.parent)
        _remove_old(self._base.parent)
        lock = self._take_lock()
        if lock is None:
            return False
        try:
            if after is not None and not after[0]._use_up(after[1]):
                return False
            self._spawn(lock)
        finally:
            os.close(lock)
        return True

    def _take_lock(self) -> int | None:
        for _ in range(_LOCK_ATTEMPTS):
            if (lock := locks.try_lock(self._file("lock"), with_pid=False)) is not None:
                return lock
            time.sleep(_LOCK_PAUSE)
        return None

    def _use_up(self, stamp: str) -> bool:
        """Remove the result with this stamp, which only one caller can do."""
        state = self.read_state()
        if state.name != "done" or state.stamp != stamp:
            return False
        with suppress(FileNotFoundError):
            self._file("json").unlink()
            return True
        return False

    def _spawn(self, lock: int) -> None:
        mode = "--dry-run" if self._is_preview else "--yes"
        # `--session=ID`: an id may begin with a dash.
        command = ["purge", f"--session={self._session_id}", mode, "--json"]
        # The new files replace the old ones, so that an old result is not taken for a new one.
        for each in ("json", "log"):
            self._file(each).unlink(missing_ok=True)
        out, log = (
            os.open(self._file(each), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            for each in ("json", "log")
        )
        try:
            process = start_process(
                [sys.executable, "-P", "-m", "hypaware.cli", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                cwd="/",
                env={**os.environ, "HYP_HOME": str(self._home.root)},
                pass_fds=(lock,),
                start_new_session=True,
            )
        finally:
            os.close(out)
            os.close(log)
        threading.Thread(target=process.wait, name="page: purge", daemon=True).start()

    def _last_line(self) -> str:
        with suppress(FileNotFoundError), self._file("log").open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _LOG_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
            return str(clean(lines[-1])) if lines else ""
        return ""

    def _file(self, suffix: str) -> Path:
        return self._base.with_name(f"{self._base.name}.{suffix}")


def _folder(home: Home) -> Path:
    return home.run / "page" / "purges"


def _remove_old(folder: Path) -> None:
    """Remove old files. A process that takes a lock checks whether its file still exists."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _KEEP_SECONDS and not locks.is_locked(path):
                path.unlink()


def look(home: Home, session_id: str, *, again: bool = False) -> Document:
    """Return the values of the template: the purge if there is one, otherwise the preview, which is started."""
    purge, preview = (PurgeRun(home, session_id, is_preview=each) for each in (False, True))
    purged, previewed = purge.read_state(), preview.read_state()
    if purged.name == "none" or (again and purged.name != "running"):
        is_old = previewed.name in ("none", "interrupted") or previewed.age > _PREVIEW_SECONDS
        if (again or is_old) and previewed.name != "running":
            preview.start()
            previewed = preview.read_state()
        purged = RunState("none")
    # A preview that is newer than the last purge starts another purge.
    elif purged.name != "running" and previewed.name != "none" and previewed.age < purged.age:
        purged = RunState("none")
    return {
        "session_id": session_id,
        "purge": purged,
        "preview": previewed,
        "is_running": "running" in (purged.name, previewed.name if purged.name == "none" else ""),
        "typed": session_id[:CONFIRMED],
        "command": shlex.join(["hyp", "purge", "--session", session_id]),
        "path_of": session_path,
        "counted": format_count,
    }


def routes(context: PageContext) -> list[web.RouteDef]:
    if context.access.is_team:
        return []
    with suppress(OSError):
        _remove_old(_folder(context.home))

    async def read_view(request: web.Request) -> Document:
        if not context.access.may_change:
            raise web.HTTPForbidden(reason="this page is read-only")
        session_id, again = request.query.get("id", ""), request.query.get("again") == "1"
        check_session_id(session_id)
        return await run_in_thread(lambda: look(context.home, session_id, again=again), "page: purge")

    async def view(request: web.Request) -> web.Response:
        values = await read_view(request)
        if request.query.get("again") == "1":
            # So that loading the page again does not count again.
            return web.Response(status=303, headers={hdrs.LOCATION: _address(values["session_id"])})
        return context.render(request, "purge.html", values)

    async def body(request: web.Request) -> web.Response:
        return context.render(request, "purge_body.html", await read_view(request))

    async def confirm(request: web.Request) -> web.Response:
        require_change(context, request)
        form = await request.post()
        session_id = str(form.get("id", ""))
        check_session_id(session_id)
        if str(form.get("confirm", "")).strip() != session_id[:CONFIRMED]:
            raise UsageError(
                f"type the first {CONFIRMED} characters of the session's id to confirm; nothing was deleted"
            )
        preview = PurgeRun(context.home, session_id, is_preview=True), str(form.get("preview", ""))
        purge = PurgeRun(context.home, session_id, is_preview=False)
        await run_in_thread(lambda: purge.start(after=preview), "page: purge")
        return web.Response(status=303, headers={hdrs.LOCATION: _address(session_id)})

    return [web.get("/purge", view), web.get("/purge/body", body), web.post("/purge", confirm)]


def _address(session_id: str) -> str:
    return f"/purge?{urlencode({'id': session_id})}"
