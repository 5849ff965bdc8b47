"""The daemon's status file, `run/daemon.json`:

    {pid, started_at, version, stopping_since?,
     gateway: {listen, state, error, since, exchanges, recorded, incomplete, dropped, ignored, unknown, without_row,
               rejected_rows, unreachable, redacted, last_exchange_at},
     sinks: {name: {next_round, last_round, last_status}}, flush: {last_flush, last_status},
     follow: {error, clients: {name: {state, mode, polling_reason, folders, sources, rows, last_recorded_at,
              left_to_import, error}}},
     catch_up: {last_run, last_status, next_look}, maintain: {next_look, waits, last_run, last_status},
     page: {state, listen, error, pid},
     otlp: {state, listen, error, requests, rows, ignored, rejected, by_dataset, redacted, last_rows_at, last_error}}

The state of the gateway, of the page and of the OTLP receiver is `listening`, `down` or `off`; that of a followed
client is `following`, `folder_missing` or `failing`. `unknown` counts paths, `without_row` kinds of items and
`redacted` rules. All counts start at zero with the daemon.

The file is replaced atomically but not synced: it is meaningless after a power cut, and without the daemon's lock.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from datetime import datetime
from typing import Any

from hypaware import __version__
from hypaware.home import Home, durable_files
from hypaware.home.daemon_process import daemon_status_path

log = logging.getLogger("hypaware.daemon")


class StatusFile:
    def __init__(self, home: Home, started_at: datetime) -> None:
        self._path = daemon_status_path(home)
        self._head: dict[str, object] = {
            "pid": os.getpid(),
            "started_at": _to_json(started_at),
            "version": __version__,
        }
        self._sinks: dict[str, dict[str, Any]] = {}
        self._parts: dict[str, dict[str, Any]] = {
            "gateway": {},
            "sinks": self._sinks,
            "flush": dict.fromkeys(("last_flush", "last_status")),
            "follow": {"error": None, "clients": {}},
            "catch_up": dict.fromkeys(("last_run", "last_status", "next_look")),
            "maintain": dict.fromkeys(("next_look", "waits", "last_run", "last_status")),
            "page": {},
            "otlp": {},
        }
        self._written: bytes | None = None

    def update(self, part: str, **facts: object) -> None:
        """Set facts of one part and write the file. Times are written as ISO 8601."""
        self.note(part, **facts)
        self.write()

    def note(self, part: str, **facts: object) -> None:
        """Set facts of one part for the next write."""
        self._parts[part].update({name: _to_json(value) for name, value in facts.items()})

    def update_sink(self, sink: str, **facts: object) -> None:
        entry = self._sinks.setdefault(sink, dict.fromkeys(("next_round", "last_round", "last_status")))
        entry.update({name: _to_json(value) for name, value in facts.items()})
        self.write()

    def remove_sink(self, sink: str) -> None:
        self._sinks.pop(sink, None)
        self.write()

    def announce_stop(self, at: datetime) -> None:
        self._head["stopping_since"] = _to_json(at)
        self.write()

    def write(self) -> None:
        """Write the file. A failure, such as a full disk, is only logged: the daemon's work does not depend on it."""
        body = json.dumps({**self._head, **self._parts}, indent=1).encode()
        if body == self._written:
            return
        try:
            durable_files.write_atomic(self._path, body, durable=False)
            self._written = body
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)

    def remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _to_json(value: object) -> object:
    if isinstance(value, dict):
        return {name: _to_json(each) for name, each in value.items()}
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
