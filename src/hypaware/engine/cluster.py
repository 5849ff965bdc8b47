"""What Spark needs beside the usual when `engine.master` names a cluster and not this machine's own threads.

The jobs are the same. Executors fetch the jars from the driver; the Python of the engine with hypaware in it, and the
home, must be there under the same paths (the tasks write data files, the driver secures and commits them).

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
    """Says which master it was that could not be used."""
    try:
        yield
    except (Py4JError, OSError) as error:
        if is_local(master):
            raise
        raise _unreachable(master, error) from error


def _address_towards(master: str) -> str:
    """Where executors find the driver: this machine's address on the way to a master that answers. Spark itself would
    try for a minute, and then end the JVM."""
    place = urlsplit(master.partition(",")[0])
    if place.scheme != _STANDALONE or not place.hostname:
        return socket.getfqdn()
    try:
        with socket.create_connection((place.hostname, place.port or _PORT), timeout=_SECONDS) as towards:
            return str(towards.getsockname()[0])
    except (OSError, ValueError) as error:
        raise _unreachable(master, error) from error


def _unreachable(master: str, error: Exception) -> HypError:
    # While the JVM is there to be asked.
    said = str(error.java_exception if isinstance(error, Py4JJavaError) else error).strip().splitlines()
    return NotReady(
        f"the Spark master {master} could not be used: {said[0] if said else type(error).__name__}",
        kind="master_unreachable",
        repair="hyp config set engine.master 'local[*]'",
    )
