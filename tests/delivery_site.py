"""A sender and a receiver as their users run them: two homes, real commands, deaths of both at any time.

Rows are drawn from their numbers alone, so that what arrived can be compared with what went in without keeping it.
"""

from __future__ import annotations

import http.client
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.catalog.sql import SqlCatalog

from hypaware.engine import singleton
from hypaware.home import Home
from hypaware.lake.metadata import CATALOG, NAMESPACE
from hypaware.model.coerce import coerce_row
from hypaware.model.columns import timestamp_text
from hypaware.model.datasets import INTERNAL, SOURCE
from hypaware.opening import identify
from tests.command import HYP, Hyp
from tests.processes import PATIENCE, wait_until_gone
from tests.rows import DATASET, MESSAGES, row

# Each is a stream of its own, with a batch or more in every round.
SOURCES = ("claude", "codex", "a b", "a_b", "ä/ö", "100%", "..", "x" * 90, "q?&#", *(f"plugin-{n}" for n in range(15)))
LARGE = "large"
_CANNOT_LISTEN = 3


def drawn(number: int) -> dict[str, Any]:
    """One row in fifteen is large, so that eight of them fill a chunk of 4 MiB."""
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
    """`hyp server run`, always on the port that it had first."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.hyp = Hyp(folder / "receiver")
        self.url = ""
        self._options = options
        self._folder = folder
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, crash_at: str | None = None) -> None:
        """Returns when it listens, or has died before it could."""
        extra = {"HYP_CRASH_AT": crash_at} if crash_at else {}
        listen = f"127.0.0.1:{urlsplit(self.url).port or 0}"
        while True:
            self._lives += 1
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    [str(HYP), "server", "run", "--listen", listen, "--no-flush", *self._options],
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
            # Somebody else has the port for a moment: another program's connection may be given any.
            assert code == _CANNOT_LISTEN, self._log.read_text()

    @property
    def _log(self) -> Path:
        """One for each life: a judge whose server is killed while it starts ends with Python's own traceback."""
        return self._folder / f"receiver-{self._lives}.log"

    @property
    def is_dead(self) -> bool:
        """Killed, by us or by itself; it never ends otherwise."""
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
        """Of batches, since it started, as it counts them itself."""
        place = urlsplit(self.url)
        with closing(http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)) as connection:
            connection.request("GET", "/metrics")
            told = connection.getresponse().read().decode()
        found = re.search(r"^hyp_server_body_bytes_total (\S+)$", told, re.MULTILINE)
        assert found, told
        return float(found[1])

    @property
    def batches(self) -> int:
        """How many it has stored and not flushed."""
        sealed = Home(self.hyp.home).spool / DATASET / "sealed"
        return len(list(sealed.iterdir())) if sealed.is_dir() else 0


class Sender:
    """A home with one sink; exports run in their own process, or in an engine."""

    def __init__(self, folder: Path) -> None:
        self.hyp = Hyp(folder / "sender")
        self.inline = Hyp(folder / "sender", inline=True)

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
        """Whether there was one. Its JVM ends by itself."""
        home = Home(self.hyp.home)
        if singleton.is_free(home) or not (pid := singleton.holder(home)):
            return False
        os.kill(pid, signal.SIGKILL)
        wait_until_gone(pid)
        return True


def ended(process: subprocess.Popen[bytes]) -> int:
    """Its exit code: all was delivered, some was not, it was cancelled, or killed."""
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, 1, 130, -signal.SIGKILL), f"{process.returncode}: {out.decode()}{err.decode()}"
    assert b"Traceback" not in err, err.decode()
    return process.returncode


def wait_for_batches(receiver: Receiver, count: int, process: subprocess.Popen[bytes]) -> bool:
    """Whether so many came before the process ended."""
    while receiver.batches < count:
        if process.poll() is not None:
            return False
        time.sleep(0.002)
    return True


def lake_rows(home: Home) -> Iterator[dict[str, Any]]:
    """Every row through an independent reader, as a row is coerced, and its source."""
    with closing(SqlCatalog(CATALOG, uri=f"sqlite:///{home.catalog}", warehouse=f"file://{home.warehouse}")) as catalog:
        for batch in catalog.load_table((NAMESPACE, DATASET)).scan().to_arrow_batch_reader():
            for found in batch.to_pylist():
                plain = {name: value for name, value in found.items() if value is not None and name not in INTERNAL}
                for name in ("conversation_started_at", "message_created_at"):
                    plain[name] = timestamp_text(plain[name])
                yield {**plain, SOURCE: found[SOURCE]}


def number_of(found: dict[str, Any]) -> int:
    return int(found["message_id"].removeprefix("message-"))


def gateway_of(hyp: Hyp) -> str:
    return identify(Home(hyp.home)).gateway_id


def as_stored(number: int, gateway_id: str) -> dict[str, Any]:
    """What a lake must hold of a row that was drawn, its source beside it."""
    sent = drawn(number)
    return {**coerce_row(MESSAGES, sent, gateway_id), SOURCE: sent["client_name"]}
