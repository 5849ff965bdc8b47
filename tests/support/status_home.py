"""A home in any condition for tests of `hyp status`, without a running daemon, engine or client."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hypaware import __version__
from hypaware.clients import attach
from hypaware.clients.claude import CLIENT
from hypaware.engine import jars
from hypaware.home import Home, daemon_process, locks
from hypaware.state.home_opener import open_home
from hypaware.status.diagnostics import Diagnostic
from hypaware.status.snapshot import StatusSnapshot, collect_snapshot
from tests.support.light_home import append, flush
from tests.support.rows import rows

SETTINGS = CLIENT.settings
assert SETTINGS is not None


@dataclass(frozen=True)
class StatusHome:
    """The user's home folder, the engine's cache and the clients' programs are next to the HypAware home."""

    home: Home
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def user(self) -> Path:
        return self.home.root.parent / "user"

    @property
    def programs(self) -> Path:
        return self.home.root.parent / "programs"

    @property
    def cache(self) -> Path:
        return self.home.root.parent / "cache"

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.user), "PATH": str(self.programs), "HYP_HOME": str(self.home.root)}

    def snapshot(self, now: datetime | None = None) -> StatusSnapshot:
        return collect_snapshot(self.home, self.environment, now or self.now, self.cache)

    def diagnostic(self, kind: str, now: datetime | None = None) -> Diagnostic:
        """Return the only diagnostic of that kind."""
        found = self.snapshot(now).diagnostics
        assert [each.kind for each in found].count(kind) == 1, found
        return next(each for each in found if each.kind == kind)

    def kinds(self, now: datetime | None = None) -> set[str]:
        return {each.kind for each in self.snapshot(now).diagnostics}

    def with_engine(self) -> StatusHome:
        """Fake an installed engine: Java, and jars with the right names and sizes."""
        java = self.home.root.parent / "jdk" / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text("#!/bin/sh\n")
        java.chmod(0o755)
        (java.parent.parent / "release").write_text('JAVA_VERSION="17.0.1"\n')
        self.programs.mkdir(parents=True, exist_ok=True)
        if not (self.programs / "java").exists():
            (self.programs / "java").symlink_to(java)
        where = jars.jar_folder(self.cache, jars.locked_jars())
        where.mkdir(parents=True, exist_ok=True)
        for jar in jars.locked_jars():
            with (where / jar.file_name).open("wb") as file:
                file.truncate(jar.size)
        return self

    def made(self) -> StatusHome:
        """Create an empty state."""
        open_home(self.home).store.close()
        return self

    def with_rows(self, count: int = 20, start: int = 0, **columns: Any) -> StatusHome:
        append(self.home, rows(count, start, **columns))
        flush(self.home)
        return self

    def with_client(self, name: str = "claude") -> StatusHome:
        self.programs.mkdir(exist_ok=True)
        program = self.programs / name
        program.write_text(f"#!/bin/sh\necho '1.2.3 ({name})'\n")
        program.chmod(0o755)
        (self.user / f".{name}").mkdir(parents=True, exist_ok=True)
        return self

    def attached(self, port: int) -> StatusHome:
        self.with_client()
        assert SETTINGS is not None
        attach.attach_client(self.home, SETTINGS, f"http://127.0.0.1:{port}", self.environment)
        return self

    def write_config(self, text: str) -> StatusHome:
        self.home.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home.config.write_text(f"version = 1\n{text}")
        return self

    @contextmanager
    def daemon(self, **parts: object) -> Iterator[None]:
        """Act as the daemon: hold its lock and write this status file."""
        with daemon_process.hold_daemon_lock(self.home):
            reported = {"pid": os.getpid(), "started_at": self.now.isoformat(), "version": __version__, **parts}
            daemon_process.daemon_status_path(self.home).write_text(json.dumps(reported))
            assert locks.is_locked(daemon_process.daemon_lock_path(self.home))
            yield

    @contextmanager
    def change(self) -> Iterator[Any]:
        with closing(open_home(self.home).store) as store, store.transaction() as connection:
            yield connection


def everything_under(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file with its mode and bytes, and every folder with its mode."""
    return {
        str(path.relative_to(root)): (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in sorted(root.rglob("*"))
        if not path.is_socket()
    }


@contextmanager
def answering(body: object) -> Iterator[int]:
    """Serve this response on a local port."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
