"""A sender and a receiver as users run them: two homes and real commands, both killed at any time.

Rows are computed from their numbers, so that delivered rows can be compared without storing the originals.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog.sql import SqlCatalog

from hypaware.home import Home
from hypaware.home.locks import is_locked, lock_holder
from hypaware.iceberg.metadata import CATALOG, NAMESPACE
from hypaware.model.columns import format_timestamp
from hypaware.model.datasets import INTERNAL, SOURCE, coerce_row
from hypaware.state.home_opener import read_identity
from tests.support.command import HYP, Hyp
from tests.support.processes import PATIENCE, wait_until_gone
from tests.support.rows import DATASET, MESSAGES, row

# Each is a separate stream, with at least one batch in every round.
SOURCES = ("claude", "codex", "a b", "a_b", "ä/ö", "100%", "..", "x" * 90, "q?&#", *(f"plugin-{n}" for n in range(15)))
LARGE = "large"
_CANNOT_LISTEN = 3


def drawn(number: int) -> dict[str, Any]:
    """Return a row; one in fifteen is large, so that eight of them fill a chunk of 4 MiB."""
    chance = random.Random(number)
    large = number % 15 == 0
    text = f"{number}: " + chance.choice(("words ", 'say "so"\n', "größer ", "\t\\")) * chance.randrange(40)
    return row(
        number,
        client_name=LARGE if large else chance.choice(SOURCES),
        session_id=f"session-{chance.randrange(50)}",
        content_text=text + "of a long answer " * (30_000 if large else 0),
        tool_args=chance.choice((None, 2**60, "null", {"deep": [chance.random(), number]})),
    )


class Receiver:
    """`hyp server run`, always on its first port."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        name: str = "receiver",
    ) -> None:
        """`prefix` starts its command on another machine, where `host` is its address."""
        self.hyp = Hyp(folder / name)
        self.url = ""
        self._name = name
        self._options = options
        self._host, self._prefix, self._environment = host, prefix, environment
        self._folder = folder
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str | None = None) -> None:
        """Start it; return when it listens or has died."""
        extra = {**self._environment, **({"HYP_CRASH_AT": crash_at} if crash_at else {})}
        listen = f"{self._host}:{urlsplit(self.url).port or 0}"
        while True:
            self._lives += 1
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    [*self._prefix, str(HYP), "server", "run", "--listen", listen, "--no-flush", *self._options],
                    env=self.hyp.environment(**extra),
                    stdout=subprocess.PIPE,
                    stderr=log,
                )
            assert self._process.stdout
            with self._process.stdout as told:
                said = told.readline().decode()
            if said:
                self.url = said.removeprefix("listening on ").strip()
                return
            code = self._process.wait(PATIENCE)
            if code == -signal.SIGKILL:
                return
            # Another program may use the port for a moment.
            assert code == _CANNOT_LISTEN, self._log.read_text()

    @property
    def _log(self) -> Path:
        """Return a log per process: a worker whose server is killed while it starts prints a traceback."""
        return self._folder / f"{self._name}-{self._lives}.log"

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def is_dead(self) -> bool:
        """Wait for its end by a kill; it never exits otherwise."""
        assert self._process
        code = self._process.poll()
        assert code in (None, -signal.SIGKILL), self._log.read_text()
        return code is not None

    def kill(self) -> None:
        assert self._process
        self._process.kill()
        self._process.wait(PATIENCE)

    def stop(self) -> None:
        assert self._process
        self._process.terminate()
        said = self._log.read_text
        assert self._process.wait(PATIENCE) == 0, said()
        assert "Traceback" not in said(), said()

    def new_token(self, path: Path) -> Path:
        path.write_text(self.hyp.ok("server", "token", "create")["token"])
        return path

    @property
    def bytes_received(self) -> float:
        """Return its own count of batches since it started."""
        place = urlsplit(self.url)
        with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/metrics")
            told = connection.getresponse().read().decode()
        found = re.search(r"^hyp_server_body_bytes_total (\S+)$", told, re.MULTILINE)
        assert found, told
        return float(found[1])

    @property
    def batches(self) -> int:
        """Return the number of rows stored and not flushed."""
        sealed = Home(self.hyp.home).spool / DATASET / "sealed"
        return len(list(sealed.iterdir())) if sealed.is_dir() else 0


class Sender:
    """A home with one sink; exports run in a separate process or in an engine."""

    def __init__(self, folder: Path, name: str = "sender") -> None:
        self.hyp = Hyp(folder / name)
        self.inline = Hyp(folder / name, inline=True)

    def point_at(self, url: str, token_file: Path) -> None:
        self.hyp.home.mkdir(mode=0o700, exist_ok=True)
        (self.hyp.home / "config.toml").write_text(
            f'version = 1\n[sinks.team]\nkind = "forward"\nurl = "{url}"\ntoken_file = "{token_file}"\n'
        )

    def export(self, *, inline: bool = True, max_wait: int = 0, crash_at: str = "") -> subprocess.Popen[bytes]:
        chosen = self.inline if inline else self.hyp
        extra = {"HYP_CRASH_AT": crash_at} if crash_at else {}
        return chosen.start("export", "--json", "--max-wait", str(max_wait), **extra)

    def kill_engine(self) -> bool:
        """Kill the engine; return whether there was one. Its JVM ends on its own."""
        home = Home(self.hyp.home)
        if not is_locked(home.engine_lock) or not (pid := lock_holder(home.engine_lock)):
            return False
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        return True


def ended(process: subprocess.Popen[bytes]) -> int:
    """Return the exit code: all delivered, some not, cancelled, or killed."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 1, 130, -signal.SIGKILL), f"{process.returncode}: {out.decode()}{err.decode()}"
    assert b"Traceback" not in err, err.decode()
    return process.returncode


def wait_for_batches(receiver: Receiver, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Return whether this many arrived before the process ended."""
    while receiver.batches < count:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def lake_rows(home: Home) -> Iterator[dict[str, Any]]:
    """Read every row with an independent reader; return it coerced, with its source."""
    with closing(SqlCatalog(CATALOG, uri=f"sqlite:///{home.catalog}", warehouse=f"file://{home.warehouse}")) as catalog:
        for batch in catalog.load_table((NAMESPACE, DATASET)).scan().to_arrow_batch_reader():
            for found in batch.to_pylist():
                plain = {name: value for name, value in found.items() if value is not None and name not in INTERNAL}
                for name in ("conversation_started_at", "message_created_at"):
                    plain[name] = format_timestamp(plain[name])
                yield {**plain, SOURCE: found[SOURCE]}


def number_of(found: dict[str, Any]) -> int:
    return int(found["message_id"].removeprefix("message-"))


def gateway_of(hyp: Hyp) -> str:
    return read_identity(Home(hyp.home)).gateway_id


def as_stored(number: int, gateway_id: str) -> dict[str, Any]:
    """Return the expected stored row and its source."""
    sent = drawn(number)
    return {**coerce_row(MESSAGES, sent, gateway_id), SOURCE: sent["client_name"]}
