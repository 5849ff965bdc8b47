"""The floor for forwarding: `python -m bench.delivery_floor FOLDER ROWS CONNECTIONS`.

Plain programs, a pair for each connection. The sender holds its rows as dicts when the clock starts; it writes them as
JSON lines in chunks of at most 5,000 rows and 4 MiB, and sends each chunk after the response to the previous one. The
receiver parses every line, validates every row as our server must, appends the lines to a file, fsyncs it and answers
202. There is no lake, no plan, no token and no ledger.
"""

from __future__ import annotations

import gc
import http.client
import json
import multiprocessing as mp
import os
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson

from bench.rows import row
from hypaware.model.columns import ColumnType
from hypaware.model.datasets import coerce_row
from hypaware.model.schemas import AI_GATEWAY_MESSAGES

GATEWAY_ID = "gw-0123456789abcdef"
MAX_ROWS = 5_000
MAX_BYTES = 4 << 20
_JSON_COLUMNS = [column.name for column in AI_GATEWAY_MESSAGES.columns if column.type is ColumnType.JSON]


def main(folder: Path, rows: int, connections: int) -> None:
    # Fork after the imports, so that no pair imports while the clock runs.
    processes = mp.get_context("fork")
    pairs = []
    for place in range(connections):
        listener = socket.create_server(("127.0.0.1", 0))
        ours, theirs = processes.Pipe()
        numbers = range(place, rows, connections)
        receiver = processes.Process(target=receive, args=(listener, folder / f"{place}.jsonl"), daemon=True)
        sender = processes.Process(target=send, args=(listener.getsockname()[1], numbers, theirs), daemon=True)
        receiver.start()
        sender.start()
        listener.close()
        pairs.append((sender, receiver, ours))
    for _, _, pipe in pairs:
        pipe.recv()
    began = time.perf_counter()
    for _, _, pipe in pairs:
        pipe.send("go")
    sent = sum(pipe.recv() for _, _, pipe in pairs)
    spent = time.perf_counter() - began
    for sender, receiver, _ in pairs:
        sender.join()
        receiver.join()
    stored = sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))
    if stored != rows:
        raise SystemExit(f"{rows} rows were sent and {stored} stored: not a measurement")
    print(json.dumps({"seconds": spent, "rows": rows, "bytes": sent}))


def send(port: int, numbers: range, parent: Connection) -> None:
    held = [as_delivered(number) for number in numbers]
    gc.freeze()
    gc.disable()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    parent.send("ready")
    parent.recv()
    sent = 0
    for body in chunks(held):
        connection.request("POST", "/", body)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 202:
            raise SystemExit(f"the receiver answered {answer.status}")
        sent += len(body)
    parent.send(sent)
    connection.close()


def as_delivered(number: int) -> dict[str, Any]:
    """Return a row as stored in the lake, with its JSON columns decoded."""
    found = coerce_row(AI_GATEWAY_MESSAGES, row(number), GATEWAY_ID)
    return {**found, **{name: orjson.loads(found[name]) for name in _JSON_COLUMNS if name in found}}


def chunks(held: list[dict[str, Any]]) -> Iterator[bytes]:
    lines: list[bytes] = []
    weight = 0
    for each in held:
        line = orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE)
        if len(lines) == MAX_ROWS or weight + len(line) > MAX_BYTES:
            yield b"".join(lines)
            lines, weight = [], 0
        lines.append(line)
        weight += len(line)
    if lines:
        yield b"".join(lines)


def receive(listener: socket.socket, path: Path) -> None:
    gc.freeze()
    gc.disable()
    connection, _ = listener.accept()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with connection, connection.makefile("rb") as stream:
        while (size := body_size(stream)) is not None:
            body = stream.read(size)
            for line in body.splitlines():
                coerce_row(AI_GATEWAY_MESSAGES, orjson.loads(line), GATEWAY_ID)
            os.write(fd, body)
            os.fsync(fd)
            connection.sendall(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
    os.close(fd)


def body_size(stream: Any) -> int | None:
    """Read the body size from the request head; None when the sender has disconnected."""
    size: int | None = None
    while (line := stream.readline().strip()) or size is None:
        if not line:
            return None
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    return size


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
