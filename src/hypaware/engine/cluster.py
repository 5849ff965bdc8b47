"""The additional Spark settings if `engine.master` is a cluster.

The jobs are the same. Executors fetch the jars from the driver. The engine's Python with hypaware, and the home, must
be available on the executors under the same paths: tasks write data files, and the driver fsyncs and commits them.

@ref engine#cluster
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from py4j.protocol import Py4JError, Py4JJavaError

from hypaware.errors import HypError, NotReady

_STANDALONE = "spark"
_PORT = 7077
_SECONDS = 10.0


def is_local(master: str) -> bool:
    return master.startswith("local")


def settings(master: str, jars: Sequence[Path], memory: str) -> dict[str, str]:
    if is_local(master):
        return {}
    here = _address_towards(master)
    return {
        "spark.jars": ",".join(jar.as_uri() for jar in jars),
        "spark.executor.memory": memory,
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
    }


@contextmanager
def reaching(master: str) -> Iterator[None]:
    """Raise NotReady, which names the master, if the master cannot be used."""
    try:
        yield
    except (Py4JError, OSError) as error:
        if is_local(master):
            raise
        raise _unreachable(master, error) from error


def _address_towards(master: str) -> str:
    """Return this machine's address on the network of the master, for executors to connect to.

    Fails early if the master does not answer, because Spark would retry for a minute and then end the JVM.
    """
    url = urlsplit(master.partition(",")[0])
    if url.scheme != _STANDALONE or not url.hostname:
        return socket.getfqdn()
    try:
        with socket.create_connection((url.hostname, url.port or _PORT), timeout=_SECONDS) as sock:
            return str(sock.getsockname()[0])
    except (OSError, ValueError) as error:
        raise _unreachable(master, error) from error


def _unreachable(master: str, error: Exception) -> HypError:
    # Read the exception while the JVM is still running.
    lines = str(error.java_exception if isinstance(error, Py4JJavaError) else error).strip().splitlines()
    return NotReady(
        f"cannot use the Spark master {master}: {lines[0] if lines else type(error).__name__}",
        kind="master_unreachable",
        repair="hyp config set engine.master 'local[*]'",
    )
